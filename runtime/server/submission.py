"""Requests for texts, the events of their answers, and the submission that connects a client with the model's thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING

from edgedec.runtime.engine.ledger import Reservation
from edgedec.runtime.grammar.compiler import CompiledGrammar
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.pooling import PooledRows, Pooling
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling.logprobs import TokenLogprobs
from edgedec.runtime.server.memory import request_bytes
from edgedec.runtime.server.progress import ProgressClock, TextProgress
from edgedec.runtime.server.turns import CLIENT
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.text_settings import TextSettings

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "GoneError",
    "QueuedText",
    "Submission",
    "TextEnd",
    "TextEvent",
    "TextPart",
    "TextRequest",
    "may_begin",
    "post_all",
    "queue_fairly",
    "reported_bytes",
    "take",
]

# Bytes of the log-probability of a token, as an event, in the answer's objects and as JSON, as a bound of what was measured.
_LOGPROB = 768
# Requests by which one that waits for memory is passed at most, clients whose first requests are looked at, and requests
# among which these are.
_MOST_PASSED, _CLIENTS, _LOOKED = 32, 8, 64


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A prompt, and how it is to be continued.

    Members:
        prompt: ids, int32 [n].
        text: the settings of the answer. ``interrupted``, ``progress`` and ``on_rows`` are set when it begins, and its
            grammar is compiled before.
        reports_reading: True to tell how far the prompt was read.
        reports_timings: True to tell the times with each part.
        pooling: kind of the embedding of the prompt, with which the answer ends; None: a text is written.
    """

    prompt: I32
    text: TextSettings
    reports_reading: bool = False
    reports_timings: bool = False
    pooling: Pooling | None = None

    @property
    def grammar(self) -> Grammar | None:
        """The grammar that the answer follows; None: any text."""
        assert not isinstance(self.text.grammar, CompiledGrammar), "one serves one answer, and is compiled before it"
        return self.text.grammar


def reported_bytes(request: TextRequest, positions: int) -> int:
    """Return the most memory that the log-probabilities of an answer take until it was sent, in bytes.

    Parameters:
        request: the request.
        positions: size of the context.
    """
    text = request.text
    if text.logprobs is None:
        return 0
    answer = positions if text.n_predict < 0 else min(text.n_predict, positions)
    return _LOGPROB * (1 + text.logprobs) * (answer + len(request.prompt) * text.prompt_logprobs)


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """A part of an answer's text.

    Members:
        index: number of the answer's request in its submission.
        text: whole characters.
        tokens: ids that were written since the part before.
        guessed: whether the last of them was an accepted guess.
        logprobs: log-probabilities of these tokens; empty if they were not asked for.
        prompt_logprobs: in the first part of an answer, those of the prompt's tokens after its first.
        progress: the times so far; None if they were not asked for.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    guessed: bool
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    progress: TextProgress | None = None


@dataclass(frozen=True, kw_only=True)
class TextEnd:
    """The end of an answer.

    Members:
        index: number of the answer's request in its submission.
        answer: the whole answer, with its timings.
        tokens: ids after the last part, such as an end token.
        logprobs: log-probabilities of these tokens.
        prompt_logprobs: log-probabilities of the prompt's tokens after its first; empty if they were not asked for.
        pooled: the prompt's rows, of which its embedding is made; None if it was not asked for.
    """

    index: int
    answer: Answer
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    pooled: PooledRows | None = None


class GoneError(Exception):
    """The submission was cancelled, usually because its client has left."""


TextEvent = TextProgress | TextPart | TextEnd


class Submission:
    """The answers to requests that were submitted together, as events in the order in which they are written.

    Use it as a context manager, which cancels what is left at its end. All methods are called in the loop's thread, except
    ``post``.

    Parameters:
        requests: the requests.
        withdraw: called when the submission is cancelled before its end.

    Members:
        cancelled: True once nobody waits for the answers.
        error: the error that ended them; None without one.
        turns: a turn for each request.
    """

    def __init__(self, requests: Sequence[TextRequest], *, withdraw: Callable[[Submission], None]) -> None:
        self._withdraw, self._loop = withdraw, asyncio.get_running_loop()
        self._events: asyncio.Queue[TextEvent | Exception] = asyncio.Queue()
        self._open = len(requests)
        self._failure: Exception | None = None  # an error that ``available`` has met, for ``next``
        self.cancelled = False  # read by the model's thread
        self.error: Exception | None = None
        self.turns = [
            QueuedText(submission=self, index=index, request=request) for index, request in enumerate(requests)
        ]

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
            self._withdraw(self)
            self._events.put_nowait(GoneError())

    async def next(self, timeout: float | None = None) -> TextEvent | None:
        """Return the next event; None if there was none within ``timeout`` seconds.

        Raises:
            GoneError: the submission was cancelled.
            EdgedecError, ApiError: an answer failed; the others are cancelled.
        """
        if self.cancelled:
            raise GoneError
        event: TextEvent | Exception | None = self._failure
        try:
            if event is None:
                async with asyncio.timeout(timeout):
                    event = await self._events.get()
        except TimeoutError:
            return None
        if isinstance(event, Exception):
            self.error = None if isinstance(event, GoneError) else event
            self.cancel()
            raise event
        return self._taken(event)

    def available(self) -> list[TextEvent]:
        """Return the events that are there already. ``next`` raises an error that comes after them."""
        events = list[TextEvent]()
        while self._failure is None and not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, Exception):
                self._failure = event
            else:
                events.append(self._taken(event))
        return events

    def _taken(self, event: TextEvent) -> TextEvent:
        if isinstance(event, TextEnd):
            self._open -= 1
        return event

    def post(self, event: TextEvent | Exception) -> None:
        """Append an event. This is called in the model's thread."""
        post_all([(self, event)])


