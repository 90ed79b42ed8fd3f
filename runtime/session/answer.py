"""The answer of a model: its text, its tokens, the reason for its end, and its timings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from edgedec.runtime.decoders._plugin import DecoderFigures
from edgedec.runtime.rounds.statistics import Rounds
from edgedec.runtime.sampling.logprobs import TokenLogprobs

if TYPE_CHECKING:
    from typing_extensions import Self

    from edgedec.runtime.accelerator.timings import DeviceTimings
    from edgedec.runtime.base.key_counts import KeyCounts
    from edgedec.runtime.base.stream_counts import StreamTimings
    from edgedec.runtime.engine.scheduler import Scheduler, Task
    from edgedec.runtime.session.writer import AnswerWriter

__all__ = ["Answer", "AnswerStream", "Piece", "StopReason", "Timings"]

StopReason = Literal["eos", "stop", "grammar", "limit", "context", "interrupted"]


@dataclass(kw_only=True)
class Timings:
    """The times, sizes and counts of one answer."""

    prompt_n: int = 0  # tokens of the prompt
    prompt_kept: int = 0  # rows of the prompt that the cache still contained from the previous answer
    prompt_ms: float = 0.0  # milliseconds from the request to the first token
    predicted_n: int = 0  # tokens of the answer
    predicted_ms: float = 0.0  # milliseconds from the first token to the last one
    planned_bytes: int = 0  # memory that the plan charges
    peak_bytes: int = 0  # measured peak of this memory
    ctx_size: int = 0  # tokens of the context
    kv_bits: int = 0  # bits of keys and values, on which the text depends
    kv_policy: str = "full"  # policy of keys and values, on which the text depends
    lossless: str = ""  # "exact", "distribution", "lossy" or "up to float ties": docs/speculation.md
    drafter: str = "none"
    rounds: Rounds = field(default_factory=Rounds)
    speculating: bool = False  # True if speculation was still on at the end
    kernel: str | None = None  # code path of the CPU kernels, ``TargetInfo.kernel``
    accelerator: DeviceTimings | None = None
    decoder: DecoderFigures | None = None  # counts of the decoder beside the rounds
    disk: StreamTimings | None = None  # reads of weights during passes; None: all weights are in memory
    keys: KeyCounts | None = None  # keys that queries chose; None: they read all. Answers beside it are among them

    @property
    def prompt_per_second(self) -> float:
        """Computed rows of the prompt per second until the first token."""
        return 1000 * (self.prompt_n - self.prompt_kept) / self.prompt_ms if self.prompt_ms else 0.0

    @property
    def predicted_per_second(self) -> float:
        """Tokens per second after the first token."""
        return 1000 * (self.predicted_n - 1) / self.predicted_ms if self.predicted_n > 1 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures under the names that llama.cpp's server uses, and further ones."""
        return {
            "prompt_n": self.prompt_n,
            "prompt_ms": round(self.prompt_ms, 3),
            "prompt_per_second": round(self.prompt_per_second, 3),
            "predicted_n": self.predicted_n,
            "predicted_ms": round(self.predicted_ms, 3),
            "predicted_per_second": round(self.predicted_per_second, 3),
            "planned_bytes": self.planned_bytes,
            "peak_bytes": self.peak_bytes,
            "ctx_size": self.ctx_size,
            "kv_bits": self.kv_bits,
            "kv_policy": self.kv_policy,
            "lossless": self.lossless,
            "drafter": self.drafter,
            "rounds": self.rounds.count,
            "draft_n": self.rounds.drafted,
            "draft_n_accepted": sum(self.rounds.accepted),
            "accepted_by_position": list(self.rounds.accepted),
            "draft_prompt_ms": round(1000 * self.rounds.read_seconds, 3),
            "draft_ms": round(1000 * self.rounds.draft_seconds, 3),
            "verify_ms": round(1000 * self.rounds.verify_seconds, 3),
            "commit_ms": round(1000 * self.rounds.commit_seconds, 3),
            "speculating": self.speculating,
            "kernel": self.kernel,
            **({} if self.decoder is None else {self.decoder.name: self.decoder.values}),
            **({} if self.accelerator is None else {"accelerator": self.accelerator.as_json()}),
            **({} if self.disk is None else {"disk": self.disk.as_json()}),
            **({} if self.keys is None else {"keys": self.keys.as_json()}),
        }


