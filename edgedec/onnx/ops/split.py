"""Columns of a value as values of their own: by edgedec's Columns, or by Split, with heads as a separate axis."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from edgedec.graph.ops import Split
from edgedec.onnx.emitter import Emitter

__all__ = ["lower"]


def lower(op: Split, emitter: Emitter) -> None:
    lowered = _columns if emitter.kernels else _split
    emitter.bound |= dict(zip(op.outputs, lowered(op, emitter.bound[op.inputs[0]], emitter), strict=True))


def _columns(op: Split, x: str, emitter: Emitter) -> list[str]:
    stride, firsts = sum(op.widths), accumulate(op.widths, initial=0)
    return [
        emitter.columns(f"{op.name}.{number}", [(x, head * stride + first, width) for head in range(op.heads)])
        for number, (first, width) in enumerate(zip(firsts, op.widths, strict=False))
    ]


def _split(op: Split, x: str, emitter: Emitter) -> list[str]:
    widths = np.array(op.widths, np.int64)
    sizes = emitter.constant(f"sizes.{'.'.join(map(str, op.widths))}", widths)
    if op.heads == 1:
        outputs = [f"{op.name}.{number}" for number in range(len(widths))]
        emitter.node("Split", [x, sizes], op.name, outputs=outputs, axis=2)
        return outputs
    heads = emitter.node("Reshape", [x, emitter.rows_shape(op.heads, int(widths.sum()))], f"{op.name}.heads")
    parts = [f"{op.name}.{number}.heads" for number in range(len(widths))]
    emitter.node("Split", [heads, sizes], op.name, outputs=parts, axis=3)
    return [
        emitter.node("Reshape", [part, emitter.rows_shape(op.heads * width)], f"{op.name}.{number}")
        for number, (part, width) in enumerate(zip(parts, op.widths, strict=True))
    ]
