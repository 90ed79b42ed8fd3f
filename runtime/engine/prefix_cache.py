"""The prefix cache keeps the rows of texts that have ended, and finds the longest beginning of a new prompt among all rows.

A prefix is found by its tokens, whichever request wrote it, also if its text is still being written. In a shared cache a
prefix is held once: a new sequence refers to the blocks of the old one and copies at most the last of them. Where each
sequence has a cache of its own, only a cache whose text has ended is used again, and nothing is copied.

Source: prefix caching as in 2309.06180 (PagedAttention) and 2312.07104 (RadixAttention); entries are compared one by one
here, because there are few of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.errors import CacheFullError, EdgedecError
from edgedec.runtime.engine.spill import SpillableState, Spilled, SpillFolder
from edgedec.runtime.protocols import Limits, State, Target
from edgedec.runtime.row_recipe import RowRecipe, common_prefix, reachable

__all__ = ["CachedRows", "PrefixCache"]

_LOG = logging.getLogger(__name__)

_LEAST_SPILLED = 64  # rows for which a file is written, or read, instead of running them again


@dataclass(kw_only=True, eq=False)
class CachedRows:
    """The committed rows of a sequence.

    Members:
        state: the cache.
        ids: ids of its rows, a list that its user may extend.
        recipe: recipe of its rows.
        branch: number of first rows of the prompt that another text also has, which cannot go back to them.
    """

    state: State
    ids: list[int]
    recipe: RowRecipe
    branch: int = 0

    def shared(self, prompt: list[int]) -> int:
        """Return the number of first rows of ``prompt`` that the cache can go back to, fewer if a window dropped rows."""
        return reachable(self.recipe, self.state.reach, common_prefix(prompt, self.ids))


class PrefixCache:
    """The caches that no text uses at the moment, least recently used first.

    Parameters:
        target: opens caches.
        limits: their limits.
        recipe: recipe of their rows.
        most: maximum number of caches that are kept. Where each sequence has a cache of its own, it is the number of all
            caches, so that the planned memory is enough.

    Members:
        disk: folder to which rows of a shared cache move when their room is needed; None: they are dropped.
        keeping: False: rows of a shared cache are given back as soon as their text ends, because memory is short.
    """

    def __init__(self, target: Target, limits: Limits, recipe: RowRecipe, *, most: int) -> None:
        self._target, self._limits, self._recipe, self._most = target, limits, recipe, most
        self._shared = target.free_rows is not None
        self._idle: list[CachedRows] = []
        self.disk: SpillFolder | None = None
        self.keeping = True

    @property
    def states(self) -> list[State]:
        """The caches."""
        return [entry.state for entry in self._idle]

    def __len__(self) -> int:
        return len(self._idle)

    def longest(self, prompt: list[int], used: Sequence[CachedRows] = ()) -> int:
        """Return the number of the prompt's rows that ``take`` would find."""
        entries = [*self._idle, *used] if self._shared else self._idle
        return max((entry.shared(prompt) for entry in entries), default=0)

    def take(self, prompt: list[int], used: Sequence[CachedRows] = ()) -> CachedRows:
        """Return a cache with the longest beginning of ``prompt`` that there is.

        Args:
            prompt: ids of the prompt without its last token.
            used: the caches of texts that are being written. Only a shared cache can share their rows.
        """
        if restored := self._from_disk(prompt, self.longest(prompt, used)):
            return restored
        entries = [*self._idle, *used] if self._shared else self._idle
        best = max(entries, key=lambda entry: entry.shared(prompt), default=None)
        keep = 0 if best is None else best.shared(prompt)
        if best is None or (self._shared and not keep):
            branch = max((common_prefix(prompt, entry.ids) for entry in entries), default=0)
            return self._rows(self._target.open(self._limits), branch=self._recipe.whole(branch))
        if not self._shared or (best in self._idle and keep == len(best.ids)):
            self._idle = [entry for entry in self._idle if entry is not best]
            return best
        try:
            return self._rows(best.state.fork(), [*best.ids])  # its user truncates it
        except CacheFullError:  # there is no room for a copy of its recurrent states
            return self._rows(self._target.open(self._limits))

    def _rows(self, state: State, ids: Sequence[int] = (), *, branch: int = 0) -> CachedRows:
        return CachedRows(state=state, ids=list(ids), recipe=self._recipe, branch=branch)

    def give(self, rows: CachedRows) -> None:
        """Keep the cache of a text that has ended."""
        if self._shared and not (rows.ids and self.keeping):
            rows.state.close()
            return
        self._idle.append(rows)
        while len(self._idle) > self._most:
            self.evict()

    def evict(self) -> bool:
        """Free the cache that was not used for the longest time; return False if there is none."""
        if not self._idle:
            return False
        entry = self._idle.pop(0)
        self._to_disk(entry)
        entry.state.close()
        return True

    def close(self) -> None:
        """Free all caches."""
        for entry in self._idle:
            entry.state.close()
        self._idle.clear()

    def _to_disk(self, entry: CachedRows) -> None:
        """Write rows to the disk, if they are not there yet. Older files make room for them."""
        state, ids = entry.state, entry.ids
        if self.disk is None or not isinstance(state, SpillableState) or not len(ids) == state.length >= _LEAST_SPILLED:
            return
        if any(spilled.shared(ids, self._recipe) == len(ids) for spilled in self.disk.files):
            return
        for spilled in [one for one in self.disk.files if self._is_in(one, entry)]:
            self.disk.discard(spilled)  # the new file has its rows, too
        while True:
            try:
                self.disk.write(ids, state, self._recipe)
                return
            except EdgedecError as error:
                if not self.disk.files:
                    _LOG.warning("idle rows are dropped: %s", error)
                    return
                self.disk.discard(self.disk.files[0])

    def _is_in(self, spilled: Spilled, entry: CachedRows) -> bool:
        """Return whether a cache has all rows of a file."""
        return spilled.recipe == entry.recipe.name and entry.shared(spilled.ids) == len(spilled.ids)

    def _longest_file(self, prompt: list[int]) -> tuple[Spilled | None, int]:
        """Return the file with the longest beginning of ``prompt``, and the number of its rows."""
        files = [] if self.disk is None else self.disk.files
        best = max(files, key=lambda spilled: spilled.shared(prompt, self._recipe), default=None)
        return best, 0 if best is None else best.shared(prompt, self._recipe)

    def _from_disk(self, prompt: list[int], keep: int) -> CachedRows | None:
        """Return the rows of a file that has a longer beginning of ``prompt`` than ``keep`` rows; None if there is none."""
        best, rows = self._longest_file(prompt)
        if rows < keep + _LEAST_SPILLED:
            return None
        state = self._target.open(self._limits)
        assert isinstance(state, SpillableState)
        while best is not None and not state.fits(best.held, rows) and self.evict():
            best, rows = self._longest_file(prompt)  # files may have been replaced
        if best is None or self.disk is None:
            return None
        try:
            self.disk.read(best, state, rows, self._recipe)
        except EdgedecError as error:
            _LOG.warning("rows are computed again: %s", error)
            state.close()
            self.disk.discard(best)
            return None
        return self._rows(state, best.ids[:rows])
