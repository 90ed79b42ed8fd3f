"""The ledger of a server's memory: what each part holds, under one budget, and what gives memory back first.

Everything that a server holds has an item: weights, arena, prompt cache, drafter, grammars, buffers of connections,
tokenizer. An item grows by *reservations* only, and their sum never exceeds the budget. A request reserves its worst case
before it is admitted, so that nothing that was admitted can fail for want of memory. A part of the budget, the *floor*, is
kept for small requests: one that is no larger than the floor waits for other small ones at most, and is never refused for
ever.

When the system is short of memory, *reclaimers* give pages back to it, in the order of their registration: first what is
only idle, then the drafter, then the prompt cache, then idle sequences, which are written to disk. Their reservations stay,
because they will need the pages again. If all that is not enough, the ledger is *shut* and gives out the floor alone.

A reclaimer that had to give memory is *closed*: the part that it frees may not grow again until memory has been plentiful
for some seconds. They open in the opposite order, one at a time. Without this, a server at its limit would unload a drafter
and load it again for each request.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgedec.errors import BudgetError, EdgedecError, UsageError
from edgedec.memory.byte_sizes import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logging.getLogger(__name__)

__all__ = ["AdmissionError", "MemoryLedger", "Reclaimer", "Reservation"]

_CALM_S = 5.0  # seconds without a shortage before a reclaimer opens


class AdmissionError(BudgetError):
    """There is no memory for a reservation now.

    Members:
        asked_bytes: bytes that were asked for.
        free_bytes: bytes that are free for it.
        largest_bytes: bytes that could be reserved if every reservation but the lasting ones ended. A larger one can never
            be admitted.
        small: True if the reservation fits the floor; it must be tried again when another one ends, and not be refused.
    """

    def __init__(self, name: str, *, asked_bytes: int, free_bytes: int, largest_bytes: int, small: bool) -> None:
        self.asked_bytes, self.free_bytes = asked_bytes, free_bytes
        self.largest_bytes, self.small = largest_bytes, small
        if self.never:
            step = f"the most that one request can have is {format_bytes(largest_bytes)}; make it smaller"
        else:
            step = "try again when another request has ended, or make it smaller"
        super().__init__(
            f"{name} needs {format_bytes(asked_bytes)}, of which {format_bytes(free_bytes)} are free; {step}"
        )

    @property
    def never(self) -> bool:
        """True if the reservation is too large for the budget, whatever ends."""
        return self.asked_bytes > self.largest_bytes


class Reservation:
    """Bytes of an item. Closing it, or leaving it as a context manager, gives all of them back, once.

    Members:
        name: the item.
        nbytes: bytes that are reserved; 0 after the close.
    """

    def __init__(self, ledger: MemoryLedger, name: str, nbytes: int, *, from_floor: bool, lasting: bool) -> None:
        self.name, self.nbytes = name, nbytes
        self.from_floor, self.lasting = from_floor, lasting
        self._ledger = ledger  # the one that counts it, see ``MemoryLedger.adopt``

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give all bytes back. A second call does nothing."""
        self._ledger._give_back(self)


@dataclass(frozen=True, kw_only=True)
class Reclaimer:
    """A part of the server that can give pages back to the system, and keeps its reservation.

    Members:
        name: name in reports, such as "prompt cache".
        reclaimable: returns the bytes that it could give back now.
        reclaim: gives back what it can. An EdgedecError, such as that of a full disk, counts as nothing given back; any
            other error passes to the caller of ``relieve``.
        opened: called when the part may grow again.
    """

    name: str
    reclaimable: Callable[[], int]
    reclaim: Callable[[], None]
    opened: Callable[[], None] = lambda: None


