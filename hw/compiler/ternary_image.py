"""Ternary matrices as the beats that the accelerator reads, in the order in which it uses them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.hw.config import ROWS

__all__ = ["DamagedWeightsError", "TernaryLayout", "pack", "unpack"]

U8 = NDArray[np.uint8]
_POWERS = 3 ** np.arange(ROWS)  # weights of the five digits of a byte
_BYTES = 3**ROWS  # number of valid bytes


class DamagedWeightsError(BundleError):
    """A byte of weights does not encode five trits."""


@dataclass(frozen=True, kw_only=True)
class TernaryLayout:
    """The layout of a matrix in memory, in the order of edgedec.hw.matrix.matrix_path.

    Members:
        beat_bytes: columns of a beat.
        tile_words: words of five rows in a tile.
        planes, rows, columns: size of the matrix, at least 1 each.
        group_size: columns that share mantissas, a multiple of ``beat_bytes``; 0 without mantissas.

    Raises:
        UnsupportedError: a group ends within a beat, or a beat cannot hold the mantissas of five rows.
    """

    beat_bytes: int
    tile_words: int
    planes: int
    rows: int
    columns: int
    group_size: int = 0

    def __post_init__(self) -> None:
        for name in ("beat_bytes", "tile_words", "planes", "rows", "columns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.group_size < 0 or self.group_size % self.beat_bytes:
            raise UnsupportedError(
                f"groups of {self.group_size} columns end within a beat of {self.beat_bytes}; "
                f"quantize with a --group-size that is a multiple of {self.beat_bytes}, or choose narrower beats"
            )
        if self.group_size and self.beat_bytes < ROWS:
            raise UnsupportedError(
                f"a beat of {self.beat_bytes} bytes holds no {ROWS} mantissas; choose beat_bytes of at least 8"
            )

    @property
    def words(self) -> int:
        """Words of five rows, the last one padded."""
        return -(-self.rows // ROWS)

    @property
    def blocks(self) -> int:
        """Blocks of the columns of a beat, the last one padded."""
        return -(-self.columns // self.beat_bytes)

    @property
    def group_blocks(self) -> int:
        """Blocks of columns that share mantissas; 0 without mantissas."""
        return self.group_size // self.beat_bytes

    @property
    def groups(self) -> int:
        return -(-self.columns // self.group_size) if self.group_size else 0

    @property
    def tiles(self) -> list[slice]:
        """Tiles as slices of the words."""
        return [slice(at, min(at + self.tile_words, self.words)) for at in range(0, self.words, self.tile_words)]

    def mantissa_beats(self, words: int) -> int:
        """Return the beats of a group's mantissas for ``words`` words of a tile."""
        return -(-words // (self.beat_bytes // ROWS)) if self.group_size else 0

    @property
    def beats(self) -> int:
        tiles: list[int] = [tile.stop - tile.start for tile in self.tiles]
        return self.planes * sum(words * self.blocks + self.groups * self.mantissa_beats(words) for words in tiles)

    def _parts(self) -> Iterator[tuple["_Part", range]]:
        """Yield runs of beats, with their places."""
        at = 0
        for tile in self.tiles:
            height = tile.stop - tile.start
            for plane in range(self.planes):
                for block in range(self.blocks):
                    if self.group_size and block % self.group_blocks == 0:
                        end = at + self.mantissa_beats(height)
                        yield _Part(tile=tile, plane=plane, group=block // self.group_blocks), range(at, end)
                        at = end
                    yield _Part(tile=tile, plane=plane, block=block), range(at, at + height)
                    at += height


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of one tile and plane: a block of columns, or the mantissas of a group."""

    tile: slice
    plane: int
    block: int = 0
    group: int | None = None


def pack(layout: TernaryLayout, trits: NDArray[np.int8], mantissas: U8 | None = None) -> U8:
    """Return the image of a matrix.

    Args:
        layout: layout of the matrix.
        trits: int8 [planes, rows, columns], -1, 0 or 1.
        mantissas: uint8 [planes, rows, groups], only with ``group_size``.

    Returns:
        uint8 [beats, beat_bytes]. In a beat of weights, byte c is the sum over r of (trit of row r, column c, + 1) *
        3**r; in a beat of mantissas, bytes 5 i .. 5 i + 4 belong to its i-th word. The padding after the matrix is zero
        trits and zero mantissas.

    Raises:
        ValueError: a shape is not that of the layout, or a value is not a trit.
    """
    _check_shapes(layout, trits, mantissas)
    words, width = layout.words, layout.beat_bytes
    digits = np.ones((layout.planes, words * ROWS, layout.blocks * width), np.uint8)
    digits[:, : layout.rows, : layout.columns] += trits.view(np.uint8)  # wraps: 1 + 255 is 0
    by_rows = digits.reshape(layout.planes, words, ROWS, layout.blocks, width)
    weights = np.zeros((layout.planes, words, layout.blocks, width), np.uint8)
    for row in range(ROWS):
        weights += by_rows[:, :, row] * np.uint8(_POWERS[row])
    padded = _padded_mantissas(layout, mantissas)
    image = np.zeros((layout.beats, width), np.uint8)
    per_beat = width // ROWS
    for part, where in layout._parts():
        beats = image[where.start : where.stop]
        if part.group is None:
            beats[:] = weights[part.plane, part.tile, part.block]
            continue
        held = np.zeros((len(where) * per_beat, ROWS), np.uint8)
        held[: part.tile.stop - part.tile.start] = padded[part.plane, part.tile, :, part.group]
        beats[:, : per_beat * ROWS] = held.reshape(len(where), -1)
    return image


def unpack(layout: TernaryLayout, image: U8) -> tuple[NDArray[np.int8], U8 | None]:
    """Return trits and mantissas of an image, as ``pack`` takes them.

    Raises:
        BundleError: the image has another size, a byte that does not encode five trits, or padding that is not zero.
    """
    width, per_beat = layout.beat_bytes, layout.beat_bytes // ROWS
    if image.shape != (layout.beats, width):
        raise BundleError(
            f"a ternary image of {'x'.join(map(str, image.shape))} bytes; its matrix needs {layout.beats}x{width}: "
            "compile it again"
        )
    weights = np.zeros((layout.planes, layout.words, layout.blocks, width), np.uint8)
    padded = np.zeros((layout.planes, layout.words, ROWS, layout.groups), np.uint8)
    for part, where in layout._parts():
        beats = image[where.start : where.stop]
        if part.group is None:
            weights[part.plane, part.tile, part.block] = beats
            continue
        height = part.tile.stop - part.tile.start
        held = beats[:, : per_beat * ROWS].reshape(-1, ROWS)
        if held[height:].any() or beats[:, per_beat * ROWS :].any():
            raise BundleError("a ternary image has something behind a group's mantissas; compile it again")
        padded[part.plane, part.tile, :, part.group] = held[:height]
    if (weights >= _BYTES).any():
        at = int(weights.max())
        raise DamagedWeightsError(
            f"a ternary image has the byte {at}; five trits are at most {_BYTES - 1}: compile it again"
        )
    digits = weights[:, :, None] // _POWERS.astype(np.uint8)[:, None, None] % 3  # [planes, words, 5, blocks, width]
    trits = digits.reshape(layout.planes, layout.words * ROWS, -1).astype(np.int8) - np.int8(1)
    mantissas = padded.reshape(layout.planes, layout.words * ROWS, layout.groups)
    rows, columns = layout.rows, layout.columns
    if trits[:, rows:].any() or trits[:, :, columns:].any() or mantissas[:, rows:].any():
        raise BundleError("a ternary image has something behind its matrix's rows or columns; compile it again")
    result = np.ascontiguousarray(trits[:, :rows, :columns])
    return result, np.ascontiguousarray(mantissas[:, :rows]) if layout.group_size else None


def _check_shapes(layout: TernaryLayout, trits: NDArray[np.int8], mantissas: U8 | None) -> None:
    shape_ = (layout.planes, layout.rows, layout.columns)
    if trits.dtype != np.int8 or trits.shape != shape_:
        raise ValueError(f"trits must be int8 {shape_}, not {trits.dtype} {trits.shape}")
    if trits.size and (trits.min() < -1 or trits.max() > 1):
        raise ValueError(f"trits must be -1, 0 or 1, not {int(trits.min())}..{int(trits.max())}")
    if (mantissas is not None) != bool(layout.group_size):
        raise ValueError(
            f"mantissas must be {'given' if layout.group_size else 'None'} with groups of {layout.group_size}"
        )
    shape = (layout.planes, layout.rows, layout.groups)
    if mantissas is not None and (mantissas.dtype != np.uint8 or mantissas.shape != shape):
        raise ValueError(f"mantissas must be uint8 {shape}, not {mantissas.dtype} {mantissas.shape}")


def _padded_mantissas(layout: TernaryLayout, mantissas: U8 | None) -> U8:
    """[planes, words, 5, groups]."""
    padded = np.zeros((layout.planes, layout.words * ROWS, layout.groups), np.uint8)
    if mantissas is not None:
        padded[:, : layout.rows] = mantissas
    return padded.reshape(layout.planes, layout.words, ROWS, layout.groups)
