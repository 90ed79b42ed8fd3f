"""A chat of chunks that a test makes, to test its translations without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from edgedec.runtime.server.chat import ChatReply, Usage
from edgedec.runtime.server.native_completions import NativeReply
from edgedec.runtime.server.submission import TextEnd, TextPart
from edgedec.runtime.server.translation import TranslatedReply
from edgedec.runtime.session.answer import Answer, StopReason, Timings

__all__ = ["call", "made_reply", "translated"]


class MadeChat:
    """Gives the chunks of ``deltas``, one for each part, and ``reason`` at the end."""

    model = "a model"

    def __init__(self, deltas: Sequence[dict[str, Any]], reason: str) -> None:
        self.usage = Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=5)
        self._deltas, self._reason = deltas, reason

    def part(self, event: TextPart) -> Iterator[dict[str, Any]]:
        yield _chunk(self._deltas[event.index])

    def ending(self, event: TextEnd) -> Iterator[dict[str, Any]]:
        yield _chunk({}, self._reason)


class MadeNative:
    def stopping_word(self, end: TextEnd) -> str:
        return "."


def _chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}


def call(number: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    """Return the delta of a call; its first part has the name."""
    head = {} if name is None else {"id": f"call_{number}", "type": "function"}
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": number, **head, "function": function}]}


def made_reply(
    kind: type[TranslatedReply], *deltas: dict[str, Any], reason: str = "stop", **options: Any
) -> TranslatedReply:
    """Return a translation of a chat, before its first part; the arguments are those of ``translated``."""
    chat = cast(ChatReply, MadeChat(deltas, reason))
    return kind(chat, cast(NativeReply, MadeNative()), **options)


def translated(
    kind: type[TranslatedReply], *deltas: dict[str, Any], reason: str = "stop", stop: StopReason = "eos", **options: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the chunks of a stream, and the whole answer, that a translation makes of a chat.

    Parameters:
        kind: the translation.
        deltas: the deltas of the chat's chunks.
        reason: the reason of the end in the words of chats.
        stop: the reason of the end.
        options: further arguments of the translation.
    """
    reply = made_reply(kind, *deltas, reason=reason, **options)
    chunks = [*reply.opening()]
    for index in range(len(deltas)):
        chunks += reply.part(TextPart(index=index, text="", tokens=(), guessed=False))
    answer = Answer(stop_reason=stop, timings=Timings(prompt_n=7, prompt_ms=2.0, predicted_n=5, predicted_ms=4.0))
    chunks += [*reply.ending(TextEnd(index=0, answer=answer, tokens=())), *reply.closing()]
    return [dict(chunk) for chunk in chunks], reply.whole()
