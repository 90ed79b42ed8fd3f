"""The embedding: rows of the stored table, or of the pass's own embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.runtime.gpu.kernels.kernel import Count, Kernel, spread
from edgedec.runtime.gpu.kernels.linear import OUTS
from edgedec.runtime.gpu.kernels.source import ShaderBuffer, ShaderOptions, assemble
from edgedec.schemes import FloatScheme, Int8Scheme, Scheme

__all__ = ["embed", "pack_embedding"]

_VALUES = {
    "float32": "return bitcast<f32>(word);",
    "float16": "return from_half((word >> (16u * (i % 2u))) & 0xffffu);",
    "bfloat16": "return bitcast<f32>((word >> (16u * (i % 2u))) << 16u);",
    "int8": "return mul(f32(bitcast<i32>(word << (24u - 8u * (i % 4u))) >> 24u), row_scales[u32(row_id)]);",
}
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8}


def _kind(scheme: Scheme) -> str:
    """Return the form of the values.

    Raises:
        UnsupportedError: the scheme is not stored by rows.
    """
    if isinstance(scheme, FloatScheme):
        return scheme.dtype
    if isinstance(scheme, Int8Scheme) and scheme.rows:
        return "int8"
    raise UnsupportedError(f"an embedding is stored as floats or as int8 by rows, not as {scheme}; quantize it again")


def pack_embedding(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Convert stored values or codes [vocab, width] to uint32 words, whole words for each row."""
    size = values.dtype.itemsize
    padded = np.zeros((len(values), -(-values.shape[1] * size // 4) * 4 // size), values.dtype)
    padded[:, : values.shape[1]] = values
    return padded.view(np.uint32).reshape(-1)


def embed(options: ShaderOptions, *, width: int, scheme: Scheme, scale: float = 1.0, tiled: bool = False) -> Kernel:
    """Return (table, row_scales?, embeds) -> out [n, width].

    The table is that of ``pack_embedding``, or with ``tiled`` the weights of ``pack_int8``, which a product with the same
    matrix reads as well; ``row_scales`` [vocab] is there with int8. Row k - 1 of ``embeds`` [m, width] belongs to the id -k.

    Raises:
        UnsupportedError: the scheme is not stored by rows.
    """
    kind = _kind(scheme)
    bits = _BITS[kind]
    value = f"fn table_value(word: u32, i: u32) -> f32 {{ {_VALUES[kind]} }}\n"
    return assemble(
        "embed",
        options,
        buffers=(
            ShaderBuffer(name="table", element="u32"),
            *([ShaderBuffer(name="row_scales")] if kind == "int8" else []),
            ShaderBuffer(name="embeds"),
            ShaderBuffer(name="out", access="read_write"),
        ),
        parts=("half", value, "source_embedding", "end_each"),
        constants={
            "WIDTH": width,
            "OUT_STRIDE": width,
            "BITS": bits,
            "ROW_WORDS": -(-width * bits // 32),
            "TILED": tiled,
            "OUTS": OUTS,
            "BLOCKS": -(-width // 16),
            "SCALE": float(scale),
        },
        groups=spread(-(-width // 256), Count(rows=1)),
    )
