"""Watch how long programs wait for memory and how much is left, and call back before the kernel acts.

A group of processes that runs out of memory does not always fail at once: while there are pages of files, the kernel takes
back ones that are still needed, and programs wait for them. It counts the time in which at least one of them waits
(pressure stall information, PSI). A server that gives memory back while this share rises is not killed. Reading the counters
needs no privilege, unlike the kernel's triggers, so they are polled.

A group without swap whose memory is not of files has no such time: nothing can be taken back, so nobody waits, and the
kernel ends a process as soon as the limit is reached. Therefore what is left under each limit is watched, too.

Source: the kernel's document accounting/psi; the second part was observed with a group of version 1.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgedec.memory.budget import MemoryLimit
from edgedec.memory.cgroups import memory_group

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PressureConfig", "PressureWatch", "Stalls", "parse_stalls", "pressure_file"]

_LOG = logging.getLogger(__name__)

_LINE = re.compile(
    r"(some|full) avg10=(\d{1,3}\.\d\d) avg60=\d{1,3}\.\d\d avg300=\d{1,3}\.\d\d total=(\d{1,20})", re.ASCII
)


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """The counters of a pressure file at one time.

    Members:
        some_percent, full_percent: share of the last ten seconds in which at least one program waited for memory, and in
            which all of them did, in percent.
        some_us, full_us: both times since the system or the group began, in microseconds.
    """

    some_percent: float
    full_percent: float
    some_us: int
    full_us: int


def parse_stalls(text: str) -> Stalls | None:
    """Return the counters of a pressure file; None if the text is of another kind.

    A file without a line ``full`` counts as one in which no program ever waited with all others.
    """
    lines = dict[str, tuple[float, int]]()
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            lines.setdefault(match[1], (float(match[2]), int(match[3])))
    if "some" not in lines:
        return None
    (some, some_us), (full, full_us) = lines["some"], lines.get("full", (0.0, 0))
    return Stalls(some_percent=some, full_percent=full, some_us=some_us, full_us=full_us)


def _read(file: Path) -> Stalls | None:
    try:
        return parse_stalls(file.read_text("ascii", "replace"))
    except OSError:  # kernels without PSI have the file of a group, and refuse to read it
        return None


def pressure_file(root: Path = Path("/")) -> Path | None:
    """Return the file with the stalls of this process's control group, or of the machine; None if there is neither.

    A group at the top of a hierarchy is the machine.

    Args:
        root: folder that holds ``proc`` and the mounted groups, for tests.
    """
    group = memory_group(root)
    files = [] if group is None else [group / "memory.pressure"]
    return next((file for file in [*files, root / "proc/pressure/memory"] if _read(file) is not None), None)


@dataclass(frozen=True, kw_only=True)
class PressureConfig:
    """When pressure begins and ends.

    Members:
        high: share of time with a stall from which pressure begins, over the last ``window_s`` seconds.
        low: share below which it must stay for ``calm_s`` seconds before it ends.
        reserve: share of a limit; pressure begins when less is left, and twice as much must be left before it ends.
        most_reserve_bytes: upper bound of this reserve, for large machines.
        stall_room: number of reserves; stalls count when less is left. The counters are those of a whole group or machine,
            in which any program may wait, for memory that a limit of its own keeps from it.
        window_s: seconds over which a share is measured. The kernel updates its counters every two seconds.
        calm_s: seconds.
        repeat_s: seconds between calls while the share is ``high``. What was given back needs time to help then.
        poll_s: seconds between readings.
    """

    high: float = 0.10
    low: float = 0.02
    reserve: float = 1 / 16
    most_reserve_bytes: int = 64 << 20
    stall_room: float = 4.0
    window_s: float = 4.0
    calm_s: float = 30.0
    repeat_s: float = 4.0
    poll_s: float = 1.0


_SPARE_S = 0.1  # seconds for which a reading of what is left beside the reserve counts


class PressureWatch:
    """Poll a pressure file and limits in a thread, and call back while memory is short and when this has ended.

    Parameters:
        on_pressure: called with the share of time with a stall when memory becomes short, and again while it is: every
            ``repeat_s``, or, if there is too little room, after each reading.
        on_calm: called once when pressure has ended.
        config: when pressure begins and ends.
        file: the pressure file; None: there is none.
        limits: returns the limits of the memory; their use now counts.

    Members:
        share: share of time with a stall, over the last seconds.
        room: bytes that are left divided by the reserve, under the limit where this ratio is least.
        high: True from the beginning of pressure to its end.

    Both are called in the thread of the watch. A call that fails is logged, and the watch goes on.
    """

    def __init__(
        self,
        on_pressure: Callable[[float], None],
        on_calm: Callable[[], None] = lambda: None,
        *,
        config: PressureConfig | None = None,
        file: Path | None,
        limits: Callable[[], Iterable[MemoryLimit]] = lambda: (),
    ) -> None:
        self.config = config or PressureConfig()
        self.file = file
        self.share, self.room = 0.0, math.inf
        self.high = False
        self._limits = limits
        self._on_pressure, self._on_calm = on_pressure, on_calm
        self._samples: deque[tuple[float, int]] = deque()  # (time in seconds, some_us)
        # Bytes that are left beside the reserve, as they were read last, and the time until which this counts.
        self._spare_bytes, self._spare_until = math.inf, -math.inf
        self._low_since: float | None = None
        self._called = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edgedec-pressure", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begin to watch."""
        if self.file is None:
            _LOG.info("neither a control group nor /proc/pressure/memory counts stalls; only what is left is watched")
        self._thread.start()

    def close(self) -> None:
        """End the watch. A second call does nothing."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def as_json(self) -> dict[str, Any]:
        """Return what is watched and whether pressure is on.

        ``file`` is None without a pressure file, and ``reserves_left`` without a limit.
        """
        return {
            "file": None if self.file is None else str(self.file),
            "stalled_share": self.share,
            "reserves_left": None if math.isinf(self.room) else self.room,
            "high": self.high,
        }

    def measure_room(self) -> float:
        """Read the limits, set ``room`` and return it."""
        rooms = [limit.room_bytes / self._reserve(limit) for limit in self._limits()]
        self.room = min(rooms, default=math.inf)
        return self.room

    def has_room(self, nbytes: int, *, anew: bool = False) -> bool:
        """Return True if the reserve were left under each limit after ``nbytes`` were taken.

        The limits are read ten times a second at most, or ``anew``.
        """
        now = time.monotonic()
        if anew or now >= self._spare_until:
            self._spare_bytes = min(
                (limit.room_bytes - self._reserve(limit) for limit in self._limits()), default=math.inf
            )
            self._spare_until = now + _SPARE_S
        return nbytes <= self._spare_bytes

    def _reserve(self, limit: MemoryLimit) -> float:
        return max(1.0, min(self.config.reserve * limit.limit_bytes, self.config.most_reserve_bytes))

    @property
    def roomy(self) -> bool:
        """True if twice the reserve was left when it was measured last."""
        return self.room >= 2

    @property
    def _stalled(self) -> float:
        """The share, if it counts: where no limit is known, it does."""
        return self.share if self.room < self.config.stall_room or math.isinf(self.room) else 0.0

    def step(self, now: float, stalls: Stalls | None) -> None:
        """Take the counters of the time ``now``, in seconds, and the last room. Call back if this changes something."""
        self._measure_stalls(now, stalls)
        config = self.config
        if self._stalled >= config.high or self.room < 1:
            begins = not self.high
            self.high, self._low_since = True, None
            if begins or self.room < 1 or now - self._called >= config.repeat_s:
                self._called = now
                _LOG.info(
                    "memory is short: programs waited for it in %.0f %% of the last seconds, and %.1f reserves are left",
                    100 * self.share,
                    self.room,
                )
                self._on_pressure(self.share)
        elif self.high and self._stalled < config.low and self.roomy:
            self._low_since = now if self._low_since is None else self._low_since
            if now - self._low_since >= config.calm_s:
                self.high, self._low_since = False, None
                _LOG.info("memory pressure has ended")
                self._on_calm()
        else:
            self._low_since = None

    def _measure_stalls(self, now: float, stalls: Stalls | None) -> None:
        samples, config = self._samples, self.config
        if stalls is None:
            return
        if samples and stalls.some_us < samples[-1][1]:
            samples.clear()  # the process was moved to another group, whose counter is another one
        samples.append((now, stalls.some_us))
        while len(samples) > 1 and samples[1][0] <= now - config.window_s:
            samples.popleft()
        seconds = max(now - samples[0][0], config.window_s)  # a short time is no reason for a large share
        self.share = min(1.0, (stalls.some_us - samples[0][1]) / 1e6 / seconds)

    def _watch(self) -> None:
        while not self._stop.wait(self.config.poll_s):
            try:
                self.measure_room()
                self.step(time.monotonic(), None if self.file is None else _read(self.file))
            except Exception:
                _LOG.exception("a reaction to memory pressure failed")
