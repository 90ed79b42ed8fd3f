"""The model of the server: the thread that runs it, and the side of it that asyncio sees.

``ModelService`` is the only class that runs a ``Session``. Requests are admitted together or not at all, wait in a bounded
queue, and are answered as many at a time as the session was opened for; each answer arrives as a series of events. A
submission that is cancelled leaves the queue at once, or ends before the next pass of the model.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, nullcontext
from typing import Literal

from edgedec.errors import EdgedecError
from edgedec.memory.heap import release_garbage
from edgedec.runtime.base.pause import Pause
from edgedec.runtime.engine.ledger import AdmissionError
from edgedec.runtime.server.errors import ApiError, model_not_loaded, server_ending, short_of_memory
from edgedec.runtime.server.memory import ServerMemory
from edgedec.runtime.server.metrics import Metrics
from edgedec.runtime.server.model_text import ModelFacts, ModelText
from edgedec.runtime.server.side_work import SideWork
from edgedec.runtime.server.submission import QueuedText, Submission, TextRequest, may_begin, queue_fairly, take
from edgedec.runtime.server.texts import RunningTexts
from edgedec.runtime.server.turns import CLIENT
from edgedec.runtime.session.session import Session

__all__ = ["ModelService", "ServicePhase"]

ServicePhase = Literal["loading", "ready", "unloaded", "failed", "closed"]
_LOG = logging.getLogger(__name__)
_KEPT_SHARE = 8  # one of so many places in the queue is kept for clients other than one who has requests there
_WORK_S = (
    0.05  # seconds between looks for the end of work on which a text waits for memory; its end wakes the thread, too
)
_RECOVERY_S = 1.0  # seconds between looks at the memory of an idle server that has given some back
_LONGEST_WAIT_S = 60  # seconds of a Retry-After header at most


class ModelService:
    """The thread that loads, runs and unloads the model.

    Parameters:
        open_session: loads the model; called in the thread, again after each unloading.
        queue_limit: maximum number of requests that wait.
        idle_unload_s: seconds without a request after which the model is unloaded; 0: never.
        metrics: receives the figures of the answers.
        memory: the ledger of the model and its requests.
        chat_template: source of a template in place of the model's own; None: its own.

    Members:
        side_work: the work on requests beside the model.
        loaded: future of the first loading, which has the error if it fails.
        facts: properties of the model; None before the first loading.
        slots: number of requests that are answered at a time; 0 before the first loading.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        *,
        queue_limit: int = 64,
        idle_unload_s: float = 0.0,
        metrics: Metrics | None = None,
        memory: ServerMemory | None = None,
        chat_template: str | None = None,
    ) -> None:
        self._open_session, self._chat_template = open_session, chat_template
        self.memory = memory or ServerMemory()
        self.memory.wake, self.memory.writes = self._wake, lambda: bool(self.running)
        self.queue_limit, self.idle_unload_s = queue_limit, idle_unload_s
        self.side_work = SideWork()
        self.metrics = metrics or Metrics()
        self._changed = threading.Condition()  # guards the members below
        self._waiting: deque[QueuedText] = deque()
        self._texts: RunningTexts | None = None  # the loaded model writes them
        self._pause: Pause | None = None  # ends the rounds of the texts
        self._users = 0  # requests that use the tokenizer or wait for the model
        self._wanted = True  # the model is to be loaded
        self.facts: ModelFacts | None = None
        self._text: Future[ModelText] = Future()  # the loaded model; a new future after each unloading
        self._idle_since = time.monotonic()
        self._closing = self._ended = False  # the latter once the thread answers nothing any more
        self._phase: ServicePhase = "loading"
        self.loaded: Future[None] = Future()
        self.slots = 0
        self._thread = threading.Thread(target=self._run, name="edgedec-model", daemon=True)

    def start(self) -> None:
        """Start the thread, which loads the model."""
        self.memory.watch.start()
        self._thread.start()

    def _wake(self) -> None:
        with self._changed:
            self._notify()

    def _notify(self) -> None:
        """Let the model's thread see what has changed, after the round that is running. The caller holds ``_changed``."""
        if self._pause is not None:
            self._pause.set()
        self._changed.notify_all()

    def close(self) -> None:
        """End the answer that is being written, forget those that wait, and free the model."""
        with self._changed:
            self._closing = True
            turns = [*self._waiting, *(self._texts.turns if self._texts is not None else ())]
            self._waiting.clear()
            self._notify()
        for turn in turns:
            turn.submission.post(server_ending())
        if self._thread.is_alive():
            self._thread.join()
        self.side_work.close()
        self.memory.watch.close()

    @property
    def alive(self) -> bool:
        """False once the model's thread has failed, so that nothing will be answered any more."""
        return self._closing or not self._ended

    @property
    def phase(self) -> ServicePhase:
        """The state of the model."""
        return self._phase

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests that are being answered."""
        return len(self._texts or ())

    @asynccontextmanager
    async def text(self) -> AsyncIterator[ModelText]:
        """Wait until the model is loaded, and keep it loaded within the block.

        Raises:
            ApiError: the model is being loaded for the first time, or cannot be loaded; the status is 503.
        """
        if not self.loaded.done():
            raise ApiError(503, "the model is being loaded", code="model_loading", headers={"Retry-After": "1"})
        with self._changed:
            self._users += 1
            self._wanted = True
            future = self._text
            self._changed.notify_all()
        try:
            try:
                text = await asyncio.shield(asyncio.wrap_future(future))
            except EdgedecError as error:
                raise model_not_loaded(error) from error
            yield text
        finally:
            with self._changed:
                self._users -= 1
                self._idle_since = time.monotonic()
                self._changed.notify_all()

    def submit(self, requests: Sequence[TextRequest]) -> Submission:
        """Put requests into the queue, all or none. Call it within ``text``.

        Raises:
            ApiError: there are more requests than the server takes at once (status 400), or no room now (429).
        """
        if len(requests) > self.queue_limit:
            raise ApiError(
                400, f"the request asks for {len(requests)} texts, at most {self.queue_limit} are accepted at once"
            )
        submission = Submission(requests, withdraw=self.withdraw)
        with self._changed:
            if self._closing:
                raise server_ending()
            if not self.alive:  # nobody would answer
                raise model_not_loaded(RuntimeError())
            free = max(0, self.slots - self.running)  # places that the next step gives to waiting requests
            own = sum(turn.client == CLIENT.get() for turn in self._waiting)
            most = self.queue_limit - self.queue_limit // _KEPT_SHARE
            if own and most < own + len(requests) - free <= self.queue_limit:
                raise ApiError(
                    429,
                    f"{own} requests of this client wait already, of the {self.queue_limit} places in the queue it may have "
                    f"{most}; try again later",
                    code="queue_full",
                    headers={"Retry-After": str(self._retry_seconds())},
                )
            if len(self._waiting) + len(requests) > self.queue_limit + free:
                raise ApiError(
                    429,
                    f"{len(self._waiting)} requests wait already, the queue holds {self.queue_limit}; try again later",
                    code="queue_full",
                    headers={"Retry-After": str(self._retry_seconds())},
                )
            queue_fairly(self._waiting, submission.turns)
            self._notify()
        return submission

    def withdraw(self, submission: Submission) -> None:
        """Take the requests of a submission, and of no other, out of the queue."""
        with self._changed:
            kept = [turn for turn in self._waiting if turn.submission is not submission]
            self._waiting.clear()
            self._waiting.extend(kept)
            self._notify()  # some of its texts may be written
        if submission.error is None:  # one that failed is withdrawn as well
            self.metrics.count_cancelled()

    def _retry_seconds(self) -> int:
        seconds = self.metrics.mean_answer_seconds * (len(self._waiting) + 1)
        return max(1, min(_LONGEST_WAIT_S, math.ceil(seconds)))

    # The model's thread.

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self._awaits_load():
                session = self._load()
                if session is not None:
                    self._use(session)
                    session = None  # frees the model before the next one is loaded
                    release_garbage()
                    _LOG.info("the model is unloaded")
                elif self.loaded.exception() is not None:  # the server ends with this error
                    return
        except BaseException as error:
            failure = error
            _LOG.exception("the model's thread has failed, and answers nothing any more")
        finally:
            self._end(failure)

    def _end(self, failure: BaseException | None) -> None:
        """Tell all who wait that the model's thread has ended; None: the service is closed, or the first loading failed."""
        with self._changed:
            self._ended = True
            if failure is not None:
                self._phase = "failed"
            error = server_ending() if failure is None else model_not_loaded(failure)
            turns, future = list(self._waiting), self._text
            self._waiting.clear()
            if not future.done():
                future.set_exception(error)
        for turn in turns:
            turn.submission.post(error)

    def _use(self, session: Session) -> None:
        """Answer requests, and unload the model. If that fails, those who wait for it are told, and it is loaded again."""
        try:
            with session:
                self._serve(session)
                if not self._closing:
                    session.memory.move_to_disk()
        except Exception as error:
            _LOG.exception("the model could not be unloaded in order")
            with self._changed:
                if self._text.done():  # it had not been unloaded yet
                    self._phase, self._text, self._wanted = "unloaded", Future(), bool(self._users)
            self._fail_first(error)
        finally:
            self.memory.unload()

    def _fail_first(self, error: Exception) -> None:
        """Tell the request that has waited longest that it failed, so that no failure repeats itself for ever."""
        with self._changed:
            turn = self._waiting.popleft() if self._waiting else None
        if turn is not None:
            turn.submission.post(error)

    def _awaits_load(self) -> bool:
        """Wait until the model is to be loaded, and return True; or return False if the service is closing."""
        with self._changed:
            while not (self._wanted or self._waiting or self._closing):
                self._changed.wait()
            self._phase = "closed" if self._closing else "loading"
            return not self._closing

    def _load(self) -> Session | None:
        """Return the loaded model; None if it cannot be loaded, which fails all who wait for it."""
        future = self._text
        try:
            with ExitStack() as opened:  # closes the session if what follows fails
                session = self._open_session()
                opened.push(session)
                _prepare_grammars(session)
                text = ModelText(session, self._chat_template)
                self.memory.load(session.run.plan, session.memory, self.side_work.grammars, session.meter)
                opened.pop_all()
        except BaseException as error:
            if not isinstance(error, EdgedecError):
                _LOG.exception("the model cannot be loaded")
            with self._changed:
                first = not self.loaded.done()
                self._phase = "failed" if first else "unloaded"
                self._text, self._wanted = Future(), False
                turns = list(self._waiting)
                self._waiting.clear()
            for turn in turns:
                turn.submission.post(model_not_loaded(error))
            future.set_exception(error)
            if first:
                self.loaded.set_exception(error)
            return None
        self.facts = text.facts
        with self._changed:
            self._idle_since = time.monotonic()
            self._phase, self.slots = "ready", session.run.sequences
        future.set_result(text)
        if not self.loaded.done():
            self.loaded.set_result(None)
        _LOG.info("the model is loaded")
        return session

    def _serve(self, session: Session) -> None:
        """Answer requests until the service is closed, or nothing was asked for ``idle_unload_s`` seconds."""
        texts = self._texts = RunningTexts(
            session, metrics=self.metrics, closing=lambda: self._closing, threads=self.side_work.grammar_threads
        )
        with self._changed:
            self._pause, self.side_work.watched = session.pause, session.meter.watched
        try:
            while self._await_work(texts):
                try:
                    with self.side_work.watched:
                        self._work(session, texts)
                except Exception as error:  # it belongs to no request that is known
                    _LOG.exception("the model's thread has ended its texts after a failure, and goes on")
                    texts.close(error)
                    self._fail_first(error)
        finally:
            texts.close(server_ending())
            with self._changed:
                self._texts = self._pause = None
                self.side_work.watched = nullcontext()

    def _work(self, session: Session, texts: RunningTexts) -> None:
        """Give memory back if it is short, begin what there is room for, and run one pass of the model."""
        try:
            if self.memory.pressed:
                self.memory.relieve()
            self.memory.recover()
        except Exception:  # texts do not depend on it
            _LOG.exception("memory could not be given back, or taken again")
        while turn := self._admitted(session, texts):
            try:
                texts.begin(turn)
            except Exception as error:
                turn.fail(error)
                raise
        if texts:
            texts.step()
            self._idle_since = time.monotonic()

    def _await_work(self, texts: RunningTexts) -> bool:
        """Wait until there is something to do; return False if the service is closing, or the model is to be unloaded."""
        with self._changed:
            if self._pause is not None:
                self._pause.clear()  # before what has changed is looked at
            while not self._closing:
                if self._waiting and not texts and self.memory.text_waits_for_work:
                    self._changed.wait(_WORK_S)
                    return True
                if self._waiting or texts or self.memory.pressed:
                    return True
                self.memory.text_waits_for_work = False
                left = _RECOVERY_S if self.memory.recovering else None
                if self.idle_unload_s and not self._users:
                    unload = self._idle_since + self.idle_unload_s - time.monotonic()
                    if unload <= 0:  # later requests wait for the next loading
                        self._phase, self._text, self._wanted = "unloaded", Future(), False
                        return False
                    left = unload if left is None else min(left, unload)
                self._changed.wait(left)
                if self.memory.recovering:
                    return True
            return False

    def _admitted(self, session: Session, texts: RunningTexts) -> QueuedText | None:
        """Take the next request that has room out of the queue; None if there is none, or all must wait for others to end.

        One that waits for memory, such as that of a large grammar, lets requests of other clients pass.
        """
        while True:
            waits_for_work = False
            with self._changed:
                turns = [turn for turn in may_begin(self._waiting) if texts.has_place(turn)]
            for turn in turns:
                # Reclaiming memory may write to the disk, during which requests may come and leave.
                refusal: Exception | None = None
                try:
                    most = turn.most_bytes(session.run.limits.positions)
                    turn.memory = self.memory.admit(most, alone=not texts, lexer=turn.lexer_bytes)
                    if turn.memory is None:
                        waits_for_work |= not texts
                        continue
                except AdmissionError as error:
                    refusal = short_of_memory(
                        error, self.memory.retry_seconds, texts=self.slots, lexer_bytes=turn.lexer_bytes
                    )
                with self._changed:
                    there = take(self._waiting, turn)
                if there and refusal is None:
                    self.memory.text_waits_for_work = False
                    return turn
                if refusal is not None and there:
                    turn.submission.post(refusal)
                turn.free()  # it was refused, or its client left meanwhile
                break
            else:
                self.memory.text_waits_for_work = waits_for_work
                return None


def _prepare_grammars(session: Session) -> None:
    """Read the vocabulary before the model is ready; later all texts would wait for it."""
    try:
        session.prepare_grammars()
    except EdgedecError as error:  # requests with a grammar get this error
        _LOG.info("answers cannot follow grammars: %s", error)
