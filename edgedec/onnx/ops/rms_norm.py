"""SimplifiedLayerNormalization: bit-equal for a row whatever the number of rows."""

from __future__ import annotations

from edgedec.onnx.emitter import Emitter
from edgedec.ops import RmsNorm

__all__ = ["lower"]


def lower(op: RmsNorm, emitter: Emitter) -> None:
    inputs = [emitter.bound[op.inputs[0]], emitter.float_weight(op.weight)]
    emitter.bound[op.outputs[0]] = emitter.node(
        "SimplifiedLayerNormalization", inputs, op.name, axis=-1, epsilon=op.eps, stash_type=1
    )
