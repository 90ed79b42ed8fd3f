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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Literal, ParamSpec, Self, TypeVar

from edgedec.errors import EdgedecError
from edgedec.runtime.answer import Answer, AnswerStream
from edgedec.runtime.engine.ledger import Reservation
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.logprobs import TokenLogprobs
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.server.errors import ApiError, from_edgedec
from edgedec.runtime.server.memory import ServerMemory, request_bytes
from edgedec.runtime.server.metrics import Metrics
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.session import Session

__all__ = [
    "GoneError",
    "ModelService",
    "ServicePhase",
    "Submission",
    "TextEnd",
    "TextPart",
    "TextRequest",
]

ServicePhase = Literal["loading", "ready", "unloaded", "failed", "closed"]
_LOG = logging.getLogger(__name__)
_TEXT_THREADS = 2
P = ParamSpec("P")
R = TypeVar("R")
_LONGEST_WAIT_S = 60  # seconds of a Retry-After header at most


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A prompt, and how it is to be continued. The members are the arguments of ``Session.stream``.

    Members:
        prompt: ids, int32 [n].
        n_predict: maximum number of tokens; negative: until the context is full.
        sampling: sampling options.
        stop: strings that end the answer.
        ignore_eos: continue after an end token.
        grammar: grammar that the answer follows; None: any text.
        sample: index of this text among several of one prompt and seed.
        logprobs: number of likeliest tokens to report with each token's log-probability; None reports none.
        prompt_logprobs: True to report the prompt's tokens as well, which reads all of it again.
    """

    prompt: I32
    n_predict: int
    sampling: SamplingConfig
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    grammar: Grammar | None = None
    sample: int = 0
    logprobs: int | None = None
    prompt_logprobs: bool = False


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """A part of an answer's text.

    Members:
        index: number of the answer's request in its submission.
        text: whole characters.
        tokens: ids that were written since the part before.
        guessed: whether the last of them was an accepted guess.
        logprobs: log-probabilities of these tokens; empty if they were not asked for.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    guessed: bool
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TextEnd:
    """The end of an answer.

    Members:
        index: number of the answer's request in its submission.
        answer: the whole answer, with its timings.
        tokens: ids after the last part, such as an end token.
        logprobs: log-probabilities of these tokens.
        prompt_logprobs: log-probabilities of the prompt's tokens after its first; empty if they were not asked for.
    """

    index: int
    answer: Answer
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class GoneError(Exception):
    """The submission was cancelled, usually because its client has left."""


TextEvent = TextPart | TextEnd


