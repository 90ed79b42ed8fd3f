"""The image of a program: segments are placed first, and their bytes are then built into one array."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Base, Instruction, Opcode

__all__ = ["REGION_BYTES", "MemoryImage", "cache_regions", "image_regions", "layer_beats", "reached"]

U8 = NDArray[np.uint8]

REGION_BYTES = 64 << 20  # most bytes of a region of image or cache: boards find no large contiguous memory in one piece
_OF_CACHE = (Opcode.CACHE, Opcode.COPY, Opcode.ATTEND)  # instructions with the place of a layer's keys and values


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
    reads = (one for one in instructions if one.opcode == Opcode.READ and one["base"] == Base.IMAGE)
    return _divided(((one["start"], one["start"] + one["beats"]) for one in reads), beats, most)


def cache_regions(
    instructions: Iterable[Instruction], config: AcceleratorConfig, beats: int, most: int
) -> tuple[range, ...]:
    """Divide the cache as ``image_regions`` does an image: the keys and values of a layer stay in one region."""
    if beats <= most:
        return (range(beats),)
    layers = (
        (one["start"], one["start"] + layer_beats(one, config)) for one in instructions if one.opcode in _OF_CACHE
    )
    return _divided(layers, beats, most)


def layer_beats(one: Instruction, config: AcceleratorConfig) -> int:
    """Return the beats of the cache, from ``start`` on, that a CACHE, COPY or ATTEND reaches.

    Raises:
        BundleError: it needs a ring, and the accelerator has none.
    """
    heads = {
        Opcode.CACHE: -(-one["heads"] // max(one["group"], 1)),
        Opcode.COPY: one["heads"],
        Opcode.ATTEND: one["kv_heads"],
    }[one.opcode]
    return (2 * heads - 1) * one["run"] + config.cache_rows(one["ring"]).run


def reached(one: Instruction, config: AcceleratorConfig) -> tuple[str, int] | None:
    """Return "image" or "cache", and the beats of it that an instruction reaches from ``start`` on; None for neither."""
    if one.opcode == Opcode.READ and one["base"] == Base.IMAGE:
        return "image", one["beats"]
    return ("cache", layer_beats(one, config)) if one.opcode in _OF_CACHE else None


def _divided(ranges: Iterable[tuple[int, int]], beats: int, most: int) -> tuple[range, ...]:
    """Divide beats so that no range, given by its first beat and its end, is divided, and no other region is too large."""
    if beats <= most:
        return (range(beats),)
    regions, first, cut = list[range](), 0, 0  # cut: last place in this region at which it may end
    end = 0
    for start, stop in sorted(ranges):
        if start >= end:
            cut = start
        end = max(end, stop)
        if end - first > most and cut > first:
            regions.append(range(first, cut))
            first = cut
    return (*regions, range(first, beats))
