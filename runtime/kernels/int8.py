"""The int8 product by itself, for tests: what the operator Int8MatMul does with activations that are codes already."""

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
    """x [tokens, inputs], -127..127, times a stored matrix: float32 [tokens, outputs].

    Args:
        codes: [outputs, inputs] ``by_rows``, else [inputs, outputs], as ``Int8Scheme`` stores them.
        scales: one per output; ``token_scales``: one per token.
        rows: outputs to make, the others stay as they are: what one thread of several does.

    Raises:
        EdgedecError: arrays that do not fit the sizes, or a code path that cannot run here.
    """
    tokens, inputs = x.shape
    outputs = codes.shape[0 if by_rows else 1]
    out = np.empty((tokens, outputs), np.float32) if out is None else out
    wanted: dict[str, tuple[NDArray[Any] | None, tuple[int, ...], type]] = {
        "x": (x, (tokens, inputs), np.int8),
        "token_scales": (token_scales, (tokens,), np.float32),
        "codes": (codes, (outputs, inputs) if by_rows else (inputs, outputs), np.int8),
        "scales": (scales, (outputs,), np.float32),
        "bias": (bias, (outputs,), np.float32),
        "out": (out, (tokens, outputs), np.float32),
    }
    for name, (array, shape, dtype) in wanted.items():
        if array is not None and not (array.shape == shape and array.dtype == dtype and array.flags.c_contiguous):
            raise EdgedecError(f"{name} must be contiguous {np.dtype(dtype)} {shape}, not {array.dtype} {array.shape}")
    rows = range(outputs) if rows is None else rows
    address = {name: None if array is None else array.ctypes.data for name, (array, _, _) in wanted.items()}
    kernels.call(
        "edgedec_int8_matmul",
        *(code_path.encode() if code_path else None, outputs, inputs, int(by_rows)),
        *(address[name] for name in ("codes", "scales", "bias", "x")),
        *(tokens, address["token_scales"], rows.start, rows.stop, address["out"]),
    )
    return out
