"""Residual addition."""

from __future__ import annotations

from edgedec.onnx.emitter import Emitter
from edgedec.ops import Add

__all__ = ["lower"]


def lower(op: Add, emitter: Emitter) -> None:
    first, second = (emitter.bound[name] for name in op.inputs)
    emitter.bound[op.outputs[0]] = emitter.sum_of(first, second, op.name)
