"""Layout of keys and values in memory, shared by the compiler, the writer of new rows and attention."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.isa.checks import check

__all__ = ["CacheRows", "KvLayout", "widest_chunk"]


def widest_chunk(beat_bytes: int, head_dim: int, most: int = 16) -> int:
    """Return the largest power of two that divides ``head_dim``, fits a beat and is at most ``most``.

    Narrow chunks make attention cheaper, which keeps sums of chunk x slots; wide chunks make fewer writes of new rows.
    """
    chunk = 1
    while 2 * chunk <= min(beat_bytes, most) and head_dim % (2 * chunk) == 0:
        chunk *= 2
    return chunk


@dataclass(frozen=True, kw_only=True)
class KvLayout:
    """The layout of one run: the keys, or the values, of one head. Only the last group is padded.

    A *group* is ``positions`` = beat_bytes / chunk neighbouring positions: ``chunks`` = head_dim / chunk beats. Beat c of
    group g holds at byte ``i * chunk + d`` element ``c * chunk + d`` of position ``g * positions + i``, for keys and
    values alike. The bytes after the last position are arbitrary.

    Members:
        beat_bytes: bytes of a beat, a power of two.
        head_dim: elements of a head.
        chunk: elements of a head in a beat, a power of two that divides both.

    Raises:
        ValueError: a member is out of range.
    """

    beat_bytes: int
    head_dim: int
    chunk: int

    def __post_init__(self) -> None:
        check("head_dim", self.head_dim, 1, 2048)
        check("beat_bytes", self.beat_bytes, 1, 64)
        if self.beat_bytes & (self.beat_bytes - 1):
            raise ValueError(f"beat_bytes must be a power of two, not {self.beat_bytes!r}")
        check("chunk", self.chunk, 1, self.beat_bytes)
        if self.chunk & (self.chunk - 1) or self.head_dim % self.chunk:
            raise ValueError(f"chunk must be a power of two that divides {self.head_dim}, not {self.chunk!r}")

    @property
    def positions(self) -> int:
        """Positions of a group."""
        return self.beat_bytes // self.chunk

    @property
    def chunks(self) -> int:
        """Beats of a group."""
        return self.head_dim // self.chunk

    def groups(self, positions: int) -> int:
        """Return the number of groups that ``positions`` positions begin."""
        return -(-positions // self.positions)

    def beats(self, positions: int) -> int:
        """Return the number of beats of a run of ``positions`` positions."""
        return self.groups(positions) * self.chunks

    def pack(self, codes: NDArray[np.int8], fill: int = 0) -> NDArray[np.uint8]:
        """Pack int8 [n, head_dim] into the bytes of a run [beats, beat_bytes]; ``fill`` pads it after the last position."""
        padded = np.full((self.groups(len(codes)) * self.positions, self.head_dim), fill, np.int8)
        padded[: len(codes)] = codes
        parts = padded.reshape(-1, self.positions, self.chunks, self.chunk).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(parts).reshape(-1, self.beat_bytes).view(np.uint8)


@dataclass(frozen=True, kw_only=True)
class CacheRows:
    """The rows of a run that the cache keeps: those of all positions, or a ring of those that a window can show.

    The row of a position lies at ``place``: at the position itself, or in a ring at the rest of its division by ``rows``.

    Members:
        layout: layout of the run.
        rows: number of rows that are kept; whole groups in a ring.
        window: number of last positions that a pass may see of a ring; 0: all rows are kept.

    Raises:
        ValueError: a ring does not consist of whole groups, or has fewer rows than its window.
    """

    layout: KvLayout
    rows: int
    window: int = 0

    def __post_init__(self) -> None:
        if self.window and (self.rows % self.layout.positions or self.rows < self.window):
            raise ValueError(
                f"a ring must have whole groups of {self.layout.positions} rows, at least {self.window}, not {self.rows!r}"
            )

    @property
    def run(self) -> int:
        """Beats of the run."""
        return self.layout.beats(self.rows)

    def place(self, position: int) -> int:
        """Return the row at which a position lies."""
        return position % self.rows if self.window else position

    def first(self, committed: int) -> int:
        """Return the first of ``committed`` positions that a pass reads: the beginning of a group."""
        positions = self.layout.positions
        return max(0, committed + 1 - self.window) // positions * positions if self.window else 0

    def ranges(self, committed: int) -> tuple[tuple[int, int], ...]:
        """Return what a pass reads of the run: first beat, counted from the run's, and beats of one or two ranges.

        They hold the positions from ``first`` on in ascending order; a ring has two ranges if they pass its end.
        """
        chunks, first = self.layout.chunks, self.first(committed) // self.layout.positions
        groups = self.layout.groups(committed) - first
        if not self.window:
            return ((0, groups * chunks),) if groups else ()
        ring = self.rows // self.layout.positions
        start = first % ring
        before = min(groups, ring - start)
        pieces = ((start, before), (0, groups - before))
        return tuple((at * chunks, count * chunks) for at, count in pieces if count)

    def beats(self, committed: int) -> int:
        """Return the number of beats that a pass reads of the run."""
        return sum(count for _, count in self.ranges(committed))
