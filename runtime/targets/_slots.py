"""The slots of the recurrent states of the CPU target: which sequence has which."""

from __future__ import annotations

from collections import deque

from edgedec.errors import CacheFullError
from edgedec.runtime.kernels.recurrent import RecurrentBuffer
from edgedec.runtime.protocols import I32

__all__ = ["RecurrentSlots"]


class RecurrentSlots:
    """The slots of a buffer. A sequence takes one before its first pass, and has it until it is closed.

    Members:
        buffer: the memory.
    """

    def __init__(self, buffer: RecurrentBuffer) -> None:
        self.buffer = buffer
        self._free = list(range(len(buffer.slots) - 1, -1, -1))  # the last is taken first
        self._abandoned: deque[int] = deque()  # slots of states that were not closed, until ``free``

    @property
    def free(self) -> int:
        """Number of slots that no sequence has."""
        while self._abandoned:
            self._free.append(self._abandoned.popleft())
        return len(self._free)

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
        self.require(1)
        slot = self._free.pop()
        self.buffer.states(slot)[...] = 0
        return slot

    def copy(self, source: int) -> int:
        """Return a slot with the states of another one.

        Raises:
            CacheFullError: no slot is free.
        """
        self.require(1)
        slot = self._free.pop()
        self.buffer.states(slot)[...] = self.buffer.states(source)
        return slot

    def release(self, slot: int) -> None:
        """Let other sequences take a slot."""
        self._free.append(slot)

    def abandon(self, slot: int) -> None:
        """Release a slot later. Unlike ``release``, any thread may call this, at any time."""
        self._abandoned.append(slot)

    def commit(self, slot: int, nodes: I32) -> None:
        """Replace the states by those after rows of the last pass: ``RecurrentBuffer.commit``."""
        self.buffer.commit(slot, nodes)
