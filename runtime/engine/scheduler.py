"""The scheduler decides which texts are written now: it admits requests, gives them a cache, and runs the engine.

A request is admitted in its turn once a decoder is idle and the shared cache has room for the longest text that it may
become, so that no text ever ends for want of rows. Rows of texts that have ended are kept for their prefixes as long as
nobody needs the room. A prompt that begins like one which is being read waits until the common part has been read, and then
shares it, so that several prompts with one beginning read it once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol

from edgedec.runtime.capabilities import SlottedTarget
from edgedec.runtime.decoders._cached import CachedDecoder, PromptSequence
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.parking import ParkedRows, park, unpark
from edgedec.runtime.engine.prefix_cache import CachedRows, PrefixCache
from edgedec.runtime.engine.spill import SpillableState, SpillFolder
from edgedec.runtime.protocols import Limits, Request, State, Target, Token
from edgedec.runtime.row_recipe import common_prefix

__all__ = ["Scheduler", "Task", "TokenWriter"]

_LOG = logging.getLogger(__name__)
_LEAST_SHARED = 32  # common tokens for which a prompt waits until another one has been read


class TokenWriter(Protocol):
    """Takes the tokens of a text and decides when it is complete."""

    @property
    def ended(self) -> bool:
        """True once no further token is taken."""

    def take(self, tokens: Sequence[Token]) -> None:
        """Add the tokens of a step, up to the one that ends the text."""

    def end(self, reason: Literal["context", "interrupted"]) -> None:
        """End the text, because the decoder ended it. After its end this does nothing."""

    def cancel(self) -> None:
        """End the text at once. After its end this does nothing."""


@dataclass(kw_only=True, eq=False)
class Task:
    """A request, from its submission to its end.

    Members:
        request: the prompt and the settings.
        writer: takes the tokens.
        most_tokens: maximum number of tokens of the answer; negative: until the context is full.
        on_begin: called when the request is admitted.
        on_end: called once when an admitted request ends without an error.
        decoder, sequence: decoder and sequence that write the answer; None before the admission and after the end.
        parked: its rows on the disk, while it is not written; None: it is.
        error: reason why it failed.
        ended: True once nothing follows.
    """

    request: Request
    writer: TokenWriter
    most_tokens: int
    on_begin: Callable[[Task], None] = lambda task: None
    on_end: Callable[[Task], None] = lambda task: None
    decoder: CachedDecoder | None = None
    sequence: PromptSequence | None = None
    parked: ParkedRows | None = None
    error: Exception | None = None
    ended: bool = False
    prompt: list[int] = field(init=False)  # ids of the prompt without its last token

    def __post_init__(self) -> None:
        self.prompt = self.request.prompt[:-1].tolist()


class Scheduler:
    """The requests of a model.

    Parameters:
        target: runs the passes.
        engine: the loop.
        decoders: one for each text that may be written at a time. The only one keeps its cache; several exchange theirs.
        limits: bounds of each text.

    Members:
        engine, decoders: the parameters of these names.
        watched: a context in which the steps run.
    """

    def __init__(self, target: Target, engine: Engine, decoders: Sequence[CachedDecoder], limits: Limits) -> None:
        self._target, self.engine, self._limits = target, engine, limits
        self.decoders = list(decoders)
        self.watched: AbstractContextManager[object] = nullcontext()
        self._waiting: deque[Task] = deque()
        self._running: list[Task] = []
        self._abandoned: deque[Task] = deque()  # requests that nobody can read, until the next call
        self._cache: PrefixCache | None = None
        self._slotted = target if isinstance(target, SlottedTarget) else None
        if len(decoders) > 1:
            most = 4 * len(decoders) if self._shared else len(decoders)
            self._cache = PrefixCache(target, limits, decoders[0].recipe, most=most)

    @property
    def _shared(self) -> bool:
        return self._target.free_rows is not None

    @property
    def waiting(self) -> int:
        """Number of requests that have not been admitted."""
        return len(self._waiting)

    @property
    def running(self) -> Sequence[Task]:
        """The requests that are being answered, in the order of their admission."""
        return tuple(self._running)

    @property
    def kept_states(self) -> Sequence[State]:
        """The caches that are kept for their prefixes."""
        return () if self._cache is None else self._cache.states

    def keep_on_disk(self, disk: SpillFolder) -> None:
        """Let rows that are kept for their prefixes move to ``disk`` when their room in a shared cache is needed.

        Rows of a target that cannot hand them out stay where they are.
        """
        if self._cache is not None and self._shared and isinstance(self.decoders[0].state, SpillableState):
            self._cache.disk = disk

    def keep_prefixes(self, keep: bool) -> None:
        """Keep rows of texts that end from now on, or give them back at once, where all texts share a cache."""
        if self._cache is not None:
            self._cache.keeping = keep

    def move_to_disk(self) -> None:
        """Free all rows that are kept for their prefixes; those that are worth it move to the disk."""
        self._cancel_abandoned()
        while self._cache is not None and self._cache.evict():
            pass

    @property
    def parked(self) -> int:
        """Number of texts whose rows are on the disk."""
        return sum(task.parked is not None for task in self._running)

    @property
    def parkable_states(self) -> Sequence[State]:
        """The caches that ``park`` would move to the disk if it were called again and again."""
        return [task.decoder.state for task in self._active[1:] if task.decoder] if self._disk else ()

    @property
    def _active(self) -> list[Task]:
        return [task for task in self._running if task.parked is None]

    @property
    def _disk(self) -> SpillFolder | None:
        return None if self._cache is None else self._cache.disk

    def park(self) -> None:
        """Move the rows of the text that was admitted last to the disk. The first of the texts that are written goes on.

        Such a text is written on after ``unpark``, or when no other one is written.

        Raises:
            EdgedecError: the disk is full. Nothing has changed then.
        """
        self._cancel_abandoned()
        active = self._active
        if self._disk is not None and len(active) > 1 and active[-1].sequence is not None:
            task = active[-1]
            assert task.decoder is not None
            task.parked = park(task.decoder, self._disk)
            assert task.sequence is not None
            self.engine.remove(task.sequence)

    def unpark(self) -> None:
        """Bring the rows of all parked texts back."""
        for task in self._running:
            if task.parked is not None:
                self._unpark(task)

    def _unpark(self, task: Task) -> None:
        rows, task.parked = task.parked, None
        assert rows is not None
        assert task.decoder is not None
        assert task.sequence is not None
        assert self._cache is not None
        assert self._disk is not None
        state = task.decoder.state
        assert isinstance(state, SpillableState)
        while rows.spilled is not None and not state.fits(rows.spilled.held, len(rows.ids)) and self._cache.evict():
            pass
        try:
            unpark(task.decoder, rows, self._disk, self._limits)
        except Exception as error:
            task.error = error
            self._end(task)
        else:
            self.engine.add(task.sequence)

    def add(self, task: Task) -> None:
        """Queue a request. With a single decoder the request takes it over at once, and an earlier one fails."""
        self._cancel_abandoned()
        self._waiting.append(task)
        if self._cache is None:
            self._admit()

    def cancel(self, task: Task) -> None:
        """End a request now. After its end this does nothing."""
        if task.ended:
            return
        if task in self._waiting:
            self._waiting.remove(task)
        task.writer.cancel()
        self._end(task)

    def abandon(self, task: Task) -> None:
        """End a request before the next step. The garbage collector calls this in any thread, and during a pass."""
        self._abandoned.append(task)

    def _cancel_abandoned(self) -> None:
        while self._abandoned:
            try:
                self.cancel(self._abandoned.popleft())
            except Exception:  # the caller has another request, which goes on
                _LOG.exception("a text that nobody reads could not be ended")

    def step(self) -> None:
        """Admit requests, and run at most one pass of each text that is being written."""
        with self.watched:
            self._step()

    def _step(self) -> None:
        self._cancel_abandoned()
        if self._waiting:
            self._admit()
        if self._running and not self._active:
            self._unpark(self._running[0])
        self._make_room()
        tasks = {id(task.sequence): task for task in self._running}
        for part in self.engine.step():
            task = tasks[id(part.sequence)]
            task.writer.take(part.tokens)
            if part.error is not None:
                task.error = part.error
                self._end(task)
            elif task.writer.ended or part.sequence.ended:
                task.writer.end("interrupted" if task.request.interrupted() else "context")
                self._end(task)

    def forget(self) -> None:
        """Free the rows that are kept for their prefixes."""
        self._cancel_abandoned()
        if self._cache is not None:
            self._cache.close()

    def close(self) -> None:
        """End all requests and free the caches."""
        for task in [*self._waiting, *self._running]:
            self.cancel(task)
        self.forget()

    def _end(self, task: Task) -> None:
        """Give back what the request holds."""
        task.ended = True
        self._running = [other for other in self._running if other is not task]
        if task.parked is not None and self._disk is not None:
            task.parked.discard(self._disk)
            task.parked = None
        if task.sequence is not None:
            self.engine.remove(task.sequence)
        try:
            if task.error is None and task.decoder is not None:
                task.on_end(task)
        finally:
            if task.decoder is not None:
                if task.error is not None:
                    task.decoder.forget()
                if self._cache is not None:  # it keeps the rows for their prefix
                    self._cache.give(_rows_of(task.decoder))
            task.decoder = task.sequence = None

    def _admit(self) -> None:
        """Start the requests that there is room for, in their order; those that wait for a prefix let others pass."""
        for task in tuple(self._waiting):
            if self._cache is not None:
                busy = [other.decoder for other in self._running]
                idle = [decoder for decoder in self.decoders if decoder not in busy]
                if not idle or not self._fits(task):
                    return
                decoder = max(idle, key=lambda one: one.known_rows(task.request))
                wanted = task.prompt[: decoder.known_rows(task.request)]
                if self._waits_for_prefix(task, wanted):
                    continue
                task.decoder = decoder
                rows = self._cache.take(wanted, self._used())
                task.decoder.state, task.decoder.cached, task.decoder.branch = rows.state, rows.ids, rows.branch
            else:
                task.decoder = self.decoders[0]
            self._waiting.remove(task)
            self._start(task)

    def _start(self, task: Task) -> None:
        assert task.decoder is not None
        self._running.append(task)
        try:
            task.on_begin(task)
            sequence = task.decoder.start(task.request)
            assert isinstance(sequence, PromptSequence)
            task.sequence = sequence
        except Exception as error:
            task.error = error
            self._end(task)
            return
        self.engine.add(sequence)

    def _worst(self, task: Task) -> int:
        """Return the most rows of a shared cache that a request may hold, with the guesses of a pass and its last block."""
        limits, block = self._limits, self._target.info.block_rows
        length = len(task.request.prompt) + (limits.positions if task.most_tokens < 0 else task.most_tokens)
        rows = min(length, limits.positions) + limits.nodes
        return -(-rows // block) * block + block  # a block that is shared is copied before it is written

    def _fits(self, task: Task) -> bool:
        """Return whether the shared cache has room for a request and for what the running ones may become."""
        if not self._shared:
            return True
        return sum(map(self._worst, self._running)) + self._worst(task) <= self._limits.cache_rows

    def _waits_for_prefix(self, task: Task, wanted: list[int]) -> bool:
        """Return whether a prompt that is being read will have a longer beginning of ``wanted`` than there is now.

        Once its common rows were read there is no reason to wait: they are there now, or a window has dropped some of them.
        The text that is read keeps a snapshot of its recurrent states there.
        """
        assert self._cache is not None
        if not self._shared or task.request.reads_all:
            return False
        now = self._cache.longest(wanted, self._used())
        for other in self._running:
            if not (other.decoder and other.sequence and other.sequence.reading) or other.parked is not None:
                continue
            common = other.decoder.recipe.whole(common_prefix(wanted, other.prompt))
            if common >= max(_LEAST_SHARED, now + 1, other.decoder.state.length + 1):
                other.sequence.keep_snapshot(common)
                return True
        return False

    def _used(self) -> list[CachedRows]:
        """Return the rows of the texts that are written."""
        return [_rows_of(task.decoder) for task in self._running if task.decoder]

    def _make_room(self) -> None:
        """Free rows that are kept for their prefixes, as far as the next pass may need the room."""
        if self._cache is None or not self._shared:
            return
        block = self._target.info.block_rows
        need = self._limits.batch_rows + 2 * block * len(self._running)
        while ((self._target.free_rows or 0) < need or not self._has_slots()) and self._cache.evict():
            pass

    def _has_slots(self) -> bool:
        """Return whether every text that is written and has no rows yet can get a slot."""
        free = None if self._slotted is None else self._slotted.free_slots
        return free is None or free >= sum(not task.decoder.state.length for task in self._active if task.decoder)


def _rows_of(decoder: CachedDecoder) -> CachedRows:
    """Return the rows that a decoder has now."""
    return CachedRows(state=decoder.state, ids=decoder.cached, recipe=decoder.recipe)
