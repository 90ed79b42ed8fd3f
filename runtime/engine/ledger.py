"""The ledger of a server's memory: what each part holds, under one budget, and what gives memory back first.

Everything that a server holds has an item: weights, arena, prompt cache, drafter, grammars, buffers of connections,
tokenizer. An item grows by *reservations* only, and their sum never exceeds the budget. A request reserves its worst case
before it is admitted, so that nothing that was admitted can fail for want of memory.

When memory falls short, *reclaimers* give some back, in the order of their registration: first what is only idle, then the
drafter, then the prompt cache, then idle sequences, which are written to disk. A request that does not fit even then is
refused. A part of the budget, the *floor*, is kept for small requests: one that is no larger than the floor waits for other
small ones at most, and is never refused for ever.

A reclaimer that had to give memory is *closed*: the part that it frees may not grow again until enough memory has been free
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
from typing import Any, Self

from edgedec.errors import BudgetError, EdgedecError, UsageError
from edgedec.memory import format_bytes

_LOG = logging.getLogger(__name__)

__all__ = ["AdmissionError", "MemoryLedger", "Reclaimer", "Reservation"]

_SLACK = 16  # a reclaimer is asked for a 16th of the budget more than is needed, so that it is not asked again at once
_CALM_S = 5.0  # seconds without a shortage before a reclaimer opens


class AdmissionError(BudgetError):
    """There is no memory for a reservation now.

    Members:
        asked_bytes: bytes that were asked for.
        free_bytes: bytes that are free for it.
        reclaimable_bytes: bytes that the reclaimers said they could still give back.
        largest_bytes: bytes that could be reserved if every reservation but the lasting ones ended. A larger one can never
            be admitted.
        small: True if the reservation fits the floor; it must be tried again when another one ends, and not be refused.
    """

    def __init__(
        self, name: str, *, asked_bytes: int, free_bytes: int, reclaimable_bytes: int, largest_bytes: int, small: bool
    ) -> None:
        self.asked_bytes, self.free_bytes = asked_bytes, free_bytes
        self.reclaimable_bytes, self.largest_bytes, self.small = reclaimable_bytes, largest_bytes, small
        if self.never:
            step = f"the most that one request can have is {format_bytes(largest_bytes)}; make it smaller"
        else:
            step = "try again when another request has ended, or make it smaller"
        super().__init__(
            f"{name} needs {format_bytes(asked_bytes)}, of which {format_bytes(free_bytes)} are free and "
            f"{format_bytes(reclaimable_bytes)} could be freed; {step}"
        )

    @property
    def never(self) -> bool:
        """True if the reservation is too large for the budget, whatever ends."""
        return self.asked_bytes > self.largest_bytes


class Reservation:
    """Bytes of an item. Closing it, or leaving it as a context manager, gives all of them back, once.

    Members:
        name: the item.
        nbytes: bytes that are reserved now; 0 after the close.
    """

    def __init__(self, ledger: MemoryLedger, name: str, nbytes: int, *, from_floor: bool, lasting: bool) -> None:
        self.name, self.nbytes = name, nbytes
        self.from_floor, self.lasting = from_floor, lasting
        self._ledger = ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def shrink(self, nbytes: int) -> None:
        """Give back all but ``nbytes``, which must not be more than there are.

        Raises:
            UsageError: ``nbytes`` is negative or more than ``self.nbytes``.
        """
        self._ledger._shrink(self, nbytes)

    def close(self) -> None:
        """Give all bytes back. A second call does nothing."""
        self._ledger._shrink(self, 0)


@dataclass(kw_only=True)
class Reclaimer:
    """A part of the server that can give memory back.

    Members:
        name: name in reports, such as "prompt cache".
        reclaimable: returns the bytes that it could give back now.
        reclaim: gives back at least so many bytes if it can, by closing or shrinking its reservations. An EdgedecError, such
            as that of a full disk, counts as nothing given back; any other error passes to the caller of ``reserve``.
        opened: called when the part may grow again.
        pages_only: True if it gives pages back to the system and keeps its reservation, because it will need them again. It
            is asked when the system is short of memory, and not for a reservation, which it cannot help.
    """

    name: str
    reclaimable: Callable[[], int]
    reclaim: Callable[[int], None]
    opened: Callable[[], None] = lambda: None
    pages_only: bool = False


class MemoryLedger:
    """The reservations under one budget. All methods may be called by any thread.

    Callbacks of reclaimers run in the thread that asked for memory. They may close and shrink reservations of this ledger.
    They may also reserve, for which no reclaimer is asked.

    Parameters:
        budget_bytes: the budget; None: everything is admitted, and only counted.
        floor_bytes: bytes of the budget that are kept for small requests.
        reclaimers: parts that give memory back, in this order.
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
        self._reclaimers = list(reclaimers)
        self._closed: list[
            tuple[Reclaimer, int]
        ] = []  # the closed ones, in their order, and the bytes that each has given
        self._last_shortage = float("-inf")
        self._items: dict[str, int] = {}
        self._used = self._from_floor = self._lasting = 0  # bytes; the first without those from the floor
        self._withheld = 0  # bytes that were given back because of pressure, and are not free before it ends
        self._asking = False  # a reclaimer is giving memory back
        self._shut = False  # only the floor is given out
        self._lock = threading.RLock()
        self._reclaiming = threading.RLock()  # always taken before ``_lock``, without which callbacks run

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

    def items(self) -> dict[str, int]:
        """Return the bytes of each item, in the order in which items were first reserved."""
        with self._lock:
            return dict(self._items)

    def as_json(self) -> dict[str, Any]:
        """Return the budget, the items and the state of the reclaimers."""
        with self._lock:
            closed = {reclaimer.name for reclaimer, _ in self._closed}
            data = {
                "budget_bytes": self.budget_bytes,
                "charged_bytes": self._used + self._from_floor,
                "free_bytes": self.free_bytes,
                "floor_bytes": self.floor_bytes,
                "floor_used_bytes": self._from_floor,
                "withheld_bytes": self._withheld,
                "shut": self._shut,
                "peak_bytes": self.peak_bytes,
                "refused": self.refused,
                "items": dict(self._items),
            }
        reclaimers = [
            {"name": one.name, "reclaimable_bytes": one.reclaimable(), "open": one.name not in closed}
            for one in self._reclaimers
        ]
        return data | {"reclaimers": reclaimers}

    # --- reserving ----------------------------------------------------------------------------------------------------

    def charge(self, name: str, nbytes: int) -> Reservation:
        """Reserve memory that lasts as long as the server, such as weights. No reclaimer is asked.

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
        """Reserve memory for a request. If there is too little, the reclaimers are asked to give some back.

        Raises:
            AdmissionError: there is no room now.
            UsageError: ``nbytes`` is negative.
        """
        if reservation := self._take(name, nbytes):
            return reservation
        with self._reclaiming:
            if nbytes <= self._largest() and not self._asking:  # otherwise no reclaimer can help
                for reclaimer in [one for one in self._reclaimers if not one.pages_only]:
                    if reservation := self._take(name, nbytes):
                        return reservation
                    self._ask(reclaimer, self._missing(nbytes))
            with self._lock:
                if reservation := self._take(name, nbytes) or self._take_from_floor(name, nbytes):
                    return reservation
                self.refused += 1
                free = 0 if self._shut else self._free()
            raise AdmissionError(
                name,
                asked_bytes=nbytes,
                free_bytes=free,
                reclaimable_bytes=sum(reclaimer.reclaimable() for reclaimer in self._reclaimers),
                largest_bytes=self._largest(),
                small=nbytes <= self.floor_bytes,
            )

    def offer(self, name: str, nbytes: int, reclaimer: str) -> Reservation | None:
        """Reserve memory that a part can do without, such as a longer prompt cache; None if memory is not plentiful.

        No reclaimer is asked. The part must leave a 16th of the budget free, and its own reclaimer must not be closed.

        Args:
            reclaimer: name of the reclaimer that can give this memory back.

        Raises:
            UsageError: ``nbytes`` is negative, or there is no reclaimer of this name.
        """
        with self._lock:
            if reclaimer not in {one.name for one in self._reclaimers}:
                raise UsageError(f"{name} needs the reclaimer {reclaimer!r}, which the ledger does not have; add it")
            if any(one.name == reclaimer for one, _ in self._closed):
                return None
            if self.budget_bytes is not None and nbytes + self._slack > self._free():
                return None
            return self._take(name, nbytes)

    # --- giving back --------------------------------------------------------------------------------------------------

    def add_reclaimer(self, reclaimer: Reclaimer) -> None:
        """Add a reclaimer that is asked after all others.

        Raises:
            UsageError: there is one of this name.
        """
        with self._lock:
            if any(one.name == reclaimer.name for one in self._reclaimers):
                raise UsageError(f"the ledger has a reclaimer {reclaimer.name!r} already; choose another name")
            self._reclaimers.append(reclaimer)

    def relieve(self) -> int:
        """Let the first reclaimer that has something give back what it can, because the system is short of memory.

        What it gives back is not free for anything else until ``end_relief``. Call this again if it was not enough. A part
        may also give pages back to the system for which its reservation stays, because it will need them again.

        Returns:
            The bytes that were given back; 0 if no reclaimer has anything.
        """
        with self._reclaiming:
            for reclaimer in list(self._reclaimers):
                held = reclaimer.reclaimable()
                given = self._ask(reclaimer, held)
                with self._lock:
                    self._withheld += min(given, self._free() if self.budget_bytes is not None else given)
                if relieved := max(given, held - reclaimer.reclaimable()):
                    return relieved
        return 0

    def shut(self) -> None:
        """Give out nothing but the floor until ``end_relief``, because all that ``relieve`` has given back is not enough."""
        with self._lock:
            self._shut = True

    def end_relief(self) -> None:
        """Make free again what ``relieve`` has given back, and reserve memory for all requests again."""
        with self._lock:
            self._withheld, self._shut = 0, False

    @property
    def is_shut(self) -> bool:
        """True from ``shut`` to ``end_relief``."""
        return self._shut

    @property
    def all_open(self) -> bool:
        """True if no reclaimer is closed, so that ``recover`` has nothing to do."""
        with self._lock:
            return not self._closed

    def recover(self) -> None:
        """Open the last of the closed reclaimers if memory has been plentiful, and call its ``opened``.

        That is so if there was no shortage for five seconds, and what it has given and a 16th of the budget are free; one
        that gave only pages needs nothing that is not reserved already. Call this now and then, from a thread in which
        ``opened`` may run.
        """
        with self._reclaiming:
            with self._lock:
                if not self._closed or self._clock() - self._last_shortage < _CALM_S or self._withheld or self._shut:
                    return
                reclaimer, given = self._closed[-1]
                if self.budget_bytes is not None and not reclaimer.pages_only and self._free() < given + self._slack:
                    return
                self._closed.pop()
                self._last_shortage = self._clock()  # the next one opens after as long a time
            _LOG.info("memory is plentiful again: %s may grow", reclaimer.name)
            reclaimer.opened()

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _slack(self) -> int:
        return (self.budget_bytes or 0) // _SLACK

    def _free(self) -> int:
        return max(0, (self.budget_bytes or 0) - self.floor_bytes - self._used - self._withheld)

    def _largest(self) -> int:
        with self._lock:
            if self.budget_bytes is None:
                return sys.maxsize
            return max(self.floor_bytes, self.budget_bytes - self.floor_bytes - self._lasting)

    def _missing(self, nbytes: int) -> int:
        """Return the bytes that a reclaimer should give back so that ``nbytes`` and some more are free."""
        with self._lock:
            return nbytes - self._free() + self._slack

    def _take(self, name: str, nbytes: int, *, lasting: bool = False) -> Reservation | None:
        """Return a reservation; None if there is no room without the floor."""
        if nbytes < 0:
            raise UsageError(f"{name}: a reservation must not be negative, and is {nbytes}")
        with self._lock:
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
        return reservation

    def _shrink(self, reservation: Reservation, nbytes: int) -> None:
        with self._lock:
            if not 0 <= nbytes <= reservation.nbytes:
                raise UsageError(
                    f"{reservation.name}: a reservation of {reservation.nbytes} bytes cannot shrink to {nbytes}"
                )
            given = reservation.nbytes - nbytes
            reservation.nbytes = nbytes
            self._items[reservation.name] -= given
            if reservation.from_floor:
                self._from_floor -= given
            else:
                self._used -= given
            self._lasting -= given * reservation.lasting

    def _ask(self, reclaimer: Reclaimer, nbytes: int) -> int:
        """Let a reclaimer give memory back and close it. Return the bytes; 0 if it has nothing."""
        if nbytes <= 0 or reclaimer.reclaimable() <= 0:
            return 0
        before, held = self.charged_bytes, reclaimer.reclaimable()
        self._asking = True
        try:
            reclaimer.reclaim(nbytes)
        except EdgedecError as error:
            _LOG.warning("%s cannot give memory back: %s", reclaimer.name, error)
        finally:
            self._asking = False
        given = max(0, before - self.charged_bytes)
        pages = max(0, held - reclaimer.reclaimable())
        with self._lock:
            self._last_shortage = self._clock()
            total = given
            for place, (one, earlier) in enumerate(self._closed):
                if one is reclaimer:
                    total += earlier
                    del self._closed[place]
                    break
            self._closed.append((reclaimer, total))
            self._closed.sort(key=lambda entry: self._reclaimers.index(entry[0]))
        _LOG.info("memory is short: %s gave back %s", reclaimer.name, format_bytes(max(given, pages)))
        return given
