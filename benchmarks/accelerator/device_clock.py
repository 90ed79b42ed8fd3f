"""Simulate the board's time in a run on another machine: the time of the host's work there, and of the device's passes.

The clock only advances when time is spent on it, so that a run is the same every time. The host's work is measured once on
this machine, one figure for each kind and size of work, and spent times a factor. The modules that call
``time.perf_counter`` to measure drafting use this clock instead, and decide as they would on the board.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto

__all__ = ["BoardClock", "Books", "Fabric", "HostCosts", "board_time", "typical"]

_QUIET = (
    0.1  # quantile of the measured times that counts; it is low because other processes can only slow the work down
)

_TIMED: Sequence[ModuleType] = (autoregressive, auto)


def typical(seconds: Sequence[float]) -> float:
    """Return the typical time of work that was measured many times."""
    return float(np.quantile(seconds, _QUIET))


class BoardClock:
    """Clock with the seconds on the board."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, until: float) -> None:
        self.now = max(self.now, until)


class Fabric:
    """The accelerator, which does one operation at a time while the host continues."""

    def __init__(self, clock: BoardClock) -> None:
        self._clock, self._free = clock, 0.0

    def begin(self, seconds: float) -> float:
        """Start an operation that takes ``seconds``, and return the time at which it will end."""
        self._free = max(self._free, self._clock.now) + seconds
        return self._free


@contextmanager
def board_time(clock: BoardClock) -> Iterator[None]:
    """Let the decoder, and the drafters that weigh time, use ``clock``."""
    modules: Sequence[Any] = _TIMED
    before = [module.time for module in modules]
    try:
        for module in modules:
            module.time = clock
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            module.time = old


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """Seconds of the host's work by (kind, size), measured on this machine."""

    table: Mapping[tuple[str, int], float]

    def seconds(self, kind: str, size: int) -> float:
        """Return the seconds of the nearest measured size; of two equally near sizes, the smaller. Unknown kinds take 0."""
        sizes = [known for name, known in self.table if name == kind]
        if not sizes:
            return 0.0
        return self.table[kind, min(sizes, key=lambda known: (abs(known - size), known))]

    def as_json(self) -> dict[str, dict[str, float]]:
        """Return the microseconds by kind and size."""
        by_kind: dict[str, dict[str, float]] = {}
        for (kind, size), seconds in sorted(self.table.items()):
            by_kind.setdefault(kind, {})[str(size)] = round(1e6 * seconds, 2)
        return by_kind


@dataclass(kw_only=True)
class Books:
    """Account of the host's work by kind: it is measured, or spent on the clock.

    Work within other work is counted once, for the inner work.

    Members:
        costs: seconds to spend on the clock; None: the work is measured.
        factor: ratio of the time on the board's processor to the time on this machine.
        samples: measured seconds.
        spent: seconds that were spent on the clock, by kind.
    """

    clock: BoardClock
    costs: HostCosts | None = None
    factor: float = 1.0
    samples: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    _growing: str = ""  # name of the policy that grows a tree at the moment
    _calls: int = 0  # number of calls of the draft by the policy
    _inner: float = 0.0
    _lap: float | None = None

    def enter(self) -> tuple[float, float]:
        """Begin work, and return a mark for ``leave``."""
        outer, self._inner = self._inner, 0.0
        return time.perf_counter(), outer

    def leave(self, mark: tuple[float, float]) -> float:
        """Return the seconds since the mark, without those of inner work that was entered and left since."""
        elapsed = time.perf_counter() - mark[0]
        own, self._inner = elapsed - self._inner, mark[1] + elapsed
        return own

    def charge(self, kind: str, size: int, seconds: float = 0.0) -> None:
        """Record ``seconds`` if the work is measured; otherwise spend the known seconds of such work on the clock."""
        if self.costs is None:
            self.samples.setdefault((kind, size), []).append(seconds)
            return
        due = self.factor * self.costs.seconds(kind, size)
        self.spent[kind] = self.spent.get(kind, 0.0) + due
        self.clock.spend(due)

    def charge_known(self, kind: str, size: int) -> None:
        """Spend the seconds of work that is measured elsewhere; do nothing while work is measured."""
        if self.costs is not None:
            self.charge(kind, size)

    def begin_growing(self, kind: str) -> None:
        self._growing, self._calls = kind, 0

    def called(self) -> None:
        """Record that the policy that grows a tree, if any, calls its draft."""
        if self._growing:
            self._calls += 1
            self.charge_known(self._growing, 1)

    def end_growing(self, seconds: float) -> None:
        """Record the policy's work: size 1 is its share per call of the draft, size 0 its work without any call."""
        kind, self._growing = self._growing, ""
        if self.costs is None:
            self.charge(kind, min(self._calls, 1), seconds / max(self._calls, 1))
        elif not self._calls:
            self.charge(kind, 0)

    def begin_lap(self) -> None:
        """Record that a pass has ended."""
        self._lap, self._inner = time.perf_counter(), 0.0

    def end_lap(self, rows: int) -> None:
        """Record that another pass begins. Host time between two passes that is not otherwise recorded is the loop's."""
        if self._lap is not None and self.costs is None:
            self.charge("loop", rows, time.perf_counter() - self._lap - self._inner)
        self._lap = None
