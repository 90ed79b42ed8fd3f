"""Residual addition."""

from __future__ import annotations

from edgedec.graph.ops import Add
from edgedec.onnx.emitter import Emitter

__all__ = ["lower"]


def lower(op: Add, emitter: Emitter) -> None:
    first, second = (emitter.bound[name] for name in op.inputs)
    emitter.bound[op.outputs[0]] = emitter.sum_of(first, second, op.name)
