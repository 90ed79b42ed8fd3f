"""Per-token int8 activations, written as uint8 with zero point 128 (int8 x int8 is 30 times slower in MatMulInteger).

Nodes are only added for an int8 linear, because ternary linears use the float value, which MatMulNBits quantizes itself.
"""

from __future__ import annotations

import numpy as np

from edgedec.graph.ops import QuantizeActivation
from edgedec.onnx.emitter import Emitter
from edgedec.onnx.model_bytes import DataType

__all__ = ["ZERO_POINT", "codes_and_scale", "lower"]

ZERO_POINT = 128


def lower(op: QuantizeActivation, emitter: Emitter) -> None:
    for output in op.outputs:
        emitter.sources[output] = op.inputs[0]


def codes_and_scale(codes: str, emitter: Emitter) -> tuple[str, str]:
    """Return the ONNX names of the uint8 codes [1, n, width] and the scale [1, n, 1] of the graph value ``codes``."""
    source = emitter.sources[codes]
    key = f"{source}.uint8"
    if key not in emitter.bound:
        x, at = emitter.bound[source], f"{source}.quantize"
        last_axis = emitter.constant("last_axis", np.array([-1], np.int64))
        magnitude = emitter.node("Abs", [x], f"{at}.abs")
        absmax = emitter.node("ReduceMax", [magnitude, last_axis], f"{at}.absmax", keepdims=1)
        scale = emitter.node("Div", [absmax, emitter.scalar("f127", 127)], f"{at}.scale")
        # For a row of zeros, 0 / tiny is 0, while 0 / 0 is NaN. The smallest normal number changes no other row.
        divisor = emitter.node("Max", [scale, emitter.scalar("tiny", 2.0**-126)], f"{at}.divisor")
        whole = emitter.node("Round", [emitter.node("Div", [x, divisor], f"{at}.div")], f"{at}.round")
        shifted = emitter.node("Add", [whole, emitter.scalar("f128", ZERO_POINT)], f"{at}.shift")
        emitter.bound[key] = emitter.node("Cast", [shifted], f"{at}.codes", to=DataType.UINT8)
        emitter.bound[f"{key}.scale"] = scale
    return emitter.bound[key], emitter.bound[f"{key}.scale"]
