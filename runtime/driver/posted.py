"""Passes without results that wait for each other on the accelerator, while the host writes the input of the next ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgedec.device_steps import Performer, ReadRegister, Step, Wait
from edgedec.errors import DeviceError
from edgedec.hw.isa.registers import COUNTS
from edgedec.runtime.driver.operations import Operations
from edgedec.runtime.driver.parts import CachePart
from edgedec.runtime.driver.report import PassReport, issued

__all__ = ["PostedPass", "PostedPasses"]

_STATE = ("status", "queue")
_COUNTERS = tuple(f"counter_{name}" for name in COUNTS)
_ENDS = 1 << 8  # ends are counted modulo this
_FIRST_SLICE_S, _LONGEST_SLICE_S = 0.001, 1.0  # device time between two looks at the registers, for a lost interrupt


@dataclass(frozen=True, kw_only=True)
class PostedPass:
    """A pass that was posted.

    Members:
        rows: number of its rows.
        read: committed positions that it reads.
        starts: committed positions before it of each part of the cache that has rows of it.
    """

    rows: int
    read: int
    starts: Mapping[CachePart, int]


class PostedPasses:
    """The passes that were posted since the accelerator was idle.

    Args:
        perform: carries out steps on the device, and raises DeviceError if this is another driver's.
        owned: returns the steps that check that.
        operations: the operations of the driver.
    """

    def __init__(
        self, perform: Callable[[Sequence[Step]], list[int]], owned: Callable[[], list[Step]], operations: Operations
    ) -> None:
        self._perform, self._owned, self._operations = perform, owned, operations
        self._registers = operations.registers
        self._running = deque[PostedPass]()  # their ends were not seen
        self._passes = list[PostedPass]()  # the passes that have ended included
        self._ended = 0  # the register's count of ends, as it was last seen

    @property
    def passes(self) -> Sequence[PostedPass]:
        """The passes, those that have ended included."""
        return self._passes

    @property
    def starts(self) -> Mapping[CachePart, int]:
        """Committed positions of each part of the cache before its first pass that has not ended."""
        starts = dict[CachePart, int]()
        for one in reversed(self._running):
            starts |= one.starts
        return starts

    def reads(self) -> list[ReadRegister]:
        """Return the steps after the doorbell of a pass, whose results ``add`` takes."""
        return self._registers.reads("queue")

    def begin(self) -> None:
        """Prepare for the first pass."""
        if not self._passes:
            self._ended = self._registers.read_field("queue", "ended")

    def add(self, one: PostedPass, found: Sequence[int]) -> None:
        """Note a pass that was posted; ``found`` are the results of ``reads``."""
        self._running.append(one)
        self._passes.append(one)
        self._count(*self._registers.values(found, "queue"))

    def clear(self) -> None:
        """Forget all passes, because the accelerator was reset."""
        self._running.clear()
        self._passes.clear()

    def wait(self, most: int) -> None:
        """Wait until at most ``most`` passes run or wait. After an exception such as Ctrl-C, call it again.

        Raises:
            DeviceError: a pass has failed, or does not end. ``starts`` says where the passes have to begin again.
        """
        if len(self._running) <= most:
            return
        registers, operations = self._registers, self._operations
        patience = operations.max_cycles / operations.device.clock_hz
        # Events are cleared before the ends are read, so that an end between the two is seen by the wait.
        look: list[Step] = [
            *registers.writes_of("interrupt_status", done=1, error=1, committed=1),
            *registers.reads(*_STATE),
        ]
        far = isinstance(operations.device, Performer)  # a look at the registers is a round trip then
        slice_s = _LONGEST_SLICE_S if far else _FIRST_SLICE_S
        left, part = patience, slice_s
        waits: list[Step] = [Wait(min(part, left))] if far else []
        while len(self._running) > most:
            found = self._perform([*self._owned(), *waits, *look])[len(waits) :]
            status, queue = registers.values(found, *_STATE)
            fields = registers.set_fields("status", status)
            if self._count(queue):
                left, part = patience, slice_s
            elif waits:
                left, part = left - part, min(2 * part, _LONGEST_SLICE_S)
            if "error" in fields:
                raise DeviceError(operations.error_text())
            idle = "busy" not in fields
            if len(self._running) > most and (idle or left <= 0):
                each = len(issued(operations.program, commits=False, logits=False))
                before = each * (len(self._passes) - len(self._running))
                raise DeviceError(operations.timeout_text(self.counts()[COUNTS.index("descriptors")] - before, idle))
            waits = [Wait(min(part, left))]

    def report(self) -> PassReport:
        """Return the counters of all passes, which have ended, and forget them."""
        report = PassReport(**dict(zip(COUNTS, self.counts(), strict=True)))
        self.clear()
        return report

    def counts(self) -> list[int]:
        """Return the counters in the order of COUNTS."""
        registers = self._registers
        steps: list[Step] = [*registers.writes_of("control", latch_counters=1), *registers.reads(*_COUNTERS)]
        return registers.values(self._perform(steps), *_COUNTERS)

    def _count(self, queue: int) -> int:
        """Take the register ``queue``, and return how many passes have ended since the last time."""
        ended = (queue - self._ended) % _ENDS
        self._ended = queue % _ENDS
        for _ in range(min(ended, len(self._running))):
            self._running.popleft()
        return ended
