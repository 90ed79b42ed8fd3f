"""Layer norm by edgedec's LayerNorm."""

from __future__ import annotations

from edgedec.graph.ops import LayerNorm
from edgedec.onnx.emitter import KERNELS, Emitter
from edgedec.onnx.ops._kernels_only import check_kernels

__all__ = ["lower"]


def lower(op: LayerNorm, emitter: Emitter) -> None:
    check_kernels(op, emitter)
    inputs = [emitter.bound[op.inputs[0]], *map(emitter.own_weight, op.weight_names)]
    emitter.bound[op.outputs[0]] = emitter.node("LayerNorm", inputs, op.name, domain=KERNELS, eps=op.eps)
