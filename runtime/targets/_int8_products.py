"""A test of which int8 matrix products ONNX Runtime computes exactly on this CPU.

On x86 CPUs without VNNI, ONNX Runtime's uint8 x int8 kernels add pairs of products in 16 bits and saturate silently;
products of uint8 x uint8 are summed in 32 bits. Source: the note on 7-bit weights in ONNX Runtime's quantization guide;
measured on AVX2.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.host.ort import onnxruntime as ort
from edgedec.onnx.model_bytes import DataType, Node, TensorValue, ValueInfo, encode_model

__all__ = ["product_is_exact", "signed_int8_is_exact"]

_ZERO_POINT = 128  # zero point of uint8 activations
# Sizes of the tested matrices, chosen so that the last groups of columns and rows are incomplete.
_INPUTS, _OUTPUTS = 303, 101
_ROWS = (1, 2, 3, 4, 6, 8, 12, 32)  # numbers of rows, because kernels differ for 1 to 12 rows


@functools.cache
def signed_int8_is_exact() -> bool:
    """Return whether products of uint8 activations x int8 weights are exact. The test runs once per process.

    Raises:
        DeviceError: neither these products are exact, nor those of uint8 x uint8.
    """
    if product_is_exact(unsigned=False):
        return True
    if product_is_exact(unsigned=True):
        return False
    raise DeviceError(
        f"ONNX Runtime {ort.__version__} multiplies int8 matrices wrongly on this CPU, as uint8 x int8 and as uint8 x "
        "uint8; use --device float_reference, or another version of ONNX Runtime"
    )


def product_is_exact(*, unsigned: bool) -> bool:
    """Return whether MatMulInteger, as the lowering uses it, gives exact sums for the codes with the largest products."""
    rng = np.random.default_rng(0)
    weights = rng.choice(np.array([-127, 127], np.int8), (_INPUTS, _OUTPUTS))
    weights[:, 0] = 127  # with the first row of codes, a sum of products of equal sign
    session = _session(weights, unsigned)
    for rows in _ROWS:
        codes = rng.choice(np.array([-127, 127], np.int8), (rows, _INPUTS))
        codes[0] = 127
        expected = codes.astype(np.int32) @ weights.astype(np.int32)
        (sums,) = session.run(None, {"x": (codes.astype(np.int16) + _ZERO_POINT).astype(np.uint8)})
        if not np.array_equal(sums, expected):
            return False
    return True


def _session(weights: NDArray[np.int8], unsigned: bool) -> ort.InferenceSession:
    """Return a session from x uint8 [m, _INPUTS] to y int32 [m, _OUTPUTS]; the weights are constants, so it packs them."""
    dtype = DataType.UINT8 if unsigned else DataType.INT8
    codes = weights.view(np.uint8) ^ _ZERO_POINT if unsigned else weights
    constants = [
        TensorValue(name="w", dtype=dtype, shape=weights.shape, data=codes.tobytes()),
        TensorValue(name="zero", dtype=DataType.UINT8, shape=(), data=bytes([_ZERO_POINT])),
    ]
    inputs = ["x", "w", "zero", "zero"] if unsigned else ["x", "w", "zero"]
    model = encode_model(
        "edgedec.int8_products",
        nodes=[Node(kind="MatMulInteger", inputs=inputs, outputs=["y"])],
        inputs=[ValueInfo(name="x", dtype=DataType.UINT8, shape=["m", _INPUTS])],
        outputs=[ValueInfo(name="y", dtype=DataType.INT32, shape=["m", _OUTPUTS])],
        constants=constants,
        opsets={"": 21},
    )
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
