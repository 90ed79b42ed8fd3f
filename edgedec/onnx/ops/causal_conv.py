"""A short convolution along the path of each row, by edgedec's CausalConv."""

from __future__ import annotations

import numpy as np

from edgedec.onnx.emitter import Emitter
from edgedec.onnx.ops._recurrent import stateful
from edgedec.ops import CausalConv

__all__ = ["lower"]


def lower(op: CausalConv, emitter: Emitter) -> None:
    weight = emitter.float_weight(op.weight)
    taps = emitter.once("Transpose", [weight], f"{weight}.taps", perm=[2, 1, 0])  # once, when constants are folded
    channels = emitter.graph.weights[op.weight].shape[0]
    zeros = emitter.constant(f"zeros.{channels}", np.zeros(channels, np.float32))
    stateful(op, "CausalConv", [taps, emitter.float_weight(op.bias) if op.bias else zeros], emitter)
