"""A short convolution along the path of each row, by edgedec's CausalConv."""

from __future__ import annotations

import numpy as np

from edgedec.graph.ops import CausalConv
from edgedec.onnx.emitter import Emitter
from edgedec.onnx.ops._recurrent import stateful

__all__ = ["lower"]


def lower(op: CausalConv, emitter: Emitter) -> None:
    name = f"{op.weight}.taps"
    taps = emitter.derived(emitter.own_weight(op.weight), name, lambda values: values.transpose(2, 1, 0))
    if taps is None:  # once, when constants are folded
        taps = emitter.once("Transpose", [emitter.float_weight(op.weight)], name, perm=[2, 1, 0])
    channels = emitter.graph.weights[op.weight].shape[0]
    zeros = emitter.constant(f"zeros.{channels}", np.zeros(channels, np.float32))
    stateful(op, "CausalConv", [taps, emitter.own_weight(op.bias) if op.bias else zeros], emitter)
