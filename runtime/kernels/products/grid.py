"""Matrices with evenly spaced levels in the kernels' layout (grid.hpp): int4, and ternary planes with tied scales.

The conversion is a transposition, which NumPy does; ``grid_matmul`` is for tests, and for the self-test of the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.onnx.grid_layout import BLOCK_COLUMNS, TILE_ROWS, GridLayout, grid_layout
from edgedec.runtime.kernels import Kernels
from edgedec.schemes import Int4Scheme, TernaryScheme, fold

__all__ = ["grid_matmul", "pack_grid"]

U8 = NDArray[np.uint8]


def pack_grid(
    name: str, scheme: Int4Scheme | TernaryScheme, parts: Mapping[str, NDArray[Any]], shape: tuple[int, int]
) -> U8:
    """Convert the stored parts of a matrix [outputs, inputs], or of some of its rows, to the kernels' layout, uint8 [bytes].

    ``name`` is the name of the tensor in messages.

    Raises:
        BundleError: a code is not a trit.
    """
    layout = grid_layout(scheme)
    assert layout is not None
    outputs, inputs = shape
    tiles, width = -(-outputs // TILE_ROWS), -(-inputs // BLOCK_COLUMNS) * BLOCK_COLUMNS
    rows = np.zeros((tiles * TILE_ROWS, width), np.uint8)
    if isinstance(scheme, Int4Scheme):
        rows[:outputs, :inputs] = scheme.unpack(parts["codes"])[:, :inputs]
        scales = _offset_scales(parts, tiles) if scheme.offset else _by_group(parts["scale"], tiles)
    else:
        trits = scheme.unpack(name, parts["codes"], inputs)
        rows[:outputs, :inputs] = fold(trits) + np.int8(13 if layout.bits == 5 else 8)
        scales = _by_group(parts["scale"][0], tiles)
    # [tile, row, block, four, column] to [tile, block, four, row, column]
    fours = (
        rows.reshape(tiles, TILE_ROWS, width // 32, 8, 4).transpose(0, 2, 3, 1, 4).reshape(tiles, width // 32, 8, 64)
    )
    lines = [(fours[:, :, 0::2] & 15) | fours[:, :, 1::2] << 4]
    if layout.bits == 5:
        lines.append(np.bitwise_or.reduce((fours >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=2)[:, :, None])
    codes = np.concatenate(lines, axis=2).reshape(tiles, -1)
    out = np.zeros((tiles, layout.tile_bytes(inputs)), np.uint8)
    out[:, : codes.shape[1]] = codes
    out[:, codes.shape[1] : codes.shape[1] + scales.shape[1]] = scales
    return out.reshape(-1)


def _tiled(values: NDArray[Any], tiles: int) -> NDArray[Any]:
    """Return values [outputs, n, ...] as [tiles, n, ..., 16], with zeros for rows after the last one."""
    padded = np.zeros((tiles * TILE_ROWS, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return np.moveaxis(padded.reshape(tiles, TILE_ROWS, *values.shape[1:]), 1, -1)


def _bytes(values: NDArray[Any]) -> U8:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def _by_group(scale: NDArray[Any], tiles: int) -> U8:
    """Return scales [outputs, groups] as bytes [tiles, n]."""
    return _bytes(_tiled(scale, tiles))


def _offset_scales(parts: Mapping[str, NDArray[Any]], tiles: int) -> U8:
    """Return factors [outputs, shared, 2] and steps [outputs, groups, 2] as bytes [tiles, n]."""
    factors, steps = _tiled(parts["factors"], tiles), _tiled(parts["steps"], tiles)
    shared = factors.shape[1]
    padded = np.zeros((tiles, shared * Int4Scheme.SHARED, 2, TILE_ROWS), np.uint8)
    padded[:, : steps.shape[1]] = steps
    halves = np.ascontiguousarray(factors).view(np.uint8).reshape(tiles, shared, -1)
    return np.concatenate([halves, padded.reshape(tiles, shared, -1)], axis=2).reshape(tiles, -1)


def grid_matmul(
    kernels: Kernels,
    x: NDArray[np.int8],
    token_scales: NDArray[np.float32],
    packed: U8,
    outputs: int,
    layout: GridLayout,
    *,
    bias: NDArray[np.float32] | None = None,
    code_path: str | None = None,
    tiles: range | None = None,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Multiply activations by a packed matrix and return float32 [tokens, outputs].

    Args:
        kernels: the kernels.
        x: int8 [tokens, inputs].
        token_scales: float32 [tokens].
        packed: result of ``pack_grid``.
        outputs: number of outputs of the matrix.
        layout: the result of ``grid_layout`` for its scheme.
        bias: float32 [outputs]; None: no bias.
        code_path: name of a code path; None: that of this process.
        tiles: tiles whose columns of ``out`` are written, as one of several threads does; None: all.
        out: float32 [tokens, outputs], the array to write to; None: a new one.

    Raises:
        EdgedecError: an array does not fit the sizes, or the code path cannot run on this machine.
    """
    tokens, inputs = x.shape
    out = np.empty((tokens, outputs), np.float32) if out is None else out
    arrays: dict[str, tuple[NDArray[Any] | None, tuple[int, ...], type]] = {
        "x": (x, (tokens, inputs), np.int8),
        "token_scales": (token_scales, (tokens,), np.float32),
        "packed": (packed, (layout.nbytes((outputs, inputs)),), np.uint8),
        "bias": (bias, (outputs,), np.float32),
        "out": (out, (tokens, outputs), np.float32),
    }
    for name, (array, shape, dtype) in arrays.items():
        if array is not None and not (array.shape == shape and array.dtype == dtype and array.flags.c_contiguous):
            raise EdgedecError(f"{name} must be contiguous {np.dtype(dtype)} {shape}, not {array.dtype} {array.shape}")
    tiles = range(-(-outputs // TILE_ROWS)) if tiles is None else tiles
    address = {name: None if array is None else array.ctypes.data for name, (array, _, _) in arrays.items()}
    kernels.call(
        "edgedec_grid_matmul",
        *(code_path.encode() if code_path else None, outputs, inputs, layout.bits, layout.form, layout.group_size),
        *(address[name] for name in ("packed", "bias", "x")),
        *(tokens, address["token_scales"], tiles.start, tiles.stop, address["out"]),
    )
    return out
