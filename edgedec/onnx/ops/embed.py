"""The embedding is an input of the session: the host looks rows up."""

from __future__ import annotations

from edgedec.onnx.emitter import Emitter
from edgedec.ops import Embed

__all__ = ["lower"]


def lower(op: Embed, emitter: Emitter) -> None:
    _, width = emitter.graph.values[op.outputs[0]].shape
    emitter.bound[op.outputs[0]] = emitter.input("embed", (1, "n", width))
