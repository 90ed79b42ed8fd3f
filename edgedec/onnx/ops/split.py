"""Columns of a value as values of their own by Split; with heads, these become a separate axis."""

from __future__ import annotations

import numpy as np

from edgedec.onnx.emitter import Emitter
from edgedec.ops import Split

__all__ = ["lower"]


def lower(op: Split, emitter: Emitter) -> None:
    x, widths = emitter.bound[op.inputs[0]], np.array(op.widths, np.int64)
    sizes = emitter.constant(f"sizes.{'.'.join(map(str, op.widths))}", widths)
    if op.heads == 1:
        outputs = [f"{op.name}.{number}" for number in range(len(widths))]
        emitter.node("Split", [x, sizes], op.name, outputs=outputs, axis=2)
    else:
        heads = emitter.node("Reshape", [x, emitter.rows_shape(op.heads, int(widths.sum()))], f"{op.name}.heads")
        parts = [f"{op.name}.{number}.heads" for number in range(len(widths))]
        emitter.node("Split", [heads, sizes], op.name, outputs=parts, axis=3)
        outputs = [
            emitter.node("Reshape", [part, emitter.rows_shape(op.heads * width)], f"{op.name}.{number}")
            for number, (part, width) in enumerate(zip(parts, op.widths, strict=True))
        ]
    emitter.bound |= dict(zip(op.outputs, outputs, strict=True))
