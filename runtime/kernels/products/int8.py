"""Calls of the int8 kernel for tests: the product of the operator Int8MatMul, with activations that are quantized."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.runtime.kernels import Kernels

__all__ = ["int8_matmul"]


def int8_matmul(
    kernels: Kernels,
    x: NDArray[np.int8],
    token_scales: NDArray[np.float32],
    codes: NDArray[np.int8],
    scales: NDArray[np.float32],
    *,
    by_rows: bool,
    bias: NDArray[np.float32] | None = None,
    code_path: str | None = None,
    rows: range | None = None,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Multiply activations by a stored matrix and return float32 [tokens, outputs].

    Args:
        kernels: the kernels.
        x: int8 [tokens, inputs], -127 to 127.
        token_scales: float32 [tokens].
        codes: int8 [outputs, inputs] with ``by_rows``, otherwise [inputs, outputs], as ``Int8Scheme`` stores them.
        scales: float32 [outputs].
        by_rows: order of ``codes``.
        bias: float32 [outputs]; None: no bias.
        code_path: name of a code path; None: that of this process.
        rows: outputs that are written, as one of several threads does; None: all.
        out: float32 [tokens, outputs], the array to write to; None: a new one.

    Raises:
        EdgedecError: an array does not fit the sizes, or the code path cannot run on this machine.
    """
    tokens, inputs = x.shape
    outputs = codes.shape[0 if by_rows else 1]
    out = np.empty((tokens, outputs), np.float32) if out is None else out
    arrays: dict[str, tuple[NDArray[Any] | None, tuple[int, ...], type]] = {
        "x": (x, (tokens, inputs), np.int8),
        "token_scales": (token_scales, (tokens,), np.float32),
        "codes": (codes, (outputs, inputs) if by_rows else (inputs, outputs), np.int8),
        "scales": (scales, (outputs,), np.float32),
        "bias": (bias, (outputs,), np.float32),
        "out": (out, (tokens, outputs), np.float32),
    }
    for name, (array, shape, dtype) in arrays.items():
        if array is not None and not (array.shape == shape and array.dtype == dtype and array.flags.c_contiguous):
            raise EdgedecError(f"{name} must be contiguous {np.dtype(dtype)} {shape}, not {array.dtype} {array.shape}")
    rows = range(outputs) if rows is None else rows
    address = {name: None if array is None else array.ctypes.data for name, (array, _, _) in arrays.items()}
    kernels.call(
        "edgedec_int8_matmul",
        *(code_path.encode() if code_path else None, outputs, inputs, int(by_rows)),
        *(address[name] for name in ("codes", "scales", "bias", "x")),
        *(tokens, address["token_scales"], rows.start, rows.stop, address["out"]),
    )
    return out
