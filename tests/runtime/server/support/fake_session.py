"""A session without a model, whose answers go on step by step as a test allows."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import nullcontext
from types import SimpleNamespace, TracebackType
from typing import Self, cast

import numpy as np

from edgedec.runtime.base.pause import Pause
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.protocols import I32
from edgedec.runtime.session.answer import Answer, Piece, Timings
from edgedec.runtime.session.session import Session
from edgedec.runtime.text_settings import TextSettings

CONTEXT = 64


class ScriptedStream:
    """An answer, as ``AnswerStream`` has it."""

    def __init__(self, answer: Answer, steps: Generator[Piece | None]) -> None:
        self.answer, self._steps = answer, steps
        self.ended = False
        self._pieces: list[Piece] = []
        self._error: Exception | None = None

    def step(self) -> None:
        try:
            if (piece := next(self._steps)) is not None:
                self._pieces.append(piece)
        except StopIteration:
            self.ended = True
        except Exception as error:
            self.ended, self._error = True, error

    def take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        if not pieces and self._error is not None:
            raise self._error
        return pieces

    def close(self) -> None:
        if not self.ended:
            self.ended, self.answer.stop_reason = True, "interrupted"
        self._steps.close()


class ScriptedMemory:
    """A session's memory of which nothing can be given back.

    Members:
        moved: True once the rows of ended texts were moved to the disk.
    """

    idle_bytes = kept_bytes = drafter_bytes = parkable_bytes = parked = 0

    def __init__(self) -> None:
        self.moved = False

    def release_drafter(self) -> None:
        raise AssertionError("there is no drafter")

    def park(self) -> None:
        raise AssertionError("no text can pause")

    def unpark(self) -> None:
        assert not self.parked

    def move_to_disk(self) -> None:
        self.moved = True


class ScriptedSession:
    """Writes "<sample>.<number> " for each token, after one pass over the prompt.

    Parameters:
        steps: number of permits at the beginning.
        sequences: number of answers at a time.
        budget_bytes: memory budget, of which the model takes 900 bytes.

    Members:
        steps: permits; each pass over a prompt and each token takes one. Release many to let answers run.
        began: set when an answer begins.
        answers: every answer that was begun.
        failure: raised by the next pass, if it is set.
        closed: True after the end of the session.
        refusal: raised by the compilation of grammars, if it is set.
        compiling: grammars are compiled once this is set, as it is at first.
        prepared: True once the vocabulary was read for grammars.
        memory: memory of which nothing can be given back.
        pause: set when something has changed that the next step is to see.
        texts: the settings of these answers.
    """

    def __init__(self, steps: int = 1 << 20, sequences: int = 1, budget_bytes: int | None = None) -> None:
        self.steps = threading.Semaphore(steps)
        self.began = threading.Event()
        self.answers: list[Answer] = []
        self.failure: Exception | None = None
        self.refusal: Exception | None = None
        self.compiling = threading.Event()
        self.compiling.set()
        self.prepared = False
        self.embedding_layer, self.embedding_size = "", 0
        self.closed, self.memory, self.pause = False, ScriptedMemory(), Pause()
        self._streams: list[ScriptedStream] = []
        self.texts: list[TextSettings] = []
        self.meter = SimpleNamespace(watched=nullcontext(), measured_bytes=0, peak_bytes=0)
        self.scheduler = SimpleNamespace(step=self.step, engine=SimpleNamespace(passes=0))
        self.tokenizer = SimpleNamespace(
            token_of=lambda token: f"<{token}>",
            id_of=lambda token: None,
            encode=lambda text, add_special=True: np.arange(len(text.split()), dtype=np.int32),
            encode_rendered=lambda text: np.arange(len(text.split()), dtype=np.int32),
            decode=lambda ids: " ".join(f"<{token}>" for token in ids),
        )
        self.bundle = SimpleNamespace(
            tokens=SimpleNamespace(size=100, bos=0, eos=(1,)),
            config={"model_type": "scripted"},
            parameters=1000,
            bits_per_weight=8.0,
            file_bytes={"weights.bin": 1000},
            sha256="0" * 64,
            chat_template="{% for message in messages %}{{ message['role'] }} {{ message['content'] }}\n{% endfor %}",
        )
        self.run = SimpleNamespace(
            limits=SimpleNamespace(positions=CONTEXT),
            spec=SimpleNamespace(drafter_name="none"),
            plan=SimpleNamespace(
                total_bytes=1000, budget_bytes=budget_bytes, phases={"run": {"weights": 900, "host": 100}}
            ),
            sequences=sequences,
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

    def write(self, prompt: I32, text: TextSettings) -> ScriptedStream:
        self.texts.append(text)
        answer = Answer()
        answer.timings = Timings(prompt_n=len(prompt), prompt_ms=1.0, predicted_ms=1.0)
        self.answers.append(answer)
        stream = ScriptedStream(answer, self._steps_of(answer, prompt, text))
        self._streams.append(stream)
        self.began.set()
        return stream

    def prepare_grammars(self) -> None:
        self.prepared = True

    def compile(self, grammar: Grammar) -> Grammar:
        """Return the grammar itself, after ``compiling`` has been set."""
        self.compiling.wait(30)
        if isinstance(self.refusal, Exception):
            raise self.refusal
        return grammar

    def step(self) -> None:
        """Let every answer go on by one pass, as far as there are permits; wait a little if there is none."""
        self._streams = [stream for stream in self._streams if not stream.ended]
        for stream in self._streams:
            stream.step()

    def _steps_of(self, answer: Answer, prompt: I32, text: TextSettings) -> Generator[Piece | None]:
        tokens = text.n_predict if text.n_predict >= 0 else CONTEXT - len(prompt)
        for number in range(-1, tokens):
            while not self.steps.acquire(timeout=0.002) and not text.interrupted():
                yield None
            if text.interrupted():
                answer.stop_reason = "interrupted"
                return
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
            if number >= 0:
                answer.tokens.append(number)
                answer.drafted.append(False)
                answer.text += f"{text.sample}.{number} "
                answer.timings.predicted_n = len(answer.tokens)
                yield Piece(f"{text.sample}.{number} ", guessed=False, tokens=len(answer.tokens))
        answer.stop_reason = "limit" if text.n_predict >= 0 else "context"
