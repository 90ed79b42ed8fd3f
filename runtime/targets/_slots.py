"""The slots of the recurrent states of the CPU target: which sequence has which."""

from __future__ import annotations

from collections import deque

import numpy as np

from edgedec.errors import CacheFullError
from edgedec.runtime.kernels.recurrent import RecurrentBuffer
from edgedec.runtime.protocols import I32
from edgedec.runtime.targets._heap import release_pages

__all__ = ["RecurrentSlots"]


class RecurrentSlots:
    """The slots of a buffer. A sequence takes one before its first pass, and has it until it is closed.

    Members:
        buffer: the memory.
    """

    def __init__(self, buffer: RecurrentBuffer) -> None:
        self.buffer = buffer
        self._free = list(range(len(buffer.slots) - 1, -1, -1))  # the last is taken first
        self._stale: set[int] = set()  # free slots that were written to, whose pages are still there
        self._abandoned: deque[int] = deque()  # slots of states that were not closed, until ``free``

    @property
    def free(self) -> int:
        """Number of slots that no sequence has."""
        while self._abandoned:
            self.release(self._abandoned.popleft())
        return len(self._free)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return 4 * self.buffer.layout.slot_floats

    @property
    def idle_bytes(self) -> int:
        """Bytes of free slots whose memory ``release_pages`` would give back to the system, at most."""
        return len(self._stale) * self.slot_bytes

    def release_pages(self) -> None:
        """Give the pages of free slots back to the system. A later pass gets new ones."""
        for slot in self._stale:
            release_pages(self.buffer.slots[slot].view(np.uint8))
        self._stale.clear()

    def require(self, count: int) -> None:
        """Check that ``count`` slots are free.

        Raises:
            CacheFullError: they are not.
        """
        if count > self.free:
            raise CacheFullError(
                f"{count} more sequences need a recurrent state, and {len(self._free)} of {len(self.buffer.slots)} are "
                "free; close a sequence, or load the model with more cache_rows"
            )

    def take(self) -> int:
        """Return a slot whose states are zero.

        Raises:
            CacheFullError: no slot is free.
        """
        slot = self._pop()
        self.buffer.states(slot)[...] = 0
        return slot

    def copy(self, source: int) -> int:
        """Return a slot with the states of another one.

        Raises:
            CacheFullError: no slot is free.
        """
        slot = self._pop()
        self.buffer.states(slot)[...] = self.buffer.states(source)
        return slot

    def _pop(self) -> int:
        self.require(1)
        slot = self._free.pop()
        self._stale.discard(slot)
        return slot

    def release(self, slot: int) -> None:
        """Let other sequences take a slot."""
        self._free.append(slot)
        self._stale.add(slot)

    def abandon(self, slot: int) -> None:
        """Release a slot later. Unlike ``release``, any thread may call this, at any time."""
        self._abandoned.append(slot)

    def commit(self, slot: int, nodes: I32) -> None:
        """Replace the states by those after rows of the last pass: ``RecurrentBuffer.commit``."""
        self.buffer.commit(slot, nodes)
