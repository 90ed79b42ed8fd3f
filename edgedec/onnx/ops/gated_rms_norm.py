"""RMS norm of gated columns: a gated activation, and the norm of each group, with the gains of all groups behind it.

A value is multiplied by its gain last in any case, so that groups cost one more operation and no rounding.
"""

from __future__ import annotations

import numpy as np

from edgedec.graph.ops import GatedActivation, GatedRmsNorm
from edgedec.onnx.emitter import Emitter
from edgedec.onnx.ops import gated_activation, rms_norm

__all__ = ["lower"]


def lower(op: GatedRmsNorm, emitter: Emitter) -> None:
    name = f"{op.name}.gated"
    gate = GatedActivation(name=name, inputs=op.inputs, outputs=(name,), activation="silu")
    gated_activation.lower(gate, emitter)
    x = emitter.bound[name]
    if op.groups == 1:
        emitter.bound[op.outputs[0]] = rms_norm.normed(x, emitter.own_weight(op.weight), op.name, op.eps, emitter)
        return
    (width,) = emitter.graph.weights[op.weight].shape
    ones = emitter.constant(f"ones.{width // op.groups}", np.ones(width // op.groups, np.float32))
    normed = rms_norm.normed(x, ones, f"{op.name}.normed", op.eps, emitter, heads=(op.groups, width // op.groups))
    emitter.bound[op.outputs[0]] = emitter.product_of(normed, emitter.own_weight(op.weight), op.name)
