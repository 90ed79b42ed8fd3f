"""RMS norm by edgedec's RmsNorm, or by SimplifiedLayerNormalization, for which heads become a separate axis.

A row's bits do not depend on other rows.
"""

from __future__ import annotations

import numpy as np

from edgedec.graph.ops import RmsNorm
from edgedec.onnx.emitter import KERNELS, Emitter

__all__ = ["lower", "normed"]


def lower(op: RmsNorm, emitter: Emitter) -> None:
    x, gain = emitter.bound[op.inputs[0]], emitter.own_weight(op.weight)
    if op.offset:
        name, offset = f"{op.name}.gain", np.float32(op.offset)
        gain = emitter.derived(gain, name, lambda values: values + offset) or _sum(gain, op.offset, name, emitter)
    (width,) = emitter.graph.weights[op.weight].shape
    emitter.bound[op.outputs[0]] = normed(x, gain, op.name, op.eps, emitter, heads=(op.heads, width))


def _sum(gain: str, offset: float, name: str, emitter: Emitter) -> str:
    """Add a node that adds an offset once, when the session folds constants."""
    return emitter.node("Add", [gain, emitter.scalar(f"offset.{offset:g}", offset)], name)


def normed(x: str, gain: str, name: str, eps: float, emitter: Emitter, *, heads: tuple[int, int] = (1, 0)) -> str:
    """Add the norm ``name`` of each of the parts of the rows ``x``, and return its output.

    Args:
        gain: the factors of the columns of a part.
        heads: number of parts, and the columns of each.
    """
    if emitter.kernels:
        return emitter.node("RmsNorm", [x, gain], name, domain=KERNELS, eps=eps)
    count, width = heads
    if count == 1:
        return _simplified(x, gain, name, eps, emitter)
    split = emitter.node("Reshape", [x, emitter.rows_shape(count, width)], f"{name}.heads")
    parts = _simplified(split, gain, f"{name}.normed", eps, emitter)
    return emitter.node("Reshape", [parts, emitter.rows_shape(count * width)], name)


def _simplified(x: str, gain: str, name: str, eps: float, emitter: Emitter) -> str:
    return emitter.node("SimplifiedLayerNormalization", [x, gain], name, axis=-1, epsilon=eps, stash_type=1)
