"""RotaryEmbedding over cos and sin tables of every position of the cache; none where TreeAttention rotates by itself."""

from __future__ import annotations

import hashlib

import numpy as np

from edgedec.onnx.emitter import CONTRIB, Emitter
from edgedec.ops import Attention, Operation, Rope
from edgedec.reference.float_profile.ops.rope import tables

__all__ = ["lower", "rotary_tables"]


def lower(op: Rope, emitter: Emitter) -> None:
    (output,) = op.outputs
    readers = [other for other in emitter.graph.operations if output in other.inputs]
    whole = 2 * len(op.inverse_frequencies) == op.head_dim  # TreeAttention turns no part of a head
    if emitter.kernels and whole and output not in emitter.taps and all(_rotates(other, output) for other in readers):
        emitter.rotations[output] = op
        emitter.bound[output] = emitter.bound[op.inputs[0]]
        return
    emitter.bound[output] = emitter.node(
        "RotaryEmbedding",
        [emitter.bound[op.inputs[0]], emitter.bound[op.inputs[1]], *rotary_tables(op, emitter)],
        op.name,
        domain=CONTRIB,
        interleaved=int(op.layout == "interleaved"),
        num_heads=op.heads,
        rotary_embedding_dim=0 if whole else 2 * len(op.inverse_frequencies),  # 0: all
    )


def _rotates(reader: Operation, value: str) -> bool:
    """Whether ``value`` is the queries or the keys of an attention."""
    return isinstance(reader, Attention) and value in reader.inputs[:2] and value not in reader.inputs[2:]


def rotary_tables(op: Rope, emitter: Emitter) -> tuple[str, str]:
    """Names of cos and sin, float32 [positions, pairs]; layers that turn alike share them."""
    key = hashlib.sha256(repr((op.inverse_frequencies, op.magnitude)).encode()).hexdigest()[:8]
    cos, sin = tables(op, np.arange(emitter.positions, dtype=np.int32))
    return emitter.constant(f"rope.{key}.cos", cos), emitter.constant(f"rope.{key}.sin", sin)
