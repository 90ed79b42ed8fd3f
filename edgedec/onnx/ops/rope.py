"""RotaryEmbedding over cos and sin tables of every position of the cache."""

from __future__ import annotations

import hashlib

import numpy as np

from edgedec.onnx.emitter import CONTRIB, Emitter
from edgedec.ops import Rope
from edgedec.reference.float_profile.ops.rope import tables

__all__ = ["lower"]


def lower(op: Rope, emitter: Emitter) -> None:
    key = hashlib.sha256(repr(op.inverse_frequencies).encode()).hexdigest()[:8]  # layers share one pair of tables
    cos, sin = tables(op, np.arange(emitter.positions, dtype=np.int32))
    emitter.bound[op.outputs[0]] = emitter.node(
        "RotaryEmbedding",
        [
            emitter.bound[op.inputs[0]],
            emitter.bound[op.inputs[1]],
            emitter.constant(f"rope.{key}.cos", cos),
            emitter.constant(f"rope.{key}.sin", sin),
        ],
        op.name,
        domain=CONTRIB,
        interleaved=int(op.layout == "interleaved"),
        num_heads=op.heads,
    )