def post_all(events: Sequence[tuple[Submission, TextEvent | Exception]]) -> None:
    """Append events of several submissions, in this order. This is called in the model's thread.

    Each loop is woken once: with a wake-up for each event, the model's thread would give the interpreter away each time.
    """
    by_loop = dict[asyncio.AbstractEventLoop, list[tuple[Submission, TextEvent | Exception]]]()
    for submission, event in events:
        by_loop.setdefault(submission._loop, []).append((submission, event))
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, own)
        except RuntimeError:  # the loop is closed, so nobody waits for the answers
            for submission, _ in own:
                submission.cancelled = True


def _deliver(events: Sequence[tuple[Submission, TextEvent | Exception]]) -> None:
    for submission, event in events:
        submission._events.put_nowait(event)


@dataclass(kw_only=True, eq=False)
class QueuedText:
    """The turn of a request, from its submission to the end of its answer.

    Members:
        submission, index, request: the request, and its number in its submission.
        began: time of the submission, in the seconds of ``time.monotonic``.
        told: number of tokens of the answer that were in an event.
        written: number of tokens of the answer; set by the model's thread.
        client: name of the client, as in ``turns.CLIENT``.
        rank: its place in the queue among those of other clients, see ``queue_fairly``.
        passed: number of requests that were admitted while this one, which was before them, waited for memory.
        compiled_until: time at which the request fails if its grammar is not compiled.
        given_up: True once it has failed so.
        memory: its reserved memory; None before it is admitted.
        clock: measures its progress.
        pooled: gets the prompt's rows, if its embedding is wanted.
    """

    submission: Submission
    index: int
    request: TextRequest
    began: float = field(default_factory=time.monotonic)
    told: int = 0
    written: int = 0
    client: str = field(default_factory=CLIENT.get)
    rank: int = 0
    passed: int = 0
    compiled_until: float = 0.0
    given_up: bool = False
    memory: Reservation | None = None
    clock: ProgressClock = field(init=False)
    pooled: PooledRows | None = field(init=False)

    def __post_init__(self) -> None:
        self.clock = ProgressClock(self.index, len(self.request.prompt))
        self.pooled = None if self.request.pooling is None else PooledRows(self.request.pooling)

    def read(self, rows: int) -> None:
        """Tell the client that the cache holds ``rows`` tokens of the prompt, if it asks for that."""
        progress = self.clock.read(rows)
        if progress is not None and self.request.reports_reading:
            self.submission.post(progress)

    def begin_text(self) -> None:
        """Tell the client that the prompt was read, because there is a token. A second call does nothing."""
        progress = self.clock.begin_text()
        if progress is not None and self.request.reports_reading:
            self.submission.post(replace(progress, predicted_n=0))

    def most_bytes(self, positions: int) -> int:
        """Return the most memory that the request takes outside the model, with a context of ``positions`` tokens."""
        request, grammar = self.request, self.request.grammar
        return request_bytes(
            prompt=len(request.prompt),
            answer=positions if request.text.n_predict < 0 else min(request.text.n_predict, positions),
            program=None if grammar is None else len(grammar.program),
            lexer=self.lexer_bytes,
            optional=0 if grammar is None else grammar.optional,
        )

    @property
    def lexer_bytes(self) -> int:
        """Bytes that the lexer of the request's grammar takes at most; 0 without a grammar."""
        grammar = self.request.grammar
        return 0 if grammar is None else grammar.lexer_bytes

    def free(self) -> None:
        """Give the reserved memory back. A second call does nothing."""
        if self.memory is not None:
            self.memory.close()

    def fail(self, error: Exception) -> None:
        """Give the reserved memory back, and tell the client why it gets no answer."""
        self.free()
        self.submission.post(error)

    @property
    def silent(self) -> bool:
        """True if only the prompt's log-probabilities are wanted, for which one token must be written."""
        return self.request.text.prompt_logprobs and self.request.text.n_predict == 0


def may_begin(waiting: Iterable[QueuedText]) -> Iterator[QueuedText]:
    """Return the turns that may be admitted if those before them in the queue must wait for memory.

    A turn is passed by those of other clients only, and at most ``_MOST_PASSED`` times. Few turns are looked at.
    """
    clients = set[str]()
    for turn in islice(waiting, _LOOKED):
        if turn.client not in clients:
            yield turn
            clients.add(turn.client)
        if turn.passed >= _MOST_PASSED or len(clients) >= _CLIENTS:
            return


def take(waiting: deque[QueuedText], turn: QueuedText) -> bool:
    """Take a turn out of the queue, and count it for those that it passes. Return False if it is not there any more."""
    if turn not in waiting:
        return False
    for one in waiting:
        if one is turn:
            break
        one.passed += 1
    waiting.remove(turn)
    return True


def queue_fairly(waiting: deque[QueuedText], turns: Sequence[QueuedText]) -> None:
    """Put the turns of one client into a queue in which clients take turns, each with its own in their order.

    A turn's rank is one above that of the client's turn before it, and at least that of the first turn in the queue. Turns
    are in the order of their ranks, and those of one rank in the order in which they came. So a client waits for one turn of
    each other client, however many they have.
    """
    first = waiting[0].rank if waiting else 0
    rank = max((one.rank + 1 for one in waiting if one.client == turns[0].client), default=first)
    for at, turn in enumerate(turns):
        turn.rank = max(first, rank) + at
    ordered = sorted([*waiting, *turns], key=lambda turn: turn.rank)
    waiting.clear()
    waiting.extend(ordered)
