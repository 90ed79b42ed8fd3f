"""Counters of the work of a device, for the timings of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from edgedec.runtime.driver.report import PassReport

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Counters"]

_OF_REPORT = ("cycles", "beats", "starved", "blocked", "dependency")


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Sums over passes and commits. The difference of two is the work between them.

    Members:
        passes, commits: numbers of passes and of commits; a commit that moves no rows is not counted.
        rows: rows of all passes.
        seconds: device time.
        cycles, beats, starved, blocked, dependency: sums of the members of ``PassReport``.
    """

    passes: int = 0
    commits: int = 0
    rows: int = 0
    seconds: float = 0.0
    cycles: int = 0
    beats: int = 0
    starved: int = 0
    blocked: int = 0
    dependency: int = 0

    def __add__(self, more: Self) -> Self:
        return type(self)(**{one.name: getattr(self, one.name) + getattr(more, one.name) for one in fields(self)})

    def __sub__(self, earlier: Self) -> Self:
        return type(self)(**{one.name: getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)})

    def plus(self, report: PassReport, seconds: float, *, rows: Sequence[int]) -> Self:
        """Return the counters with passes of so many rows each, or with another commit if there are none."""
        more = {name: getattr(self, name) + getattr(report, name) for name in _OF_REPORT}
        return type(self)(
            passes=self.passes + len(rows),
            commits=self.commits + (not rows),
            rows=self.rows + sum(rows),
            seconds=self.seconds + seconds,
            **more,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the counters for ``timings``."""
        return {
            "passes": self.passes,
            "commits": self.commits,
            "rows": self.rows,
            "ms": round(1000 * self.seconds, 3),
            "cycles": self.cycles,
            "beats": self.beats,
            "stalls": {"memory": self.starved, "dependency": self.dependency, "writes": self.blocked},
        }
