"""The texts that the loaded model is writing for requests: their beginning, their events, and their end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from edgedec.errors import EdgedecError
from edgedec.runtime.answer import Answer, AnswerStream
from edgedec.runtime.server.errors import from_edgedec
from edgedec.runtime.server.metrics import Metrics
from edgedec.runtime.server.submission import QueuedText, TextEnd, TextPart
from edgedec.runtime.session import Session

__all__ = ["RunningTexts"]

_LOG = logging.getLogger(__name__)


class RunningTexts:
    """The texts that are being written. All methods but ``len`` and ``turns`` are called in the model's thread.

    Parameters:
        session: the loaded model.
        metrics: receives the figures of the answers.
        closing: returns True when all texts must end.
    """

    def __init__(self, session: Session, *, metrics: Metrics, closing: Callable[[], bool]) -> None:
        self._session, self._metrics, self._closing = session, metrics, closing
        self._running: list[tuple[QueuedText, AnswerStream]] = []  # replaced, never changed: others read it

    def __len__(self) -> int:
        return len(self._running)

    @property
    def turns(self) -> list[QueuedText]:
        """The turns of the texts."""
        return [turn for turn, _ in self._running]

    def step(self) -> None:
        """Run one pass of the model, if there is a text, and post what is new of each."""
        if self._running:
            try:
                self._metrics.count_step(len(self._running))
                self._session.scheduler.step()
            except Exception as error:
                self._fail_all(error)
        for turn, stream in self._running:
            self._report(turn, stream)

    def close(self) -> None:
        """End all texts."""
        for turn, stream in self._running:
            stream.close()
            turn.free()
        self._running = []

    def begin(self, turn: QueuedText) -> None:
        """Begin the text of a turn, which has its memory. If that fails, its client is told."""
        request, submission = turn.request, turn.submission
        try:
            stream = self._session.stream(
                request.prompt,
                n_predict=1 if turn.silent else request.n_predict,
                sampling=request.sampling,
                stop=request.stop,
                ignore_eos=request.ignore_eos,
                grammar=request.grammar,
                sample=request.sample,
                logprobs=request.logprobs,
                prompt_logprobs=request.prompt_logprobs,
                interrupted=lambda: submission.cancelled or self._closing(),
            )
        except Exception as error:  # the thread goes on, whatever happens to one request
            turn.free()
            submission.post(_shown(error))
        else:
            self._running = [*self._running, (turn, stream)]

    def _report(self, turn: QueuedText, stream: AnswerStream) -> None:
        """Post what is new of an answer, and forget it when it has ended."""
        submission, answer = turn.submission, stream.answer
        if submission.cancelled:
            stream.close()
        ended = stream.ended
        try:
            for piece in stream.take():
                if turn.silent:
                    continue
                part = slice(turn.told, piece.tokens)
                turn.told = piece.tokens
                submission.post(
                    TextPart(
                        index=turn.index,
                        text=str(piece),
                        tokens=tuple(answer.tokens[part]),
                        guessed=piece.guessed,
                        logprobs=tuple(answer.logprobs[part]),
                    )
                )
            if not ended:
                return
            stream.take()  # raises the error of an answer that failed
        except Exception as error:
            submission.post(_shown(error))
        else:
            self._metrics.count_answer(answer.timings, seconds=time.monotonic() - turn.began)
            if answer.stop_reason != "interrupted":  # else nobody waits for it, or ``close`` has said so
                submission.post(_end(turn, answer))
        self._forget(turn)

    def _forget(self, turn: QueuedText) -> None:
        turn.free()
        self._running = [pair for pair in self._running if pair[0] is not turn]

    def _fail_all(self, error: Exception) -> None:
        """End all answers after a failure that belongs to none of them."""
        for turn, stream in self._running:
            turn.submission.post(_shown(error))
            stream.close()
            turn.free()
        self._running = []


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
    )


def _shown(error: Exception) -> Exception:
    """Return the error that a client sees; one that is not expected is logged."""
    if isinstance(error, EdgedecError):
        return from_edgedec(error)
    _LOG.error("a request failed", exc_info=error)
    return error
