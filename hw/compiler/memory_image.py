"""The image of a program: segments are placed first, and their bytes are then built into one array."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.isa.instructions import Base, Instruction, Opcode

__all__ = ["REGION_BYTES", "MemoryImage", "image_regions"]

U8 = NDArray[np.uint8]

REGION_BYTES = 64 << 20  # most bytes of a region of the image: boards find no large contiguous memory in one piece


class MemoryImage:
    """Segments of whole beats, one after the other.

    A segment is announced with its size and a function that makes its bytes, so that sizes are known before any byte is
    made, and never more than one segment exists besides the image.
    """

    def __init__(self, beat_bytes: int) -> None:
        self._beat_bytes, self._beats = beat_bytes, 0
        self._segments: list[tuple[int, int, Callable[[], U8]]] = []

    @property
    def beats(self) -> int:
        return self._beats

    def add(self, beats: int, make: Callable[[], U8]) -> int:
        """Announce a segment; ``make`` returns its bytes, perhaps less than whole beats. Return its first beat."""
        start, self._beats = self._beats, self._beats + beats
        self._segments.append((start, beats, make))
        return start

    def build(self) -> U8:
        """Return the bytes, uint8 [beats * beat_bytes], in logical order (edgedec.hw.isa.striping).

        Raises:
            ValueError: a segment is longer than announced, or shorter by a beat or more.
        """
        image = np.zeros(self._beats * self._beat_bytes, np.uint8)
        for start, beats, make in self._segments:
            content = make().reshape(-1)
            if -(-content.size // self._beat_bytes) != beats:
                raise ValueError(f"a segment of {content.size} bytes was announced with {beats} beats")
            image[start * self._beat_bytes :][: content.size] = content
        return image


def image_regions(instructions: Iterable[Instruction], beats: int, most: int) -> tuple[range, ...]:
    """Divide an image into regions that may lie anywhere, as ranges of its beats.

    No READ begins in one region and ends in another, so that a loader has to change only where each one starts.

    Args:
        instructions: instructions that read the image.
        beats: beats of the image.
        most: most beats of a region. A region is larger only if a single READ is.
    """
    if beats <= most:
        return (range(beats),)
    reads = sorted(
        (one["start"], one["start"] + one["beats"])
        for one in instructions
        if one.opcode == Opcode.READ and one["base"] == Base.IMAGE
    )
    regions, first, cut = list[range](), 0, 0  # cut: last place in this region at which it may end
    end = 0
    for start, stop in reads:
        if start >= end:
            cut = start
        end = max(end, stop)
        if end - first > most and cut > first:
            regions.append(range(first, cut))
            first = cut
    return (*regions, range(first, beats))
