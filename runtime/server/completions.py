"""Completions of plain texts: the answers in the form of ``text_completion``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling.logprobs import TokenLogprobs
from edgedec.runtime.server.chat import FINGERPRINT, Usage, finish_reason
from edgedec.runtime.server.logprobs import TokenOffsets, completion_logprobs
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.native_completions import NativeReply
from edgedec.runtime.server.progress import TextProgress
from edgedec.runtime.server.streaming import EVENTS, Chunk, Framing
from edgedec.runtime.server.submission import TextEnd, TextPart
from edgedec.runtime.server.timings import timings_json

__all__ = ["CompletionReply"]


@dataclass(kw_only=True)
class CompletionReply:
    """The form of the answers to one or several prompts.

    Members:
        model: the model's name.
        text: the model's tokenizer, for the spelling of tokens in log-probabilities.
        usage: counts of tokens.
        prompts: ids of each answer's prompt.
        echoes: text before each answer: its prompt with ``echo``, else empty.
        include_usage: end a stream with a chunk of token counts.
        top: number of likeliest tokens to report; None: no log-probabilities.
        verbose: makes the member ``__verbose``; None: the answer has none.
    """

    framing: ClassVar[Framing] = EVENTS
    model: str
    text: ModelText
    usage: Usage
    prompts: list[I32]
    echoes: list[str]
    include_usage: bool
    top: int | None = None
    verbose: NativeReply | None = None
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    _ends: dict[int, TextEnd] = field(default_factory=dict)
    _offsets: dict[int, TokenOffsets] = field(default_factory=dict)  # places of a stream, by text
    _echoed: set[int] = field(default_factory=set)  # texts whose prompt was sent with its log-probabilities

    def opening(self) -> Iterator[Chunk]:
        """Yield the prompts, with ``echo``. With log-probabilities they follow later, when the prompt was read."""
        for index, echo in enumerate(self.echoes):
            if echo and self.top is None:
                yield self._chunk([self._choice(index, echo)])

    def _echo(self, index: int, logprobs: Sequence[TokenLogprobs]) -> Iterator[Chunk]:
        """Yield a prompt with its log-probabilities, before the first chunk of its text."""
        if self.echoes[index] and self.top is not None and index not in self._echoed:
            self._echoed.add(index)
            first = int(self.prompts[index][0])
            shape = completion_logprobs(self.text, logprobs, TokenOffsets(self.text, ()), first=first)
            yield self._chunk([self._choice(index, self.echoes[index], logprobs=shape)])

    def progress(self, event: TextProgress) -> Iterator[Chunk]:
        """Yield a chunk without text that tells how far the prompt was read."""
        yield self._chunk([self._choice(event.index, "")]) | event.as_json()

    def part(self, event: TextPart) -> Iterator[Chunk]:
        """Yield the chunk of a part."""
        yield from self._echo(event.index, event.prompt_logprobs)
        logprobs = self._continued(event.index, event.logprobs)
        timings = {} if event.progress is None else {"timings": event.progress.timings_json()}
        yield self._chunk([self._choice(event.index, event.text, logprobs=logprobs)]) | timings

    def ending(self, event: TextEnd) -> Iterator[Chunk]:
        """Yield the last chunk of a text, which has no text."""
        yield from self._echo(event.index, event.prompt_logprobs)
        self._ends[event.index] = event
        self.usage.add(event)
        reason = finish_reason(event.answer.stop_reason)
        logprobs = self._continued(event.index, event.logprobs) if event.logprobs else None
        chunk = self._chunk([self._choice(event.index, "", finish=reason, logprobs=logprobs)])
        yield {**chunk, "timings": timings_json(event.answer.timings), **self._verbose(event)}

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
            logprobs = self._all(end)
            text = self.echoes[end.index] + end.answer.text
            choice = self._choice(end.index, text, finish=finish_reason(end.answer.stop_reason), logprobs=logprobs)
            choices.append(choice | {key: timings_json(end.answer.timings) for key in more})
        return {
            **self._chunk(choices),
            "usage": self.usage.as_json(),
            "timings": timings_json(ends[0].answer.timings),
            **self._verbose(ends[0]),
        }

    def _verbose(self, end: TextEnd) -> dict[str, Any]:
        return {} if self.verbose is None else {"__verbose": self.verbose.described(end)}

    def _continued(self, index: int, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """Return log-probabilities of a part of a stream."""
        if self.top is None:
            return None
        if index not in self._offsets:
            self._offsets[index] = TokenOffsets(self.text, self.prompts[index], len(self.echoes[index]))
        return completion_logprobs(self.text, logprobs, self._offsets[index])

    def _all(self, end: TextEnd) -> dict[str, Any] | None:
        """Return log-probabilities of a whole text, with ``echo`` of its prompt, too."""
        if self.top is None:
            return None
        prompt, written = self.prompts[end.index], end.answer.logprobs
        if not self.echoes[end.index]:
            return completion_logprobs(self.text, written, TokenOffsets(self.text, prompt))
        logprobs = [*end.prompt_logprobs, *written]
        return completion_logprobs(self.text, logprobs, TokenOffsets(self.text, ()), first=int(prompt[0]))

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
