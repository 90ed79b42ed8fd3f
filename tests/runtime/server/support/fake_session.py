"""A session without a model, whose answers go on step by step as a test allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, Self, cast

import numpy as np

from edgedec.runtime.answer import Answer, Piece, Timings
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session

CONTEXT = 64


class ScriptedStream(Iterator[Piece]):
    """The pieces of an answer, as ``AnswerStream`` has them."""

    def __init__(self, answer: Answer, pieces: Generator[Piece]) -> None:
        self.answer, self._pieces = answer, pieces

    def __next__(self) -> Piece:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pieces.close()


class ScriptedSession:
    """Writes "<sample>.<number> " for each token, after one pass over the prompt.

    Members:
        steps: permits of passes; each pass and each token takes one. Release many to let answers run.
        began: set when an answer begins.
        answers: every answer that was begun.
        failure: raised by the next pass, if it is set.
        closed: True after the end of the session.
    """

    def __init__(self, steps: int = 1 << 20) -> None:
        self.steps = threading.Semaphore(steps)
        self.began = threading.Event()
        self.answers: list[Answer] = []
        self.failure: Exception | None = None
        self.closed = False
        self.tokenizer = SimpleNamespace(
            token_of=lambda token: f"<{token}>",
            encode=lambda text, add_special=True: np.arange(len(text.split()), dtype=np.int32),
            encode_rendered=lambda text: np.arange(len(text.split()), dtype=np.int32),
            decode=lambda ids: " ".join(f"<{token}>" for token in ids),
        )
        self.bundle = SimpleNamespace(
            tokens=SimpleNamespace(size=100, bos=0, eos=(1,)),
            chat_template="{% for message in messages %}{{ message['role'] }} {{ message['content'] }}\n{% endfor %}",
        )
        self.run = SimpleNamespace(
            limits=SimpleNamespace(positions=CONTEXT),
            spec=SimpleNamespace(drafter_name="none"),
            plan=SimpleNamespace(total_bytes=1000),
        )

    @property
    def real(self) -> Session:
        """The session, under the type that the service takes."""
        return cast(Session, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True

    def may_fit(self, text: str) -> bool:
        return len(text) <= CONTEXT * 32

    def stream(
        self,
        prompt: I32,
        *,
        n_predict: int,
        sampling: SamplingConfig,
        stop: Sequence[str],
        ignore_eos: bool,
        sample: int,
        interrupted: Callable[[], bool],
        **options: Any,
    ) -> ScriptedStream:
        answer = Answer()
        self.answers.append(answer)
        return ScriptedStream(answer, self._pieces(answer, prompt, n_predict, sample, interrupted))

    def _pieces(
        self, answer: Answer, prompt: I32, n_predict: int, sample: int, interrupted: Callable[[], bool]
    ) -> Generator[Piece]:
        answer.timings = Timings(prompt_n=len(prompt), prompt_ms=1.0, predicted_ms=1.0)
        self.began.set()
        try:
            self._pass(interrupted)
            for number in range(n_predict if n_predict >= 0 else CONTEXT - len(prompt)):
                self._pass(interrupted)
                answer.tokens.append(number)
                answer.drafted.append(False)
                answer.text += f"{sample}.{number} "
                yield Piece(f"{sample}.{number} ", guessed=False)
            answer.stop_reason = "limit" if n_predict >= 0 else "context"
        except InterruptedError:
            answer.stop_reason = "interrupted"
        answer.timings.predicted_n = len(answer.tokens)

    def _pass(self, interrupted: Callable[[], bool]) -> None:
        while not self.steps.acquire(timeout=0.002):
            if interrupted():
                raise InterruptedError
        if interrupted():
            raise InterruptedError
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
