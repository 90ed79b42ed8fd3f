"""Products with ternary planes whose scales are free: ``TernaryScheme`` that is not tied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.linear import Ending, Packed, linear, tiled
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.schemes import TernaryScheme

__all__ = ["linear_ternary", "pack_ternary"]

_COLUMNS = 64  # columns of 16 bytes


def pack_ternary(
    scheme: TernaryScheme, inputs: int, matrices: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]]
) -> Packed:
    """Convert stored codes, uint8 [planes, outputs, blocks, block / 4], and scales of matrices with equal columns.

    The codes become [tile][plane][block][output] of 64 columns, and the scales [tile][plane][group][output]: one scale for a
    whole tensor is repeated for each output.
    """
    blocks = -(-inputs // _COLUMNS)
    codes, scales = [], []
    for stored, scale in matrices:
        planes, outputs = stored.shape[:2]
        row = stored.reshape(planes, outputs, -1)
        wide = np.full((planes, outputs, blocks * _COLUMNS // 4), 0xAA, np.uint8)  # trits + 2 are zero trits
        wide[..., : row.shape[2]] = row[..., : wide.shape[2]]
        codes.append(np.moveaxis(wide - np.uint8(0x55), 1, 0))  # every trit + 2 is at least 1: no borrow
        by_output = scale if scheme.group_size else np.broadcast_to(scale, (planes, outputs, 1))
        scales.append(np.moveaxis(by_output, 1, 0))
    # Byte k of a word has columns 4 k to 4 k + 3; it gets the columns k, k + 4, k + 8 and k + 12.
    words = tiled(np.concatenate(codes)).view("<u4").astype(np.uint32)
    turned = np.zeros_like(words)
    for byte in range(4):
        for j in range(4):
            turned |= (words >> np.uint32(8 * j + 2 * byte) & np.uint32(3)) << np.uint32(8 * byte + 2 * j)
    tile, outs, planes, _ = turned.shape
    blocked = turned.reshape(tile, outs, planes, blocks, 4).transpose(0, 2, 3, 1, 4)
    grouped = tiled(np.concatenate(scales).astype(np.float32)).transpose(0, 2, 3, 1)
    return Packed(weights=np.ascontiguousarray(blocked).reshape(-1), scales=np.ascontiguousarray(grouped).reshape(-1))


def linear_ternary(
    options: ShaderOptions,
    *,
    outputs: int,
    inputs: int,
    planes: int,
    group_size: int,
    ending: Ending | None = None,
) -> Kernel:
    """Return the product with planes of ``pack_ternary``: (codes, scales, weights, weight_scales, ...) -> y.

    It reads ``outputs * inputs * planes / 4`` bytes of codes for each 8 rows, and 4 bytes of scales per group and output.
    """
    unit = max(group_size, _COLUMNS)
    return linear(
        "linear_ternary",
        options,
        sweep="linear_ternary_grouped" if group_size else "linear_ternary_whole",
        outputs=outputs,
        inputs=inputs,
        ending=ending or Ending(),
        constants={
            "PLANES": planes,
            "BLOCKS": -(-inputs // _COLUMNS),
            "GROUP": group_size,
            "GROUPS": -(-inputs // group_size) if group_size else 1,
            "UNITS": -(-inputs // unit),
            "UNIT_BLOCKS": unit // _COLUMNS,
            "UNIT_GROUPS": unit // group_size if group_size else 1,
        },
        parts=2 if group_size == 32 else 1,
        before=("linear_ternary",),
    )
