"""An answer: its text, its tokens, why it ended, and what it took."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from edgedec.runtime.accelerator.timings import DeviceTimings
from edgedec.runtime.decoders.rounds import Rounds

__all__ = ["Answer", "AnswerStream", "Piece", "StopReason", "Timings"]

StopReason = Literal["eos", "stop", "limit", "context", "interrupted"]


@dataclass(kw_only=True)
class Timings:
    """The figures of one answer, in milliseconds and bytes.

    ``prompt_ms`` runs from the request to the first token; ``predicted_ms`` over the tokens after the first, so that
    ``predicted_per_second`` is (predicted_n - 1) / seconds after the first.
    """

    prompt_n: int = 0
    prompt_kept: int = 0  # of these, rows that the cache still held from the answer before
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    planned_bytes: int = 0
    peak_bytes: int = 0
    lossless: str = ""
    drafter: str = "none"
    rounds: Rounds = field(default_factory=Rounds)
    speculating: bool = False  # speculation was still on at the end
    kernel: str | None = None  # code path of the CPU kernels, as ``TargetInfo`` has it
    accelerator: DeviceTimings | None = None

    @property
    def prompt_per_second(self) -> float:
        """Rows of the prompt that were computed, per second until the first token."""
        return 1000 * (self.prompt_n - self.prompt_kept) / self.prompt_ms if self.prompt_ms else 0.0

    @property
    def predicted_per_second(self) -> float:
        """Tokens per second after the first."""
        return 1000 * (self.predicted_n - 1) / self.predicted_ms if self.predicted_n > 1 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures under the names that llama.cpp's server gives them, where it has them."""
        return {
            "prompt_n": self.prompt_n,
            "prompt_ms": round(self.prompt_ms, 3),
            "prompt_per_second": round(self.prompt_per_second, 3),
            "predicted_n": self.predicted_n,
            "predicted_ms": round(self.predicted_ms, 3),
            "predicted_per_second": round(self.predicted_per_second, 3),
            "planned_bytes": self.planned_bytes,
            "peak_bytes": self.peak_bytes,
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
            **({} if self.accelerator is None else {"accelerator": self.accelerator.as_json()}),
        }


@dataclass(kw_only=True)
class Answer:
    """What a model wrote.

    Members:
        tokens: ids after the prompt. An end token that ended the answer is the last of them and has no text.
        drafted: for each token, whether it was an accepted guess.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    stop_reason: StopReason = "limit"
    timings: Timings = field(default_factory=Timings)


class Piece(str):
    """A piece of an answer's text, ready to print.

    Members:
        guessed: the last token of the piece was an accepted guess.
    """

    guessed: bool

    def __new__(cls, text: str, *, guessed: bool) -> Self:
        piece = super().__new__(cls, text)
        piece.guessed = guessed
        return piece


class AnswerStream(Iterator[Piece]):
    """The pieces of an answer, each as soon as it is written. ``answer`` grows with them.

    The figures and the reason of the end are in ``answer`` once the iteration has ended, or the stream was closed. A loop
    that may be left early stands in a ``with`` block, which closes the stream:

        with session.stream("Once upon a time") as stream:
            for piece in stream:
                ...
    """

    def __init__(self, answer: Answer, pieces: Generator[Piece]) -> None:
        self.answer, self._pieces = answer, pieces

    def __next__(self) -> Piece:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the answer where it is, as interrupted. A second call, or one after the end, does nothing."""
        self._pieces.close()
