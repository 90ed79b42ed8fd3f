"""Completions of plain texts: the answers in the form of ``text_completion``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from edgedec.runtime.server.chat import FINGERPRINT, Usage, finish_reason
from edgedec.runtime.server.logprobs import completion_logprobs
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.service import TextEnd, TextPart, TokenLogprob
from edgedec.runtime.server.streaming import Chunk

__all__ = ["CompletionReply"]


@dataclass(kw_only=True)
class CompletionReply:
    """The form of the answers to one or several prompts.

    Members:
        model: the model's name.
        text: the model's tokenizer, for the spelling of tokens in log-probabilities.
        usage: counts of tokens.
        echoes: text before each answer: its prompt with ``echo``, else empty.
        include_usage: end a stream with a chunk of token counts.
        top: number of likeliest tokens to report; None: no log-probabilities.
    """

    model: str
    text: ModelText
    usage: Usage
    echoes: list[str]
    include_usage: bool
    top: int | None = None
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    _ends: dict[int, TextEnd] = field(default_factory=dict)
    _logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)  # characters of each text so far

    def opening(self) -> Iterator[Chunk]:
        """Yield the prompts, with ``echo``."""
        for index, echo in enumerate(self.echoes):
            if echo:
                yield self._chunk([self._choice(index, echo)])

    def part(self, event: TextPart) -> Iterator[Chunk]:
        """Yield the chunk of a part."""
        self._logprobs.setdefault(event.index, []).extend(event.logprobs)
        offset = self._offsets.get(event.index, len(self.echoes[event.index]))
        self._offsets[event.index] = offset + len(event.text)
        logprobs = None if self.top is None else completion_logprobs(self.text, event.logprobs, offset=offset)
        yield self._chunk([self._choice(event.index, event.text, logprobs=logprobs)])

    def ending(self, event: TextEnd) -> Iterator[Chunk]:
        """Yield the last chunk of a text, which has no text."""
        self._ends[event.index] = event
        self._logprobs[event.index] = [*event.prompt_logprobs, *self._logprobs.get(event.index, []), *event.logprobs]
        self.usage.add(event)
        reason = finish_reason(event.answer.stop_reason)
        chunk = self._chunk([self._choice(event.index, "", finish=reason)])
        yield {**chunk, "timings": event.answer.timings.as_json()}

    def closing(self) -> Iterator[Chunk]:
        """Yield the chunk of token counts, if it was asked for."""
        if self.include_usage:
            yield {**self._chunk([]), "usage": self.usage.as_json()}

    def whole(self) -> dict[str, Any]:
        """Return all answers as one object."""
        ends = [self._ends[index] for index in range(len(self.echoes))]
        more = {} if len(ends) == 1 else {"timings": None}
        choices = []
        for end in ends:
            logprobs = None if self.top is None else completion_logprobs(self.text, self._logprobs[end.index])
            text = self.echoes[end.index] + end.answer.text
            choice = self._choice(end.index, text, finish=finish_reason(end.answer.stop_reason), logprobs=logprobs)
            choices.append(choice | {key: end.answer.timings.as_json() for key in more})
        return {
            **self._chunk(choices),
            "usage": self.usage.as_json(),
            "timings": ends[0].answer.timings.as_json(),
        }

    def _choice(
        self, index: int, text: str, *, finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        }
        return chunk | {"usage": None} if self.include_usage else chunk
