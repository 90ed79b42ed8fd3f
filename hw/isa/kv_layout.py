"""Layout of keys and values in memory, shared by the compiler, the writer of new rows and attention."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.isa.checks import check

__all__ = ["KvLayout", "widest_chunk"]


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
