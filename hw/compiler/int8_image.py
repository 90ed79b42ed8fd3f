"""int8 matrices as the beats that the accelerator reads, in the order in which it uses them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.hw.config import ROWS

__all__ = ["Int8Layout", "pack", "unpack"]

I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Int8Layout:
    """The layout of a matrix in memory, in the order of edgedec.hw.matrix.matrix_path.

    Members:
        beat_bytes: columns of a beat.
        tile_words: words of five rows in a tile.
        rows, columns: size of the matrix, at least 1 each.
    """

    beat_bytes: int
    tile_words: int
    rows: int
    columns: int

    def __post_init__(self) -> None:
        for name in ("beat_bytes", "tile_words", "rows", "columns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")

    @property
    def words(self) -> int:
        """Words of five rows, the last one padded."""
        return -(-self.rows // ROWS)

    @property
    def blocks(self) -> int:
        """Blocks of the columns of a beat, the last one padded."""
        return -(-self.columns // self.beat_bytes)

    @property
    def beats(self) -> int:
        return self.words * ROWS * self.blocks

    @property
    def tiles(self) -> list[slice]:
        """Tiles as slices of the rows, padding rows included."""
        end, height = self.words * ROWS, self.tile_words * ROWS
        return [slice(at, min(at + height, end)) for at in range(0, end, height)]


def pack(layout: Int8Layout, codes: I8) -> U8:
    """Return the image of a matrix.

    Args:
        layout: layout of the matrix.
        codes: int8 [rows, columns], with the signs of negative scales included.

    Returns:
        uint8 [beats, beat_bytes]. A beat holds a row's codes of a block of columns, in two's complement; padding is
        zero.

    Raises:
        ValueError: ``codes`` has another shape or type.
    """
    if codes.dtype != np.int8 or codes.shape != (layout.rows, layout.columns):
        raise ValueError(f"codes must be int8 {(layout.rows, layout.columns)}, not {codes.dtype} {codes.shape}")
    width = layout.beat_bytes
    padded = np.zeros((layout.words * ROWS, layout.blocks * width), np.int8)
    padded[: layout.rows, : layout.columns] = codes
    by_blocks = padded.reshape(-1, layout.blocks, width)
    tiles = [by_blocks[tile].swapaxes(0, 1).reshape(-1, width) for tile in layout.tiles]
    return np.concatenate(tiles).view(np.uint8)


def unpack(layout: Int8Layout, image: U8) -> I8:
    """Return the codes of an image, as ``pack`` takes them.

    Raises:
        BundleError: the image has another size, or padding that is not zero.
    """
    width = layout.beat_bytes
    if image.shape != (layout.beats, width):
        raise BundleError(
            f"an int8 image of {'x'.join(map(str, image.shape))} bytes; its matrix needs {layout.beats}x{width}: "
            "compile it again"
        )
    tiles, at = [], 0
    for tile in layout.tiles:
        height = tile.stop - tile.start
        beats = image[at : at + height * layout.blocks]
        tiles.append(beats.reshape(layout.blocks, height, width).swapaxes(0, 1).reshape(height, -1))
        at += len(beats)
    padded = np.concatenate(tiles).view(np.int8)
    if padded[layout.rows :].any() or padded[:, layout.columns :].any():
        raise BundleError("an int8 image has something behind its matrix's rows or columns; compile it again")
    return np.ascontiguousarray(padded[: layout.rows, : layout.columns])
