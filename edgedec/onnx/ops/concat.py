"""Columns of several values side by side by Concat."""

from __future__ import annotations

from edgedec.onnx.emitter import Emitter
from edgedec.ops import Concat

__all__ = ["lower"]


def lower(op: Concat, emitter: Emitter) -> None:
    inputs = [emitter.bound[name] for name in op.inputs]
    emitter.bound[op.outputs[0]] = emitter.node("Concat", inputs, op.name, axis=2)
