"""Log-probabilities in the two shapes of OpenAI's interface: that of chats, and the older one of completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from edgedec.runtime.grammar import tools
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling.logprobs import TokenLogprobs
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.text.reasoning import BEGIN, END, ReasoningPlace

__all__ = ["LEAST", "Part", "TokenOffsets", "TokenParts", "chat_logprobs", "completion_logprobs"]

Part = Literal["reasoning", "text", "call"]
PARTS: tuple[Part, ...] = get_args(Part)  # parts of an answer, in their order
_THINK, _END_THINK, _CALL = BEGIN.encode(), END.encode(), tools.BEGIN.encode()
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


class TokenParts:
    """The tokens of a chat's answer that no chunk has shown yet, each with the part of the answer that it belongs to.

    A token of the closing tag of the reasoning, and of the blanks after it, belongs to the reasoning; one of the tag that
    begins a call belongs to the call.

    Parameters:
        spelled: returns the bytes of a token.
        place: place at which the answer begins; "after" if the reasoning is not divided from the content.
        has_tools: True if the answer may have calls of tools.
    """

    def __init__(self, spelled: Callable[[int], bytes], *, place: ReasoningPlace, has_tools: bool) -> None:
        self._spelled, self._has_tools = spelled, has_tools
        self._phase = {"within": "thoughts", "before": "start", "after": "content"}[place]
        self._text = b""  # text in which a tag may begin
        self._waiting: list[tuple[int, TokenLogprobs]] = []  # with the number of the part; -1: of any

    def add(self, tokens: Sequence[TokenLogprobs]) -> None:
        """Append tokens that follow."""
        for item in tokens:
            raw = self._spelled(item.token)
            self._text += raw
            part = self._part(raw)  # may make the list anew
            self._waiting.append((part, item))

    def _part(self, raw: bytes) -> int:
        """Return the number of the part of a token, and correct those of the tokens before it that have a tag with it."""
        if self._phase == "start" and not _THINK.startswith(start := self._text.lstrip()):
            self._phase = "thoughts" if start.startswith(_THINK) else "content"
        if self._phase == "start":
            return -1
        if self._phase == "thoughts":
            if _END_THINK not in self._text:
                self._text = self._text[1 - len(_END_THINK) :]
                return -1
            self._phase = "blanks"
            self._waiting = [(PARTS.index("reasoning"), item) for _, item in self._waiting]
            return PARTS.index("reasoning")
        if self._phase == "blanks" and not raw.strip():
            return PARTS.index("reasoning")
        if self._phase == "blanks":
            self._phase, self._text = "content", raw
        if self._phase == "content" and self._has_tools:
            _, begin, after = self._text.partition(_CALL)
            if begin:
                self._phase = "calls"
                self._give_to_call(len(begin) + len(after) - len(raw))
            self._text = self._text[1 - len(_CALL) :]
        else:
            self._text = b""  # no further tag is looked for
        return PARTS.index("call" if self._phase == "calls" else "text")

    def _give_to_call(self, nbytes: int) -> None:
        """Give the tokens of the last ``nbytes`` bytes to the call."""
        at = len(self._waiting)
        while nbytes > 0 and at > 0:
            at -= 1
            nbytes -= len(self._spelled(self._waiting[at][1].token))
        self._waiting[at:] = [(PARTS.index("call"), item) for _, item in self._waiting[at:]]

    def take(self, part: Part, *, surely: bool = False) -> list[TokenLogprobs]:
        """Return the first tokens, and forget them: those up to the end of a part, or with ``surely`` of it alone."""
        last = PARTS.index(part)
        count = 0
        while count < len(self._waiting) and self._waiting[count][0] in range(0 if surely else -1, last + 1):
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return [item for _, item in taken]


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
