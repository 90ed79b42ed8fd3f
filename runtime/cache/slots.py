"""The slots of the recurrent states of the CPU target: which sequence has which. And snapshots of states."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

from edgedec.errors import CacheFullError
from edgedec.memory.heap import release_pages
from edgedec.runtime.kernels.rows.recurrent import RecurrentBuffer
from edgedec.runtime.protocols import F32, I32

__all__ = ["RecurrentSlots", "Snapshot", "SnapshotPool"]


class Snapshot:
    """The recurrent states of a text after its first ``length`` rows. Its memory is free once nothing refers to it.

    Members:
        length: number of rows.
        states: the states, float32 [layout.state_floats]; None once a later snapshot has their memory.
    """

    def __init__(self, length: int, states: F32) -> None:
        self.length = length
        self.states: F32 | None = states


class SnapshotPool:
    """The memory of a number of snapshots. When all of it is used, the snapshot that was not used longest loses its states.

    Parameters:
        count: number of snapshots.
        floats: floats of the states of a sequence.
    """

    def __init__(self, count: int, floats: int) -> None:
        self._memory = np.zeros((count, floats), np.float32)
        self._free = list(range(count - 1, -1, -1))
        self._stale: set[int] = set()  # free places that were written to, whose pages are still there
        self._dropped: deque[int] = deque()  # places of snapshots that nothing refers to, until ``_collect``
        self._used: dict[int, tuple[weakref.ref[Snapshot], weakref.finalize[..., Snapshot]]] = {}  # last used last

    def keep(self, length: int, states: F32) -> Snapshot | None:
        """Return a snapshot with a copy of ``states``; None if there is no memory for any."""
        self._collect()
        if not self._free and not self._used:
            return None
        place = self._free.pop() if self._free else self._take_oldest()
        self._stale.discard(place)
        self._memory[place] = states
        snapshot = Snapshot(length, self._memory[place])
        # The garbage collector calls this in any thread, so it only makes a note.
        self._used[place] = weakref.ref(snapshot), weakref.finalize(snapshot, self._dropped.append, place)
        return snapshot

    def restore(self, snapshot: Snapshot, states: F32) -> None:
        """Copy the states of a snapshot to ``states``. It is then the last that was used."""
        assert snapshot.states is not None
        states[...] = snapshot.states
        place = next(place for place, (reference, _) in self._used.items() if reference() is snapshot)
        self._used[place] = self._used.pop(place)

    def _take_oldest(self) -> int:
        place: int = next(iter(self._used))
        reference, finalizer = self._used.pop(place)
        finalizer.detach()
        snapshot = reference()
        if snapshot is not None:
            snapshot.states = None
        return place

    def _collect(self) -> None:
        """Free the places of snapshots that nothing refers to."""
        while self._dropped:
            place = self._dropped.popleft()
            # The oldest may have been taken after it was dropped, and its place have another snapshot by now.
            if place in self._used and self._used[place][0]() is None:
                del self._used[place]
                self._free.append(place)
                self._stale.add(place)

    @property
    def idle_bytes(self) -> int:
        """Bytes of free places whose memory ``release_pages`` would give back to the system, at most."""
        self._collect()
        return len(self._stale) * self._memory[:1].nbytes

    def release_pages(self) -> None:
        """Give the pages of free places back to the system. A later snapshot gets new ones."""
        self._collect()
        for place in self._stale:
            release_pages(self._memory[place].view(np.uint8))
        self._stale.clear()


class RecurrentSlots:
    """The slots of a buffer. A sequence takes one before its first pass, and has it until it is closed.

    Members:
        buffer: the memory.
        snapshots: the memory of snapshots of states.
    """

    def __init__(self, buffer: RecurrentBuffer, snapshots: int) -> None:
        self.buffer = buffer
        self.snapshots = SnapshotPool(snapshots, buffer.layout.state_floats)
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
        """Bytes of free slots and snapshots whose memory ``release_pages`` would give back to the system, at most."""
        return len(self._stale) * self.slot_bytes + self.snapshots.idle_bytes

    def release_pages(self) -> None:
        """Give the pages of free slots and snapshots back to the system. A later pass gets new ones."""
        self.snapshots.release_pages()
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
