"""The texts that the loaded model is writing for requests: their beginning, their events, and their end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import partial

from edgedec.errors import EdgedecError
from edgedec.memory.heap import trim_heap
from edgedec.runtime.grammar.compiler import CompiledGrammar
from edgedec.runtime.server.errors import ApiError, from_edgedec, late_grammar, server_ending
from edgedec.runtime.server.metrics import Metrics
from edgedec.runtime.server.submission import QueuedText, Submission, TextEnd, TextEvent, TextPart, post_all
from edgedec.runtime.server.turns import FairThreads
from edgedec.runtime.session.answer import Answer, AnswerStream
from edgedec.runtime.session.session import Session

__all__ = ["GRAMMAR_S", "MUCH_BYTES", "RunningTexts"]

MUCH_BYTES = 1 << 20  # reserved bytes after whose use freed memory is given back to the system
GRAMMAR_S = 30.0  # seconds in which a grammar must be ready, with the grammars that are made before it

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 0.01  # seconds for which the model's thread waits for a grammar before it looks for other work


class RunningTexts:
    """The texts that are being written. All methods but ``len`` and ``turns`` are called in the model's thread.

    A grammar is compiled in another thread before its text begins, which may take half a second, while others go on.

    Parameters:
        session: the loaded model.
        metrics: receives the figures of the answers.
        closing: returns True when all texts must end.
        threads: compile grammars.
    """

    def __init__(
        self, session: Session, *, metrics: Metrics, closing: Callable[[], bool], threads: FairThreads
    ) -> None:
        self._session, self._metrics, self._closing, self._threads = session, metrics, closing, threads
        # Both lists are replaced and never changed, because other threads read them.
        self._running: list[tuple[QueuedText, AnswerStream]] = []
        self._compiling: list[tuple[QueuedText, Future[CompiledGrammar]]] = []
        self._new: list[tuple[Submission, TextEvent | Exception]] = []  # events of this step
        self._ended: list[QueuedText] = []  # texts of this step whose memory is still reserved

    def __len__(self) -> int:
        return len(self._running) + len(self._compiling)

    @property
    def turns(self) -> list[QueuedText]:
        """The turns of the texts."""
        return [turn for turn, _ in (*self._running, *self._compiling)]

    def has_place(self, turn: QueuedText) -> bool:
        """Return True if a text may begin. One whose grammar is being compiled takes no place from one without a grammar."""
        compiled = sum(future.done() for _, future in self._compiling)
        taken = len(self._running) + compiled if turn.request.grammar is None else len(self)
        return taken < self._session.run.sequences

    def step(self) -> None:
        """Run one pass of the model, if there is a text, and post what is new of each."""
        if self._compiling:
            self._begin_compiled()
        if self._running:
            engine = self._session.scheduler.engine
            running, passes = len(self._running), engine.passes
            try:
                self._session.scheduler.step()
                self._metrics.count_passes(engine.passes - passes, running)
            except Exception as error:
                self._fail_all(error)
        self._report_all()
        self._free_ended()
        self._post_new()

    def close(self, error: Exception) -> None:
        """End all texts, and tell their clients why. Those of answers that have ended were told already."""
        self._fail_all(error)
        for turn, future in self._compiling:
            future.cancel()
            turn.submission.post(_shown(error))
            future.add_done_callback(partial(_free, turn))  # at once, unless its thread goes on
        self._compiling = []
        self._free_ended()
        self._post_new()

    def begin(self, turn: QueuedText) -> None:
        """Begin the text of a turn, which has its memory. If that fails, its client is told."""
        grammar = turn.request.grammar
        if grammar is None:
            self._start(turn, None)
            return
        try:
            future = self._threads.submit_for(turn.client, self._session.compile, grammar)
        except RuntimeError as error:  # the system starts no further thread
            turn.fail(_shown(error))
            return
        future.add_done_callback(lambda done: self._session.pause.set())
        self._compiling = [*self._compiling, (turn, future)]
        turn.compiled_until = time.monotonic() + GRAMMAR_S

    def _begin_compiled(self) -> None:
        """Begin the texts whose grammars are compiled, if there are places for them, and give up those that are late.

        Wait a moment for a grammar if there is nothing else to do.
        """
        wait([future for _, future in self._compiling], 0 if self._running else _PATIENCE_S, FIRST_COMPLETED)
        now = time.monotonic()
        for turn, future in self._compiling:
            if not (turn.submission.cancelled or turn.given_up):
                if future.done():
                    if len(self._running) >= self._session.run.sequences:
                        continue  # until a text without a grammar, which began meanwhile, has ended
                elif now <= turn.compiled_until:
                    continue
                else:
                    turn.given_up = True
                    turn.submission.post(late_grammar(GRAMMAR_S))
            given_up = turn.given_up or turn.submission.cancelled
            if given_up and not (future.done() or future.cancel()):
                continue  # its thread goes on, and holds the memory until its end
            self._compiling = [pair for pair in self._compiling if pair[0] is not turn]
            if given_up:
                turn.free()
                continue
            try:
                compiled = future.result()
            except Exception as error:
                turn.fail(_shown(error))
            else:
                self._start(turn, compiled)

    def _start(self, turn: QueuedText, grammar: CompiledGrammar | None) -> None:
        request, submission = turn.request, turn.submission
        try:
            text = replace(
                request.text,
                n_predict=1 if turn.silent else request.text.n_predict,
                grammar=grammar,
                progress=lambda label, done, total: turn.read(done),
                interrupted=lambda: submission.cancelled or self._closing(),
                on_rows=None if turn.pooled is None else turn.pooled.add,
            )
            stream = self._session.write(request.prompt, text)
        except Exception as error:  # the thread goes on, whatever happens to one request
            turn.fail(_shown(error))
        else:
            self._running = [*self._running, (turn, stream)]

    def _report_all(self) -> None:
        for turn, stream in self._running:
            try:
                self._report(turn, stream)
            except Exception as error:  # the other texts go on
                self._fail(turn, stream, error)

    def _report(self, turn: QueuedText, stream: AnswerStream) -> None:
        """Post what is new of an answer, and forget it when it has ended."""
        submission, answer = turn.submission, stream.answer
        if submission.cancelled:
            stream.close()
        ended = stream.ended
        if answer.tokens:
            turn.begin_text()
        turn.written = 0 if turn.silent else len(answer.tokens)
        try:
            for piece in stream.take():
                if turn.silent:
                    continue
                first = turn.told == 0 and turn.request.text.prompt_logprobs
                part = slice(turn.told, piece.tokens)
                turn.told = piece.tokens
                self._tell(
                    turn,
                    TextPart(
                        index=turn.index,
                        text=str(piece),
                        tokens=tuple(answer.tokens[part]),
                        guessed=piece.guessed,
                        logprobs=tuple(answer.logprobs[part]),
                        prompt_logprobs=tuple(stream.prompt_logprobs) if first else (),
                        progress=turn.clock.written(turn.told) if turn.request.reports_timings else None,
                    ),
                )
            if not ended:
                return
            stream.take()  # raises the error of an answer that failed
        except Exception as error:
            self._forget(turn)  # before its client knows, so that the client's next request finds the place free
            self._tell(turn, _shown(error))
        else:
            self._metrics.count_answer(answer.timings, seconds=time.monotonic() - turn.began)
            self._forget(turn)
            self._tell(turn, _end(turn, answer) if answer.stop_reason != "interrupted" else server_ending())

    def _tell(self, turn: QueuedText, event: TextEvent | Exception) -> None:
        """Post an event at the end of the step, with those of the other texts."""
        self._new.append((turn.submission, event))

    def _post_new(self) -> None:
        new, self._new = self._new, []
        post_all(new)

    def _forget(self, turn: QueuedText) -> None:
        self._ended.append(turn)
        self._running = [pair for pair in self._running if pair[0] is not turn]

    def _free_ended(self) -> None:
        """Give back the memory of the texts that have ended. Nothing refers to their streams and matchers any more."""
        freed = sum(turn.memory.nbytes for turn in self._ended if turn.memory is not None)
        if freed >= MUCH_BYTES:
            trim_heap()
        for turn in self._ended:
            turn.free()
        self._ended.clear()

    def _fail(self, turn: QueuedText, stream: AnswerStream, error: Exception) -> None:
        """End a text, whatever state it is in, and tell its client why."""
        self._forget(turn)
        try:
            stream.close()
        except Exception:
            _LOG.exception("a text could not be ended")
        self._tell(turn, _shown(error))

    def _fail_all(self, error: Exception) -> None:
        """End all answers that are being written, for a reason that belongs to none of them."""
        for turn, stream in self._running:
            self._fail(turn, stream, error)


def _free(turn: QueuedText, compiled: Future[CompiledGrammar]) -> None:
    """Give the memory of a text back whose grammar nobody waits for."""
    turn.free()


def _end(turn: QueuedText, answer: Answer) -> TextEnd:
    prompt = tuple(answer.prompt_logprobs)
    if turn.silent:
        answer = Answer(timings=replace(answer.timings, predicted_n=0, predicted_ms=0.0))
    return TextEnd(
        index=turn.index,
        answer=answer,
        tokens=tuple(answer.tokens[turn.told :]),
        logprobs=tuple(answer.logprobs[turn.told :]),
        prompt_logprobs=prompt,
        pooled=turn.pooled,
    )


def _shown(error: Exception) -> Exception:
    """Return the error that a client sees; one that is not expected is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EdgedecError):
        return from_edgedec(error)
    _LOG.error("a request failed", exc_info=error)
    return error
