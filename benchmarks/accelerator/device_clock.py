"""Simulate the board's time in a run on another machine: the time of the host's work there, and of the device's passes.

The clock only advances when time is spent on it, so that a run is the same every time, on every machine. The host's work has
one figure for each kind and size (``host_instructions.py``). The modules that call ``time.perf_counter`` to measure drafting
use this clock instead, and decide as they would on the board.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto

__all__ = ["BoardClock", "Books", "Fabric", "HostCosts", "board_time"]

_TIMED: Sequence[ModuleType] = (autoregressive, auto)


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
    """Seconds of the host's work by (kind, size)."""

    table: Mapping[tuple[str, int], float]

    def seconds(self, kind: str, size: int) -> float:
        """Return the seconds of the nearest known size; of two equally near sizes, the smaller. Unknown kinds take 0."""
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
    """Account of the host's work by kind, which is spent on the clock.

    Members:
        costs: seconds to spend on the clock.
        spent: seconds that were spent, by kind.
    """

    clock: BoardClock
    costs: HostCosts
    spent: dict[str, float] = field(default_factory=dict)
    _growing: str = ""  # name of the policy that grows a tree at the moment
    _calls: int = 0  # number of calls of the draft by the policy

    def charge(self, kind: str, size: int) -> None:
        """Spend the seconds of work on the clock."""
        due = self.costs.seconds(kind, size)
        self.spent[kind] = self.spent.get(kind, 0.0) + due
        self.clock.spend(due)

    def begin_growing(self, kind: str) -> None:
        self._growing, self._calls = kind, 0

    def called(self) -> None:
        """Record that the policy that grows a tree, if any, calls its draft. Size 1 is its work for a call."""
        if self._growing:
            self._calls += 1
            self.charge(self._growing, 1)

    def end_growing(self) -> None:
        """Record that the tree is grown. Size 0 is the policy's work without any call."""
        kind, self._growing = self._growing, ""
        if not self._calls:
            self.charge(kind, 0)
