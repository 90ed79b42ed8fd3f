"""Selection of the rows whose logits are requested."""

from __future__ import annotations

from edgedec.graph.ops import SelectRows
from edgedec.onnx.emitter import KERNELS, Emitter

__all__ = ["lower"]


def lower(op: SelectRows, emitter: Emitter) -> None:
    inputs = [emitter.bound[name] for name in op.inputs]
    if emitter.kernels:
        emitter.bound[op.outputs[0]] = emitter.node("SelectRows", inputs, op.name, domain=KERNELS)
        return
    emitter.bound[op.outputs[0]] = emitter.node("Gather", inputs, op.name, axis=1)
