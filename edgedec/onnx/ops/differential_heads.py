"""The difference of pairs of heads by edgedec's HeadDifference."""

from __future__ import annotations

from edgedec.graph.ops import DifferentialHeads
from edgedec.onnx.emitter import KERNELS, Emitter
from edgedec.onnx.ops._kernels_only import check_kernels

__all__ = ["lower"]


def lower(op: DifferentialHeads, emitter: Emitter) -> None:
    check_kernels(op, emitter)
    inputs = [emitter.bound[op.inputs[0]], *map(emitter.own_weight, op.factors)]
    emitter.bound[op.outputs[0]] = emitter.node(
        "HeadDifference", inputs, op.name, domain=KERNELS, pairs=op.pairs, start=op.start
    )
