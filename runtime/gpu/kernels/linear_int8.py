"""Products with int8 matrices: ``Int8Scheme``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.linear import Ending, Packed, linear, tiled
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.schemes import Int8Scheme

__all__ = ["linear_int8", "pack_int8"]

_COLUMNS = 16  # columns of 16 bytes


def pack_int8(scheme: Int8Scheme, matrices: Sequence[tuple[NDArray[np.int8], NDArray[np.float32]]]) -> Packed:
    """Convert stored codes and scales of matrices with equal columns to [tile][block][output] of 16 columns."""
    codes = np.concatenate([stored if scheme.rows else stored.T for stored, _ in matrices])
    blocks = -(-codes.shape[1] // _COLUMNS)
    wide = np.zeros((len(codes), blocks * _COLUMNS), np.int8)
    wide[:, : codes.shape[1]] = codes
    words = tiled(wide).view("<u4").reshape(-1, tiled(wide).shape[1], blocks, 4).transpose(0, 2, 1, 3)
    scales = tiled(np.concatenate([scale for _, scale in matrices]))
    return Packed(weights=np.ascontiguousarray(words).reshape(-1), scales=scales.reshape(-1))


def linear_int8(options: ShaderOptions, *, outputs: int, inputs: int, ending: Ending | None = None) -> Kernel:
    """Return the product with a matrix of ``pack_int8``: (codes, scales, weights, weight_scales, ...) -> y.

    It reads ``outputs * inputs`` bytes of codes for each 8 rows, and 4 bytes of scales per output.
    """
    return linear(
        "linear_int8",
        options,
        sweep="linear_int8",
        outputs=outputs,
        inputs=inputs,
        ending=ending or Ending(),
        constants={"BLOCKS": -(-inputs // _COLUMNS)},
    )
