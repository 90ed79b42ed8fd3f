"""Products of float activations and float matrices: ``FloatScheme``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.linear import Ending, product, tiled
from edgedec.runtime.gpu.kernels.rows import Columns
from edgedec.runtime.gpu.kernels.source import ShaderBuffer, ShaderOptions
from edgedec.schemes import FloatScheme

__all__ = ["linear_float", "pack_float"]

_SLICES = 8  # sums of an output, which are added in order
_PER_WORD = {"float32": 1, "float16": 2, "bfloat16": 2}
_VALUES = {
    "float32": "return bitcast<f32>(word);",
    "float16": "return from_half((word >> (16u * (i % 2u))) & 0xffffu);",
    "bfloat16": "return bitcast<f32>((word >> (16u * (i % 2u))) << 16u);",
}


def pack_float(matrices: Sequence[NDArray[Any]]) -> NDArray[np.uint32]:
    """Convert stored matrices [outputs, inputs] of one dtype and equal columns to [tile][block][output] of 4 words."""
    values = np.concatenate(matrices)
    size = values.dtype.itemsize
    blocks = -(-values.shape[1] * size // 16)
    wide = np.zeros((len(values), blocks * 16 // size), values.dtype)
    wide[:, : values.shape[1]] = values
    words = tiled(wide.view(np.uint32))
    return np.ascontiguousarray(words.reshape(*words.shape[:2], blocks, 4).transpose(0, 2, 1, 3)).reshape(-1)


def linear_float(
    options: ShaderOptions,
    *,
    outputs: int,
    inputs: int,
    scheme: FloatScheme,
    ending: Ending | None = None,
    x: Columns | None = None,
) -> Kernel:
    """Return the product with a matrix of ``pack_float``: (x [rows, inputs], weights, bias?, residual?) -> y.

    It reads each byte of the matrix once for each 8 rows. The order of its sums is its own: see linear_float.wgsl.
    """
    per_word, at = _PER_WORD[scheme.dtype], x or Columns(offset=0, stride=inputs)
    return product(
        "linear_float",
        options,
        sweep="linear_float",
        outputs=outputs,
        ending=ending or Ending(),
        buffers=(ShaderBuffer(name="x"), ShaderBuffer(name="weights", element="vec4<u32>")),
        before=("half", f"fn weight_value(word: u32, i: u32) -> f32 {{ {_VALUES[scheme.dtype]} }}\n"),
        constants={
            "INPUTS": inputs,
            "BLOCKS": -(-inputs // (4 * per_word)),
            "PER_WORD": per_word,
            "X_STRIDE": at.stride,
            "X_OFFSET": at.offset,
            "SLICES": _SLICES,
        },
        parts=_SLICES,
    )
