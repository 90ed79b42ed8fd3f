"""Rotary embedding by TreeAttention itself, or by Rotary or RotaryEmbedding, with tables for all positions of the cache."""

from __future__ import annotations

from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from edgedec.digests import sha256
from edgedec.graph.ops import Attention, Operation, Rope
from edgedec.onnx.emitter import CONTRIB, KERNELS, Emitter
from edgedec.reference.float_profile.ops.rope import tables

__all__ = ["lower", "rotary_tables"]

_POSITIONS = 512  # rows of the tables that are computed at a time
# The tables of the models in memory by frequencies and magnitude: a draft model often has those of its target.
_TABLES: WeakValueDictionary[tuple[tuple[float, ...], float], NDArray[np.float32]] = WeakValueDictionary()


def lower(op: Rope, emitter: Emitter) -> None:
    (output,) = op.outputs
    if emitter.kernels and all(_turns(reader, emitter) for reader in _readers(output, emitter)):
        emitter.rotations[output] = op
        emitter.bound[output] = emitter.bound[op.inputs[0]]
        return
    inputs = [emitter.bound[op.inputs[0]], emitter.bound[op.inputs[1]], *rotary_tables(op, emitter)]
    if emitter.kernels:
        interleaved = int(op.layout == "interleaved")
        emitter.bound[output] = emitter.node(
            "Rotary", inputs, op.name, domain=KERNELS, heads=op.heads, interleaved=interleaved
        )
        return
    emitter.bound[output] = emitter.node(
        "RotaryEmbedding",
        inputs,
        op.name,
        domain=CONTRIB,
        interleaved=int(op.layout == "interleaved"),
        num_heads=op.heads,
        rotary_embedding_dim=0 if _is_whole(op) else 2 * len(op.inverse_frequencies),  # 0: all
    )


def _readers(value: str, emitter: Emitter) -> list[Operation]:
    return [op for op in emitter.graph.operations if value in op.inputs]


def _is_whole(op: Rope) -> bool:
    return 2 * len(op.inverse_frequencies) == op.head_dim


def _turns(reader: Operation, emitter: Emitter) -> bool:
    """Return True if ``reader`` is an attention whose queries and keys TreeAttention can rotate.

    Whole heads must be rotated, both alike, and no other operation or tap may use the rotated values.
    """
    if not isinstance(reader, Attention):
        return False
    turned, rest = reader.inputs[:2], reader.inputs[2:]
    makers = [op for op in emitter.graph.operations if isinstance(op, Rope) and op.outputs[0] in turned]
    return (
        {op.outputs[0] for op in makers} == set(turned)
        and all(_is_whole(op) for op in makers)
        and len({(op.layout, op.inverse_frequencies, op.magnitude) for op in makers}) == 1
        and all(_readers(value, emitter) == [reader] for value in turned)
        and not set(turned) & {*emitter.taps, *rest}
    )


def rotary_tables(op: Rope, emitter: Emitter) -> tuple[str, str]:
    """Return the names of cos and sin, float32 [positions, pairs]; layers with equal rotations share them."""
    key = sha256(repr((op.inverse_frequencies, op.magnitude)).encode()).hexdigest()[:8]
    names = f"rope.{key}.cos", f"rope.{key}.sin"
    if not emitter.has_constant(names[0]):
        for name, table in zip(names, _filled(op, emitter.positions, emitter.pass_rows), strict=True):
            emitter.large_constant(name, table)
    return names


def _filled(op: Rope, positions: int, spare: int) -> NDArray[np.float32]:
    """Return cos and sin, float32 [2, positions, pairs]: those that a model has already, or else new ones.

    New ones have ``spare`` positions more, because a draft model has room for a tree after the last position of its target.
    """
    key = (op.inverse_frequencies, op.magnitude)
    made = _TABLES.get(key)
    if made is None or made.shape[1] < positions:
        rows = positions + spare
        made = np.empty((2, rows, len(op.inverse_frequencies)), np.float32)
        for start in range(0, rows, _POSITIONS):  # in parts, because angles are float64
            stop = min(start + _POSITIONS, rows)
            made[:, start:stop] = tables(op, np.arange(start, stop, dtype=np.int32))
        made.flags.writeable = False
        _TABLES[key] = made
    return made[:, :positions]