@dataclass(kw_only=True)
class Answer:
    """The answer of a model.

    Members:
        text: the text, without the stop string that ended it.
        tokens: ids after the prompt. If an end token ended the answer, it is the last of them and has no text.
        drafted: for each token, whether it was an accepted guess.
        logprobs: the log-probability of each token, if they were asked for.
        prompt_logprobs: log-probabilities of the prompt's tokens after its first, if they were asked for.
        stop_reason: ``eos`` (an end token), ``stop`` (a stop string), ``grammar`` (the grammar allows nothing further),
            ``limit`` (``n_predict``), ``context`` (the context is full) or ``interrupted``.
        timings: the times and counts; complete once the answer has ended.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    stop_reason: StopReason = "limit"
    timings: Timings = field(default_factory=Timings)


class Piece(str):
    """A part of an answer's text that can be printed.

    Members:
        guessed: whether the last token of the piece was an accepted guess.
        tokens: number of the answer's tokens up to this piece; 0 if it is not known.
    """

    guessed: bool
    tokens: int

    def __new__(cls, text: str, *, guessed: bool, tokens: int = 0) -> Self:
        piece = super().__new__(cls, text)
        piece.guessed, piece.tokens = guessed, tokens
        return piece


class AnswerStream(Iterator[Piece]):
    """An iterator over the pieces of an answer, which yields each piece as soon as it is written.

    If the loop may end early, use a ``with`` block, which closes the stream:

        with session.stream("Once upon a time") as stream:
            for piece in stream:
                ...

    Parameters:
        writer: has the answer and the pieces that were not read yet.
        task: the request.
        scheduler: answers it, and others beside it.

    Members:
        answer: the answer so far. ``stop_reason`` and ``timings`` are valid once the iteration has ended or the stream was
            closed.
    """

    def __init__(self, writer: AnswerWriter, task: Task, scheduler: Scheduler) -> None:
        self._writer, self._task, self._scheduler = writer, task, scheduler

    @property
    def answer(self) -> Answer:
        """The answer so far."""
        return self._writer.answer

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs]:
        """The log-probabilities of the prompt's tokens, as far as it was read; all of them once a token was written."""
        if self.answer.prompt_logprobs or self._task.sequence is None:
            return self.answer.prompt_logprobs
        return self._task.sequence.prompt_logprobs

    @property
    def ended(self) -> bool:
        """True once nothing is written any more. Pieces that nobody has read may be left."""
        return self._task.ended

    def take(self) -> list[Piece]:
        """Return the pieces that are ready, without waiting for others. ``Scheduler.step`` makes them.

        Raises:
            EdgedecError: the answer has failed, and all its pieces were taken.
        """
        pieces = list(self._writer.pieces)
        self._writer.pieces.clear()
        if not pieces and self._task.error is not None:
            error, self._task.error = self._task.error, None
            raise error
        return pieces

    def __next__(self) -> Piece:
        while not (pieces := self._writer.pieces):
            if self._task.ended:
                error, self._task.error = self._task.error, None
                raise error or StopIteration
            self._scheduler.step()
        return pieces.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:  # a stream that nobody can read must not hold a decoder
        if not self._task.ended:
            self._scheduler.abandon(self._task)

    def close(self) -> None:
        """End the answer now, with the stop reason ``interrupted``. After the end of the answer this does nothing."""
        self._scheduler.cancel(self._task)
        self._writer.pieces.clear()
