"""Watch how long programs wait for memory (pressure stall information, PSI), and call back before the kernel acts.

A group of processes that runs out of memory does not fail at once: the kernel takes back pages that are still needed, and
programs wait for them. It counts the time in which at least one of them waits. A server that gives memory back while this
share rises is not killed. Reading the counters needs no privilege, unlike the kernel's triggers, so they are polled.

Source: the kernel's document accounting/psi.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edgedec.cgroups import memory_group

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
        window_s: seconds over which a share is measured. The kernel updates its counters every two seconds.
        calm_s: seconds.
        repeat_s: seconds between calls while the share is ``high``.
        poll_s: seconds between readings.
    """

    high: float = 0.10
    low: float = 0.02
    window_s: float = 4.0
    calm_s: float = 30.0
    repeat_s: float = 4.0
    poll_s: float = 1.0


class PressureWatch:
    """Poll a pressure file in a thread, and call back while stalls are high and when they have ended.

    Parameters:
        on_pressure: called with the share of time with a stall when it rises to ``high``, and again every ``repeat_s``
            while it is not lower.
        on_calm: called once when pressure has ended.
        config: when pressure begins and ends.
        file: the pressure file; None: there is none, and nothing is ever called.

    Both are called in the thread of the watch. A call that fails is logged, and the watch goes on.
    """

    def __init__(
        self,
        on_pressure: Callable[[float], None],
        on_calm: Callable[[], None] = lambda: None,
        *,
        config: PressureConfig | None = None,
        file: Path | None,
    ) -> None:
        self.config = config or PressureConfig()
        self.file = file
        self.share = 0.0
        self.high = False
        self._on_pressure, self._on_calm = on_pressure, on_calm
        self._samples: deque[tuple[float, int]] = deque()  # (time in seconds, some_us)
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
        """Begin to watch, if there is a file."""
        if self.file is None:
            _LOG.info("memory pressure is not watched: neither a control group nor /proc/pressure/memory counts stalls")
        else:
            self._thread.start()

    def close(self) -> None:
        """End the watch. A second call does nothing."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def as_json(self) -> dict[str, Any]:
        """Return the file, the share of time with a stall, and whether pressure is on; ``file`` is None without one."""
        return {
            "file": None if self.file is None else str(self.file),
            "stalled_share": self.share,
            "high": self.high,
        }

    def step(self, now: float, stalls: Stalls) -> None:
        """Take the counters of the time ``now``, in seconds, and call back if this changes something."""
        samples, config = self._samples, self.config
        if samples and stalls.some_us < samples[-1][1]:
            samples.clear()  # the process was moved to another group, whose counter is another one
        samples.append((now, stalls.some_us))
        while len(samples) > 1 and samples[1][0] <= now - config.window_s:
            samples.popleft()
        seconds = max(now - samples[0][0], config.window_s)  # a short time is no reason for a large share
        self.share = min(1.0, (stalls.some_us - samples[0][1]) / 1e6 / seconds)
        if self.share >= config.high:
            begins = not self.high
            self.high, self._low_since = True, None
            if begins or now - self._called >= config.repeat_s:
                self._called = now
                _LOG.info("programs waited for memory in %.0f %% of the last seconds", 100 * self.share)
                self._on_pressure(self.share)
        elif self.high and self.share < config.low:
            self._low_since = now if self._low_since is None else self._low_since
            if now - self._low_since >= config.calm_s:
                self.high, self._low_since = False, None
                _LOG.info("memory pressure has ended")
                self._on_calm()
        else:
            self._low_since = None

    def _watch(self) -> None:
        assert self.file is not None
        while not self._stop.wait(self.config.poll_s):
            stalls = _read(self.file)
            if stalls is None:
                continue
            try:
                self.step(time.monotonic(), stalls)
            except Exception:
                _LOG.exception("a reaction to memory pressure failed")
