"""Sizes of matrices with evenly spaced levels in the kernels' layout, which runtime/kernels/products/grid.hpp defines.

The levels of int4, and of ternary planes with tied scales, are a scale times an integer, so that one kernel serves both.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.schemes import Int4Scheme, Scheme, TernaryScheme

__all__ = ["BLOCK_COLUMNS", "TILE_ROWS", "GridLayout", "grid_layout"]

TILE_ROWS, BLOCK_COLUMNS = 16, 32  # kTileRows and kBlockColumns
_FLOAT, _HALF, _OFFSET = 0, 1, 2  # ScaleForm


@dataclass(frozen=True, kw_only=True)
class GridLayout:
    """The sizes of a scheme in the kernels: bits of a code, form of the scales, and columns that share a scale."""

    bits: int
    form: int
    group_size: int

    def tile_bytes(self, inputs: int) -> int:
        """Return the bytes of a tile of 16 rows, which is ``Grid::tile_bytes`` of grid.hpp."""
        blocks, groups = -(-inputs // BLOCK_COLUMNS), -(-inputs // self.group_size)
        if self.form == _OFFSET:
            scales = -(-groups // Int4Scheme.SHARED) * (4 + 2 * Int4Scheme.SHARED) * TILE_ROWS
        else:
            scales = groups * TILE_ROWS * (2 if self.form == _HALF else 4)
        return -(-(blocks * BLOCK_COLUMNS * TILE_ROWS * self.bits // 8 + scales) // 64) * 64

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a matrix [outputs, inputs]."""
        return -(-shape[0] // TILE_ROWS) * self.tile_bytes(shape[1])


def grid_layout(scheme: Scheme) -> GridLayout | None:
    """Return the sizes of a scheme with evenly spaced levels, and None for all others."""
    if isinstance(scheme, Int4Scheme):
        return GridLayout(bits=4, form=_OFFSET if scheme.offset else _HALF, group_size=scheme.GROUP)
    if isinstance(scheme, TernaryScheme) and scheme.tied:
        return GridLayout(bits=scheme.planes + 2, form=_FLOAT, group_size=scheme.group_size)
    return None
