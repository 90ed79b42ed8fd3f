"""The counts of keys that queries saw and of those that they attended to, where a policy chooses keys."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from edgedec.memory.byte_sizes import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["KeyCounts"]


@dataclass(frozen=True, kw_only=True)
class KeyCounts:
    """Counts of keys over some time, each for every query, head and layer in which queries choose keys.

    Members:
        seen: keys that queries saw.
        read: keys that they attended to.
        read_bytes: bytes of labels that were compared, and of keys and values that were read.
        again: keys that were read by queries that were alone in their passes, right after the query before them.
        hits: number of these keys that the query before had read, too.
        kept: values that queries read and that memory had, if values are in a file.
        fetched: values that were read from the file.
        fetched_bytes: bytes that were read from it, with what lay between neighbouring values.
    """

    seen: int = 0
    read: int = 0
    read_bytes: int = 0
    again: int = 0
    hits: int = 0
    kept: int = 0
    fetched: int = 0
    fetched_bytes: int = 0

    def __sub__(self, earlier: Self) -> KeyCounts:
        """Return the counts since ``earlier``."""
        names = [field.name for field in fields(self)]
        return KeyCounts(**{name: getattr(self, name) - getattr(earlier, name) for name in names})

    @property
    def share(self) -> float:
        """Share of the keys that queries saw and attended to; 0 if they saw none."""
        return self.read / self.seen if self.seen else 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of the keys that the query before had read, too; None if no query followed another one.

        If values are in a file, it is the share of the values that memory had.
        """
        values = self.kept + self.fetched
        if values:
            return self.kept / values
        return self.hits / self.again if self.again else None

    def figures(self) -> str:
        """Return the figures as text."""
        share = f"{100 * self.share:.1f} % of those seen were read"
        text = f"keys: {share}; {format_bytes(self.read_bytes)} with their values and all labels"
        if not self.kept + self.fetched:
            return text
        share = f"memory had {100 * (self.hit_rate or 0):.0f} % of the values"
        return f"{text}; {share}, {format_bytes(self.fetched_bytes)} were read from the file"

    def as_json(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        rate = self.hit_rate
        return {
            "seen": self.seen,
            "read": self.read,
            "share": round(self.share, 6),
            "read_bytes": self.read_bytes,
            "hit_rate": None if rate is None else round(rate, 6),
            "kept": self.kept,
            "fetched": self.fetched,
            "fetched_bytes": self.fetched_bytes,
        }
