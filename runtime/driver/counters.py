"""What a device did since it was opened, for the timings of an answer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from edgedec.runtime.driver.report import PassReport

__all__ = ["Counters"]

_OF_REPORT = ("cycles", "beats", "starved", "blocked", "dependency")


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Sums over passes and commits; the later of two minus the earlier is what lies between.

    Members:
        passes, commits: that were run; a commit that moves nothing is none.
        rows: of all passes.
        seconds: of the device's time.
        cycles, beats, starved, blocked, dependency: as in PassReport.
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

    def __sub__(self, earlier: Self) -> Self:
        members = [member.name for member in fields(self)]
        return type(self)(**{name: getattr(self, name) - getattr(earlier, name) for name in members})

    def plus(self, report: PassReport, seconds: float, *, rows: int) -> Self:
        """With another pass of so many rows; of none: a commit."""
        more = {name: getattr(self, name) + getattr(report, name) for name in _OF_REPORT}
        return type(self)(
            passes=self.passes + (rows > 0),
            commits=self.commits + (rows == 0),
            rows=self.rows + rows,
            seconds=self.seconds + seconds,
            **more,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "passes": self.passes,
            "commits": self.commits,
            "rows": self.rows,
            "ms": round(1000 * self.seconds, 3),
            "cycles": self.cycles,
            "beats": self.beats,
            "stalls": {"memory": self.starved, "dependency": self.dependency, "writes": self.blocked},
        }
