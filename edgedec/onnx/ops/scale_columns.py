"""Columns times constants by edgedec's Multiply or by Mul. One multiplication for each value gives the reference's bits."""

from __future__ import annotations

import numpy as np

from edgedec.graph.ops import ScaleColumns
from edgedec.onnx.emitter import Emitter

__all__ = ["lower"]


def lower(op: ScaleColumns, emitter: Emitter) -> None:
    factors = emitter.constant(f"{op.name}.factors", np.repeat(np.array(op.factors, np.float32), op.widths))
    emitter.bound[op.outputs[0]] = emitter.product_of(emitter.bound[op.inputs[0]], factors, op.name)
