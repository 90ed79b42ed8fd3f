"""A value times the logistic function of its gate, by edgedec's GatedActivation or by Sigmoid."""

from __future__ import annotations

from edgedec.graph.ops import SigmoidGate
from edgedec.onnx.emitter import KERNELS, Emitter

__all__ = ["lower"]

_SIGMOID = 3  # Activation in runtime/kernels/rows/rows.hpp


def lower(op: SigmoidGate, emitter: Emitter) -> None:
    gate, x = (emitter.bound[name] for name in op.inputs)
    if emitter.kernels:
        made = emitter.node("GatedActivation", [gate, x], op.name, domain=KERNELS, activation=_SIGMOID)
    else:
        made = emitter.node("Mul", [emitter.node("Sigmoid", [gate], f"{op.name}.sigmoid"), x], op.name)
    emitter.bound[op.outputs[0]] = made
