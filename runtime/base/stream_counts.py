"""The counts and timings of weights that are read from the disk during passes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from edgedec.memory.byte_sizes import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StreamCounts", "StreamTimings"]


@dataclass(frozen=True, kw_only=True)
class StreamCounts:
    """Counts of streamed parts, over some time.

    Members:
        read_bytes: bytes that were read, ahead of their use.
        used_bytes: bytes of the parts that passes have used.
        read_seconds: time in which the disk was read.
        waited_seconds: time that passes waited for it.
        restarts: times that a pass did not begin with the part that was expected, so that others had been read in vain.
    """

    read_bytes: int = 0
    used_bytes: int = 0
    read_seconds: float = 0.0
    waited_seconds: float = 0.0
    restarts: int = 0

    def __sub__(self, earlier: Self) -> StreamCounts:
        """Return the counts since ``earlier``."""
        names = [field.name for field in fields(self)]
        return StreamCounts(**{name: getattr(self, name) - getattr(earlier, name) for name in names})

    @property
    def bytes_per_second(self) -> float:
        """Rate of the reads; 0 if there were none."""
        return self.read_bytes / self.read_seconds if self.read_seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class StreamTimings:
    """The share of the disk in the time of an answer.

    Members:
        counts: counts while the answer was written. Other answers beside it are among them.
        bytes_per_pass: bytes of the weights that each pass reads.
        direct: True if reads go around the page cache; False if the file system has no such reads.
    """

    counts: StreamCounts
    bytes_per_pass: int
    direct: bool

    @property
    def passes(self) -> float:
        """Number of passes; the first and the last may not be complete."""
        return self.counts.used_bytes / self.bytes_per_pass if self.bytes_per_pass else 0.0

    def figures(self) -> str:
        """Return the figures as text."""
        how = "" if self.direct else ", through the page cache, because the file system has no direct reads"
        return (
            f"disk: {format_bytes(self.bytes_per_pass)} a pass, {self.counts.waited_seconds:.2f} s waited for it; "
            f"{format_bytes(round(self.counts.bytes_per_second))}/s{how}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "bytes_per_pass": self.bytes_per_pass,
            "passes": round(self.passes, 3),
            "read_bytes": self.counts.read_bytes,
            "read_bytes_per_second": round(self.counts.bytes_per_second),
            "waited_ms": round(1000 * self.counts.waited_seconds, 3),
            "direct": self.direct,
        }