class MemoryLedger:
    """The reservations under one budget. All methods may be called by any thread, but ``relieve`` and ``recover`` by one
    only, in which they call the reclaimers.

    Parameters:
        budget_bytes: the budget; None: everything is admitted, and only counted.
        floor_bytes: bytes of the budget that are kept for small requests.
        reclaimers: parts that give memory back, in this order. Each has a name of its own.
        clock: returns seconds.

    Members:
        peak_bytes: largest sum of all reservations so far.
        refused: number of refusals so far.

    Raises:
        BudgetError: the floor is larger than the budget.
    """

    def __init__(
        self,
        budget_bytes: int | None,
        *,
        floor_bytes: int = 0,
        reclaimers: Sequence[Reclaimer] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if budget_bytes is not None and floor_bytes > budget_bytes:
            raise BudgetError(
                f"one small request needs {format_bytes(floor_bytes)}, the memory budget is "
                f"{format_bytes(budget_bytes)}; raise --memory-budget or lower --ctx-size"
            )
        self.budget_bytes, self.floor_bytes = budget_bytes, floor_bytes
        self.peak_bytes = self.refused = 0
        self._clock = clock
        self._reclaimers = tuple(reclaimers)
        self._closed: frozenset[str] = frozenset()  # names of reclaimers; replaced, never changed
        self._last_shortage = float("-inf")
        self._items: dict[str, int] = {}
        self._used = self._from_floor = self._lasting = 0  # bytes; the first without those from the floor
        self._shut = False  # only the floor is given out
        self._open = set[Reservation]()  # reservations that are not closed
        self._lock = threading.Lock()

    # --- the present state --------------------------------------------------------------------------------------------

    @property
    def charged_bytes(self) -> int:
        """Sum of all reservations, in bytes."""
        with self._lock:
            return self._used + self._from_floor

    @property
    def free_bytes(self) -> int | None:
        """Bytes that are free without the floor; None without a budget."""
        with self._lock:
            return None if self.budget_bytes is None else self._free()

    @property
    def is_shut(self) -> bool:
        """True from ``shut`` to ``end_relief``."""
        return self._shut

    @property
    def all_open(self) -> bool:
        """True if no reclaimer is closed, so that ``recover`` has nothing to do."""
        return not self._closed

    def items(self) -> dict[str, int]:
        """Return the bytes of each item, in the order in which items were first reserved."""
        with self._lock:
            return dict(self._items)

    def as_json(self) -> dict[str, Any]:
        """Return the budget, the items and the state of the reclaimers."""
        with self._lock:
            data = {
                "budget_bytes": self.budget_bytes,
                "charged_bytes": self._used + self._from_floor,
                "free_bytes": None if self.budget_bytes is None else self._free(),
                "floor_bytes": self.floor_bytes,
                "floor_used_bytes": self._from_floor,
                "shut": self._shut,
                "peak_bytes": self.peak_bytes,
                "refused": self.refused,
                "items": dict(self._items),
            }
        closed = self._closed
        reclaimers = [
            {"name": one.name, "reclaimable_bytes": one.reclaimable(), "open": one.name not in closed}
            for one in self._reclaimers
        ]
        return data | {"reclaimers": reclaimers}

    # --- reserving ----------------------------------------------------------------------------------------------------

    def charge(self, name: str, nbytes: int) -> Reservation:
        """Reserve memory that lasts as long as the server, such as weights.

        Raises:
            BudgetError: the budget has no room for it.
            UsageError: ``nbytes`` is negative.
        """
        with self._lock:
            reservation = self._take(name, nbytes, lasting=True)
            if reservation is None:
                raise BudgetError(
                    f"{name} needs {format_bytes(nbytes)}, and {format_bytes(self._free())} of the memory budget of "
                    f"{format_bytes(self.budget_bytes or 0)} are free; raise --memory-budget or use a smaller model"
                )
            return reservation

    def reserve(self, name: str, nbytes: int) -> Reservation:
        """Reserve memory for a request.

        Raises:
            AdmissionError: there is no room now.
            UsageError: ``nbytes`` is negative.
        """
        with self._lock:
            if reservation := self._take(name, nbytes) or self._take_from_floor(name, nbytes):
                return reservation
            self.refused += 1
            raise AdmissionError(
                name,
                asked_bytes=nbytes,
                free_bytes=0 if self._shut else self._free(),
                largest_bytes=self._largest(),
                small=nbytes <= self.floor_bytes,
            )

    def adopt(self, other: MemoryLedger) -> None:
        """Count the requests' reservations of another ledger here from now on, whether or not the budget has room for them.

        Those that last stay where they are.
        """
        if other is self:
            return
        with other._lock, self._lock:
            for reservation in [one for one in other._open if not one.lasting]:
                nbytes = reservation.nbytes
                other._forget(reservation)
                reservation._ledger, reservation.nbytes, reservation.from_floor = self, nbytes, False
                self._used += nbytes
                self._note(reservation)

    # --- when the system is short of memory ---------------------------------------------------------------------------

    def relieve(self) -> int:
        """Let the first reclaimer that has something give back what it can, and close it.

        Call this again if it was not enough.

        Returns:
            The bytes that were given back; 0 if no reclaimer has anything.
        """
        for reclaimer in self._reclaimers:
            if given := self._ask(reclaimer):
                return given
        return 0

    def shut(self) -> None:
        """Give out nothing but the floor until ``end_relief``, because all that ``relieve`` has given back is not enough."""
        with self._lock:
            self._shut = True

    def end_relief(self) -> None:
        """Reserve memory for all requests again."""
        with self._lock:
            self._shut = False

    def recover(self) -> None:
        """Open the last of the closed reclaimers, and call its ``opened``, if there was no shortage for five seconds.

        Call this now and then while memory is plentiful.
        """
        if not self._closed or self._shut or self._clock() - self._last_shortage < _CALM_S:
            return
        reclaimer = next(one for one in reversed(self._reclaimers) if one.name in self._closed)
        self._closed -= {reclaimer.name}
        self._last_shortage = self._clock()  # the next one opens after as long a time
        _LOG.info("memory is plentiful again: %s may grow", reclaimer.name)
        reclaimer.opened()

    def end(self) -> None:
        """Forget the reclaimers, because what they free is closed.

        A reservation may outlive the model: a request whose objects refer to each other holds it until Python's collector
        looks for them, which an idle process does not do. It keeps the ledger, and must not keep the model through it.
        """
        self._reclaimers, self._closed = (), frozenset()

    # --- inside; the lock is held -------------------------------------------------------------------------------------

    def _free(self) -> int:
        return max(0, (self.budget_bytes or 0) - self.floor_bytes - self._used)

    def _largest(self) -> int:
        if self.budget_bytes is None:
            return sys.maxsize
        return max(self.floor_bytes, self.budget_bytes - self.floor_bytes - self._lasting)

    def _take(self, name: str, nbytes: int, *, lasting: bool = False) -> Reservation | None:
        """Return a reservation; None if there is no room without the floor."""
        if nbytes < 0:
            raise UsageError(f"{name}: a reservation must not be negative, and is {nbytes}")
        if (not lasting and self._shut) or (self.budget_bytes is not None and nbytes > self._free()):
            return None
        self._used += nbytes
        self._lasting += nbytes * lasting
        return self._note(Reservation(self, name, nbytes, from_floor=False, lasting=lasting))

    def _take_from_floor(self, name: str, nbytes: int) -> Reservation | None:
        if nbytes > self.floor_bytes - self._from_floor:
            return None
        self._from_floor += nbytes
        return self._note(Reservation(self, name, nbytes, from_floor=True, lasting=False))

    def _note(self, reservation: Reservation) -> Reservation:
        self._items[reservation.name] = self._items.get(reservation.name, 0) + reservation.nbytes
        self.peak_bytes = max(self.peak_bytes, self._used + self._from_floor)
        self._open.add(reservation)
        return reservation

    def _forget(self, reservation: Reservation) -> None:
        nbytes, reservation.nbytes = reservation.nbytes, 0
        self._open.discard(reservation)
        self._items[reservation.name] -= nbytes
        if reservation.from_floor:
            self._from_floor -= nbytes
        else:
            self._used -= nbytes
        self._lasting -= nbytes * reservation.lasting

    # --- inside; the lock is not held ---------------------------------------------------------------------------------

    def _give_back(self, reservation: Reservation) -> None:
        with self._lock:
            ledger = reservation._ledger
            if ledger is self:
                self._forget(reservation)
        if ledger is not self:  # it was adopted meanwhile
            ledger._give_back(reservation)

    def _ask(self, reclaimer: Reclaimer) -> int:
        """Let a reclaimer give memory back and close it. Return the bytes; 0 if it has nothing."""
        before = reclaimer.reclaimable()
        if before <= 0:
            return 0
        try:
            reclaimer.reclaim()
        except EdgedecError as error:
            _LOG.warning("%s cannot give memory back: %s", reclaimer.name, error)
        given = max(0, before - reclaimer.reclaimable())
        self._last_shortage = self._clock()
        self._closed |= {reclaimer.name}
        _LOG.info("memory is short: %s gave back %s", reclaimer.name, format_bytes(given))
        return given
