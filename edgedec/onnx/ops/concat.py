"""Columns of several values side by side, by edgedec's Columns or by Concat."""

from __future__ import annotations

from edgedec.graph.ops import Concat
from edgedec.onnx.emitter import Emitter
from edgedec.onnx.ops._kernels_only import check_kernels

__all__ = ["lower"]


def lower(op: Concat, emitter: Emitter) -> None:
    if not op.plain:
        check_kernels(op, emitter)
    if emitter.kernels:
        emitter.bound[op.outputs[0]] = emitter.columns(op.name, _pieces(op, emitter))
    else:
        inputs = [emitter.bound[name] for name in op.inputs]
        emitter.bound[op.outputs[0]] = emitter.node("Concat", inputs, op.name, axis=2)


def _pieces(op: Concat, emitter: Emitter) -> list[tuple[str | None, int, int]]:
    """Return ONNX value (None: zeros), first column and number of columns of each piece, head by head."""
    pieces = list[tuple[str | None, int, int]]()
    for head in range(op.heads):
        for name, shared, gap in op.parts():
            columns = emitter.graph.values[name].shape[1]
            assert isinstance(columns, int)
            width = columns if shared else columns // op.heads
            pieces.append((emitter.bound[name], 0 if shared else head * width, width))
            if gap:
                pieces.append((None, 0, gap))
    return pieces
