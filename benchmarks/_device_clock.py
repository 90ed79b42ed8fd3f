"""The board's time in a run on another machine: what the host's work would take there, and the device's passes.

Time stands still but for what is spent, so that a run is the same every time. What the host does is measured here once, a
figure for each kind and size of work, and spent times a factor. The modules that ask ``time.perf_counter`` what drafting
takes are given this clock instead, and decide as they would on the board.
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

__all__ = ["Books", "Clock", "Fabric", "HostCosts", "board_time", "typical"]

_QUIET = 0.1  # share of what was measured that is as fast or faster: others on the machine only make it slower

_TIMED: Sequence[ModuleType] = (autoregressive, auto)


def typical(seconds: Sequence[float]) -> float:
    """Of the same work, done often."""
    return float(np.quantile(seconds, _QUIET))


class Clock:
    """Seconds on the board."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, until: float) -> None:
        self.now = max(self.now, until)


class Fabric:
    """The accelerator: one thing at a time, while the host goes on."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._free = clock, 0.0

    def begin(self, seconds: float) -> float:
        """Returns when it will have ended."""
        self._free = max(self._free, self._clock.now) + seconds
        return self._free


@contextmanager
def board_time(clock: Clock) -> Iterator[None]:
    """The decoder and the drafters that weigh time go by ``clock``."""
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
    """Seconds of the host's work by (kind, size), measured here."""

    table: Mapping[tuple[str, int], float]

    def seconds(self, kind: str, size: int) -> float:
        """Of the measured sizes the nearest one's, of two the smaller one's; 0 for a kind of which there is none."""
        sizes = [known for name, known in self.table if name == kind]
        if not sizes:
            return 0.0
        return self.table[kind, min(sizes, key=lambda known: (abs(known - size), known))]

    def as_json(self) -> dict[str, dict[str, float]]:
        """Microseconds by kind, by size."""
        found: dict[str, dict[str, float]] = {}
        for (kind, size), seconds in sorted(self.table.items()):
            found.setdefault(kind, {})[str(size)] = round(1e6 * seconds, 2)
        return found


@dataclass(kw_only=True)
class Books:
    """Who works on the host, and for how long: measured, or spent on the clock.

    Work within other work is counted once, as the inner one's.

    Members:
        costs: what is spent; None measures.
        factor: how many times longer the board's processor takes.
        samples: seconds that were measured.
        spent: seconds that were spent, by kind.
    """

    clock: Clock
    costs: HostCosts | None = None
    factor: float = 1.0
    samples: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    _growing: str = ""  # the policy that is at work
    _calls: int = 0  # that it made of the draft
    _inner: float = 0.0
    _lap: float | None = None

    def enter(self) -> tuple[float, float]:
        """A mark for ``leave``."""
        outer, self._inner = self._inner, 0.0
        return time.perf_counter(), outer

    def leave(self, mark: tuple[float, float]) -> float:
        """Seconds since the mark, without those of work that was entered and left since."""
        elapsed = time.perf_counter() - mark[0]
        own, self._inner = elapsed - self._inner, mark[1] + elapsed
        return own

    def charge(self, kind: str, size: int, seconds: float = 0.0) -> None:
        """``seconds``, if this measures; else what such work takes passes on the clock."""
        if self.costs is None:
            self.samples.setdefault((kind, size), []).append(seconds)
            return
        due = self.factor * self.costs.seconds(kind, size)
        self.spent[kind] = self.spent.get(kind, 0.0) + due
        self.clock.spend(due)

    def charge_known(self, kind: str, size: int) -> None:
        """Spend what was measured elsewhere; nothing while this measures."""
        if self.costs is not None:
            self.charge(kind, size)

    def begin_growing(self, kind: str) -> None:
        self._growing, self._calls = kind, 0

    def called(self) -> None:
        """The policy that grows a tree, if one does, asks its draft."""
        if self._growing:
            self._calls += 1
            self.charge_known(self._growing, 1)

    def end_growing(self, seconds: float) -> None:
        """Size 1 is a call's share of a policy's work, 0 the work of a tree without any."""
        kind, self._growing = self._growing, ""
        if self.costs is None:
            self.charge(kind, min(self._calls, 1), seconds / max(self._calls, 1))
        elif not self._calls:
            self.charge(kind, 0)

    def begin_lap(self) -> None:
        """A pass has ended."""
        self._lap, self._inner = time.perf_counter(), 0.0

    def end_lap(self, rows: int) -> None:
        """Another pass begins: what the host did between the two and nobody claimed is the loop's."""
        if self._lap is not None and self.costs is None:
            self.charge("loop", rows, time.perf_counter() - self._lap - self._inner)
        self._lap = None
