"""Log-probabilities in the two shapes of OpenAI's interface: that of chats, and the older one of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgedec.runtime.logprobs import TokenLogprobs
from edgedec.runtime.protocols import I32
from edgedec.runtime.server.model_text import ModelText

__all__ = ["LEAST", "TokenOffsets", "chat_logprobs", "completion_logprobs"]

LEAST = -9999.0  # stands for minus infinity, which JSON does not have


def chat_logprobs(text: ModelText, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Return log-probabilities of tokens in the shape of a chat."""
    content = []
    for item in logprobs:
        top = [_entry(text, token, value) for token, value in item.top]
        content.append({**_entry(text, item.token, item.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(text: ModelText, token: int, logprob: float) -> dict[str, Any]:
    raw = text.token_bytes(token)
    return {"token": raw.decode(errors="replace"), "logprob": max(logprob, LEAST), "bytes": list(raw)}


class TokenOffsets:
    """The places of tokens in a text, in characters. Each token begins where the whole characters before it end.

    Parameters:
        text: the model's tokenizer.
        context: ids of the text before, which is not counted, int32 [n].
        first: place of the first token.
    """

    def __init__(self, text: ModelText, context: Sequence[int] | I32, first: int = 0) -> None:
        self._stream, self._place = text.stream(context), first

    def next(self, token: int) -> int:
        """Return the place of a token that follows."""
        place = self._place
        self._place += len(self._stream.feed(token))
        return place


def completion_logprobs(
    text: ModelText, logprobs: Sequence[TokenLogprobs], offsets: TokenOffsets, *, first: int | None = None
) -> dict[str, Any]:
    """Return log-probabilities of tokens in the shape of a completion.

    Parameters:
        text: spells the tokens.
        logprobs: the tokens in the order of the text.
        offsets: continues with these tokens.
        first: a token before them, which nothing predicts; None: there is none.
    """
    shape: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    if first is not None:
        _append(shape, _spelling(text, first), None, None, offsets.next(first))
    for item in logprobs:
        top: dict[str, float] = {}
        for other, value in item.top:
            top.setdefault(_spelling(text, other), max(value, LEAST))
        _append(shape, _spelling(text, item.token), max(item.logprob, LEAST), top, offsets.next(item.token))
    return shape


def _append(
    shape: dict[str, list[Any]], token: str, logprob: float | None, top: dict[str, float] | None, offset: int
) -> None:
    for name, value in zip(shape, (token, logprob, top, offset), strict=True):
        shape[name].append(value)


def _spelling(text: ModelText, token: int) -> str:
    """Return a token's text. One that is a part of a character is spelled by its bytes, so that it stays different."""
    raw = text.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
