"""Log-probabilities in the two shapes of OpenAI's interface: that of chats, and the older one of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.service import TokenLogprob

__all__ = ["LEAST", "chat_logprobs", "completion_logprobs"]

LEAST = -9999.0  # stands for minus infinity, which JSON does not have


def chat_logprobs(text: ModelText, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return log-probabilities of tokens in the shape of a chat."""
    content = []
    for item in logprobs:
        top = [_entry(text, token, value) for token, value in item.top]
        content.append({**_entry(text, item.token, item.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(text: ModelText, token: int, logprob: float | None) -> dict[str, Any]:
    raw = text.token_bytes(token)
    return {"id": token, "token": raw.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(raw)}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST)


def completion_logprobs(text: ModelText, logprobs: Sequence[TokenLogprob], *, offset: int = 0) -> dict[str, Any]:
    """Return log-probabilities of tokens in the shape of a completion.

    Parameters:
        text: spells the tokens.
        logprobs: the tokens in the order of the text.
        offset: place of the first token in the whole text, in characters.
    """
    shape: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for item in logprobs:
        token = text.token_bytes(item.token).decode(errors="replace")
        top: dict[str, float | None] = {}
        for other, value in item.top:  # several tokens may have one spelling; the likeliest counts
            top.setdefault(text.token_bytes(other).decode(errors="replace"), _finite(value))
        shape["tokens"].append(token)
        shape["token_logprobs"].append(_finite(item.logprob))
        shape["top_logprobs"].append(None if item.logprob is None else top)
        shape["text_offset"].append(offset)
        offset += len(token)
    return shape
