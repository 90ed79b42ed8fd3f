"""Gated activation by edgedec's GatedActivation, or by ONNX: silu(gate) * up, relu(gate)^2 * up, or gelu(gate) * up."""

from __future__ import annotations

from edgedec.graph.ops import GatedActivation
from edgedec.onnx.emitter import KERNELS, Emitter

__all__ = ["lower"]

_NUMBERS = {"silu": 0, "relu2": 1, "gelu_tanh": 2}  # Activation in runtime/kernels/rows/rows.hpp


def lower(op: GatedActivation, emitter: Emitter) -> None:
    gate, up = (emitter.bound[name] for name in op.inputs)
    if emitter.kernels:
        number = _NUMBERS[op.activation]
        emitter.bound[op.outputs[0]] = emitter.node(
            "GatedActivation", [gate, up], op.name, domain=KERNELS, activation=number
        )
        return
    if op.activation == "silu":
        factor = emitter.node("Sigmoid", [gate], f"{op.name}.sigmoid")
        activated = emitter.node("Mul", [gate, factor], f"{op.name}.silu")
    elif op.activation == "gelu_tanh":
        activated = emitter.node("Gelu", [gate], f"{op.name}.gelu", approximate="tanh")
    else:
        positive = emitter.node("Relu", [gate], f"{op.name}.relu")
        activated = emitter.node("Mul", [positive, positive], f"{op.name}.relu2")
    emitter.bound[op.outputs[0]] = emitter.node("Mul", [activated, up], op.name)
