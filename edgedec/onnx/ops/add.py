"""Residual addition."""

from __future__ import annotations

from edgedec.onnx.emitter import Emitter
from edgedec.ops import Add

__all__ = ["lower"]


def lower(op: Add, emitter: Emitter) -> None:
    emitter.bound[op.outputs[0]] = emitter.node("Add", [emitter.bound[name] for name in op.inputs], op.name)
