"""Calls of the kernels on rows of activations, for tests and benchmarks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.runtime.kernels import Kernels

__all__ = ["hadamard"]


def hadamard(
    kernels: Kernels,
    x: NDArray[np.float32],
    signs: NDArray[np.float32],
    *,
    inverse: bool = False,
    code_path: str | None = None,
) -> NDArray[np.float32]:
    """Return the Walsh-Hadamard transform of each row, float32 [n, block], as the operator Hadamard computes it.

    Args:
        kernels: the kernels.
        x: float32 [n, block].
        signs: float32 [block].
        inverse: True to multiply by the signs after the transform.
        code_path: name of a code path; None: that of this process.

    Raises:
        EdgedecError: the block is not a power of two, or the code path cannot run on this machine.
    """
    block = x.shape[1]
    x = np.ascontiguousarray(x, np.float32)
    if signs.shape != (block,) or signs.dtype != np.float32:
        raise EdgedecError(f"signs must be float32 {(block,)}, not {signs.dtype} {signs.shape}")
    signs = np.ascontiguousarray(signs)
    out = np.empty_like(x)
    kernels.call(
        "edgedec_hadamard",
        code_path.encode() if code_path else None,
        x.ctypes.data,
        signs.ctypes.data,
        *(x.size, block, int(inverse), out.ctypes.data),
    )
    return out