class Submission:
    """The answers to requests that were submitted together, as events in the order in which they are written.

    Use it as a context manager, which cancels what is left at its end. All methods are called in the loop's thread.
    """

    def __init__(self, service: ModelService, requests: Sequence[TextRequest]) -> None:
        self._service, self._loop = service, asyncio.get_running_loop()
        self._events: asyncio.Queue[TextEvent | Exception] = asyncio.Queue()
        self._open = len(requests)
        self.cancelled = False  # read by the model's thread
        self.turns = [_Work(submission=self, index=index, request=request) for index, request in enumerate(requests)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    @property
    def ended(self) -> bool:
        """True if all events were taken."""
        return not self._open

    def cancel(self) -> None:
        """End all answers. ``next`` raises ``GoneError`` from now on. After the last event this does nothing."""
        if self._open and not self.cancelled:
            self.cancelled = True
            self._service.withdraw(self)
            self._events.put_nowait(GoneError())

    async def next(self, timeout: float | None = None) -> TextEvent | None:
        """Return the next event; None if there was none within ``timeout`` seconds.

        Raises:
            GoneError: the submission was cancelled.
            EdgedecError, ApiError: an answer failed; the others are cancelled.
        """
        if self.cancelled:
            raise GoneError
        try:
            async with asyncio.timeout(timeout):
                event = await self._events.get()
        except TimeoutError:
            return None
        if isinstance(event, Exception):
            self.cancel()
            raise event
        if isinstance(event, TextEnd):
            self._open -= 1
        return event

    def post(self, event: TextEvent | Exception) -> None:
        """Append an event. This is called in the model's thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop is closed, so nobody waits for the answer
            self.cancelled = True


@dataclass(kw_only=True, eq=False)
class _Work:
    submission: Submission
    index: int
    request: TextRequest
    began: float = field(default_factory=time.monotonic)
    told: int = 0  # tokens that were in an event
    memory: Reservation | None = None

    def most_bytes(self, positions: int) -> int:
        """Return the most memory that the request takes outside the model, with a context of ``positions`` tokens."""
        request = self.request
        return request_bytes(
            prompt=len(request.prompt),
            answer=positions if request.n_predict < 0 else min(request.n_predict, positions),
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
        )

    def free(self) -> None:
        """Give the reserved memory back. A second call does nothing."""
        if self.memory is not None:
            self.memory.close()

    @property
    def silent(self) -> bool:
        """True if only the prompt's log-probabilities are wanted, for which one token must be written."""
        return self.request.prompt_logprobs and self.request.n_predict == 0


class ModelService:
    """The thread that loads, runs and unloads the model.

    Parameters:
        open_session: loads the model; called in the thread, again after each unloading.
        queue_limit: maximum number of requests that wait.
        idle_unload_s: seconds without a request after which the model is unloaded; 0: never.
        metrics: receives the figures of the answers.
        memory: the ledger of the model and its requests.

    Members:
        loaded: future of the first loading, which has the error if it fails.
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
    ) -> None:
        self._open_session = open_session
        self.memory = memory or ServerMemory()
        self.memory.wake = self._wake
        self.queue_limit, self.idle_unload_s = queue_limit, idle_unload_s
        self.metrics = metrics or Metrics()
        self._changed = threading.Condition()  # guards the members below
        self._waiting: deque[_Work] = deque()
        self._running: list[tuple[_Work, AnswerStream]] = []  # changed by the thread alone
        self._users = 0  # requests that use the tokenizer or wait for the model
        self._wanted = True  # the model is to be loaded
        self._text: Future[ModelText] = Future()  # the loaded model; a new future after each unloading
        self._idle_since = time.monotonic()
        self._closing = False
        self._phase: ServicePhase = "loading"
        self.loaded: Future[None] = Future()
        self.slots = 0
        self._text_threads = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="edgedec-text")
        self._thread = threading.Thread(target=self._run, name="edgedec-model", daemon=True)

    def start(self) -> None:
        """Start the thread, which loads the model."""
        self.memory.watch.start()
        self._thread.start()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the answer that is being written, forget those that wait, and free the model."""
        with self._changed:
            self._closing = True
            works = [*self._waiting, *(work for work, _ in self._running)]
            self._waiting.clear()
            self._changed.notify_all()
        for work in works:
            work.submission.post(GoneError())
        if self._thread.is_alive():
            self._thread.join()
        self._text_threads.shutdown(wait=False, cancel_futures=True)
        self.memory.watch.close()

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
        return len(self._running)

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
                raise _not_loaded(error) from error
            yield text
        finally:
            with self._changed:
                self._users -= 1
                self._idle_since = time.monotonic()
                self._changed.notify_all()

    async def in_thread(self, function: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """Return what ``function`` returns in a thread: work on texts, which may take a while and much memory.

        Only ``_TEXT_THREADS`` such calls run at a time, so that their memory is bounded however many requests there are.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._text_threads, partial(function, *args, **options))

    def submit(self, requests: Sequence[TextRequest]) -> Submission:
        """Put requests into the queue, all or none. Call it within ``text``.

        Raises:
            ApiError: there are more requests than the server takes at once (status 400), or no room now (429).
        """
        if len(requests) > self.queue_limit:
            raise ApiError(
                400, f"the request asks for {len(requests)} texts, at most {self.queue_limit} are accepted at once"
            )
        submission = Submission(self, requests)
        with self._changed:
            if self._closing:
                raise ApiError(503, "the server is ending; ask another one", code="shutting_down")
            if len(self._waiting) + len(requests) > self.queue_limit:
                raise ApiError(
                    429,
                    f"{len(self._waiting)} requests wait already, the queue holds {self.queue_limit}; try again later",
                    code="queue_full",
                    headers={"Retry-After": str(self._retry_seconds())},
                )
            self._waiting.extend(submission.turns)
            self._changed.notify_all()
        return submission

    def withdraw(self, submission: Submission) -> None:
        """Take the requests of a submission, and of no other, out of the queue."""
        with self._changed:
            kept = [work for work in self._waiting if work.submission is not submission]
            self._waiting.clear()
            self._waiting.extend(kept)
        self.metrics.count_cancelled()

    def _retry_seconds(self) -> int:
        seconds = self.metrics.mean_answer_seconds * (len(self._waiting) + 1)
        return max(1, min(_LONGEST_WAIT_S, math.ceil(seconds)))

    # The model's thread.

    def _run(self) -> None:
        while self._awaits_load():
            session = self._load()
            if session is None:
                if self.loaded.exception() is not None:  # the server ends with this error
                    return
                continue
            try:
                with session:
                    self.memory.load(session)
                    self._serve(session)
                    if not self._closing:
                        session.move_to_disk()
            finally:
                self.memory.unload()
            session = None  # frees the model before the next one is loaded
            _LOG.info("the model is unloaded")

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
            session = self._open_session()
        except BaseException as error:
            if not isinstance(error, EdgedecError):
                _LOG.exception("the model cannot be loaded")
            with self._changed:
                first = not self.loaded.done()
                self._phase = "failed" if first else "unloaded"
                self._text, self._wanted = Future(), False
                works = list(self._waiting)
                self._waiting.clear()
            for work in works:
                work.submission.post(_not_loaded(error))
            future.set_exception(error)
            if first:
                self.loaded.set_exception(error)
            return None
        text = ModelText(session)
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
        while self._await_work():
            if self.memory.pressed:
                self.memory.relieve()
            while work := self._admitted(session):
                self._begin(session, work)
            if self._running:
                try:
                    self.metrics.count_step(len(self._running))
                    session.scheduler.step()
                except Exception as error:
                    self._fail_all(error)
            for work, stream in self._running:
                self._report(work, stream)
        for work, stream in self._running:
            stream.close()
            work.free()
        self._running = []

    def _await_work(self) -> bool:
        """Wait for a request, and return True; return False if the service is closing, or the model is to be unloaded."""
        with self._changed:
            while not self._closing:
                if self._waiting or self._running or self.memory.pressed:
                    return True
                left = None
                if self.idle_unload_s and not self._users:
                    left = self._idle_since + self.idle_unload_s - time.monotonic()
                    if left <= 0:  # later requests wait for the next loading
                        self._phase, self._text, self._wanted = "unloaded", Future(), False
                        return False
                self._changed.wait(left)
            return False

    def _admitted(self, session: Session) -> _Work | None:
        """Take the next request out of the queue; None if there is none, or it must wait for another one to end."""
        with self._changed:
            if not self._waiting or len(self._running) >= self.slots:
                return None
            work = self._waiting[0]
        # Reclaiming memory may write to the disk, during which requests may come and leave.
        work.memory = self.memory.admit(work.most_bytes(session.run.limits.positions), alone=not self._running)
        if work.memory is None:
            return None
        with self._changed:
            if self._waiting and self._waiting[0] is work:
                return self._waiting.popleft()
        work.free()  # its client left meanwhile
        return self._admitted(session)

    def _begin(self, session: Session, work: _Work) -> None:
        request, submission = work.request, work.submission
        try:
            stream = session.stream(
                request.prompt,
                n_predict=1 if work.silent else request.n_predict,
                sampling=request.sampling,
                stop=request.stop,
                ignore_eos=request.ignore_eos,
                grammar=request.grammar,
                sample=request.sample,
                logprobs=request.logprobs,
                prompt_logprobs=request.prompt_logprobs,
                interrupted=lambda: submission.cancelled or self._closing,
            )
        except Exception as error:  # the thread goes on, whatever happens to one request
            work.free()
            submission.post(_shown(error))
        else:
            self._running = [*self._running, (work, stream)]

    def _report(self, work: _Work, stream: AnswerStream) -> None:
        """Post what is new of an answer, and forget it when it has ended."""
        submission, answer = work.submission, stream.answer
        if submission.cancelled:
            stream.close()
        ended = stream.ended
        try:
            for piece in stream.take():
                if work.silent:
                    continue
                part = slice(work.told, piece.tokens)
                work.told = piece.tokens
                submission.post(
                    TextPart(
                        index=work.index,
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
            self.metrics.count_answer(answer.timings, seconds=time.monotonic() - work.began)
            if answer.stop_reason != "interrupted":  # else nobody waits for it, or ``close`` has said so
                submission.post(_end(work, answer))
        self._forget(work)

    def _forget(self, work: _Work) -> None:
        work.free()
        with self._changed:
            self._running = [pair for pair in self._running if pair[0] is not work]
            self._idle_since = time.monotonic()

    def _fail_all(self, error: Exception) -> None:
        """End all answers after a failure that belongs to none of them."""
        for work, stream in self._running:
            work.submission.post(_shown(error))
            stream.close()
            work.free()
        self._running = []


def _end(work: _Work, answer: Answer) -> TextEnd:
    prompt = tuple(answer.prompt_logprobs)
    if work.silent:
        answer = Answer(timings=replace(answer.timings, predicted_n=0, predicted_ms=0.0))
    return TextEnd(
        index=work.index,
        answer=answer,
        tokens=tuple(answer.tokens[work.told :]),
        logprobs=tuple(answer.logprobs[work.told :]),
        prompt_logprobs=prompt,
    )


def _shown(error: Exception) -> Exception:
    """Return the error that a client sees; one that is not expected is logged."""
    if isinstance(error, EdgedecError):
        return from_edgedec(error)
    _LOG.error("a request failed", exc_info=error)
    return error


def _not_loaded(error: BaseException) -> ApiError:
    reason = str(error) if isinstance(error, EdgedecError) else "an unexpected error, see the server's log"
    return ApiError(503, f"the model cannot be loaded: {reason}", code="model_not_loaded")
