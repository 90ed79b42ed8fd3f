"""RMS norm by edgedec's RmsNorm, or by SimplifiedLayerNormalization, for which heads become a separate axis.

A row's bits do not depend on other rows.
"""

from __future__ import annotations

from edgedec.onnx.emitter import KERNELS, Emitter
from edgedec.ops import RmsNorm

__all__ = ["lower"]


def lower(op: RmsNorm, emitter: Emitter) -> None:
    x, gain = emitter.bound[op.inputs[0]], emitter.float_weight(op.weight)
    if op.offset:  # added once, when the session folds constants
        offset = emitter.scalar(f"offset.{op.offset:g}", op.offset)
        gain = emitter.node("Add", [gain, offset], f"{op.name}.gain")
    if emitter.kernels:
        emitter.bound[op.outputs[0]] = emitter.node("RmsNorm", [x, gain], op.name, domain=KERNELS, eps=op.eps)
        return
    if op.heads == 1:
        emitter.bound[op.outputs[0]] = _normed(op, x, gain, op.name, emitter)
        return
    (width,) = emitter.graph.weights[op.weight].shape
    split = emitter.node("Reshape", [x, emitter.rows_shape(op.heads, width)], f"{op.name}.heads")
    normed = _normed(op, split, gain, f"{op.name}.normed", emitter)
    emitter.bound[op.outputs[0]] = emitter.node("Reshape", [normed, emitter.rows_shape(op.heads * width)], op.name)


def _normed(op: RmsNorm, x: str, gain: str, name: str, emitter: Emitter) -> str:
    return emitter.node("SimplifiedLayerNormalization", [x, gain], name, axis=-1, epsilon=op.eps, stash_type=1)
