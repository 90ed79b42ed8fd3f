"""Walsh-Hadamard transform by edgedec's Hadamard, or by sums and differences of halves, in the reference's order."""

from __future__ import annotations

import numpy as np

from edgedec.graph.ops import Hadamard
from edgedec.onnx.emitter import KERNELS, Emitter

__all__ = ["lower"]


def lower(op: Hadamard, emitter: Emitter) -> None:
    x = emitter.bound[op.inputs[0]]
    signs = emitter.own_weight(op.signs) if op.signs else None
    if emitter.kernels:
        width = _width(op, emitter)
        inputs = [x, signs or emitter.constant(f"ones.{width}", np.ones(width, np.float32))]
        emitter.bound[op.outputs[0]] = emitter.node(
            "Hadamard", inputs, op.name, domain=KERNELS, block=op.block, inverse=int(op.inverse)
        )
        return
    if signs and not op.inverse:
        x = emitter.node("Mul", [x, signs], f"{op.name}.signed")
    x = emitter.node("Mul", [_transformed(op, x, emitter), emitter.scalar(f"root.{op.block}", op.block**-0.5)], op.name)
    if signs and op.inverse:
        x = emitter.node("Mul", [x, signs], f"{op.name}.signed")
    emitter.bound[op.outputs[0]] = x


def _width(op: Hadamard, emitter: Emitter) -> int:
    width = emitter.graph.values[op.inputs[0]].shape[1]
    assert isinstance(width, int)
    return width


def _transformed(op: Hadamard, x: str, emitter: Emitter) -> str:
    """Return the transform before it is normalized. Each step has the shape [1, n, width / 2 / distance, 2, distance]."""
    width, distance = _width(op, emitter), 1
    while distance < op.block:
        at = f"{op.name}.{distance}"
        pairs = emitter.node("Reshape", [x, emitter.rows_shape(width // (2 * distance), 2, distance)], f"{at}.pairs")
        halves = [f"{at}.first", f"{at}.second"]
        emitter.node("Split", [pairs], f"{at}.split", outputs=halves, axis=3, num_outputs=2)
        made = [emitter.node(kind, halves, f"{at}.{kind.lower()}") for kind in ("Add", "Sub")]
        x = emitter.node("Concat", made, f"{at}.both", axis=3)
        distance *= 2
    return emitter.node("Reshape", [x, emitter.rows_shape(width)], f"{op.name}.rows")
