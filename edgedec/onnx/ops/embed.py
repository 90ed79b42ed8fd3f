"""The embedding as an input of the session: the host looks rows up, and the graph applies the scale."""

from __future__ import annotations

import numpy as np

from edgedec.graph.ops import Embed
from edgedec.onnx.emitter import Emitter

__all__ = ["lower"]


def lower(op: Embed, emitter: Emitter) -> None:
    _, width = emitter.graph.values[op.outputs[0]].shape
    rows = emitter.input("embed", (1, "n", width))
    if op.scale != 1:
        scale = emitter.constant(f"{op.name}.scale", np.array([op.scale], np.float32))
        rows = emitter.product_of(rows, scale, f"{op.name}.scaled")
    emitter.bound[op.outputs[0]] = rows
