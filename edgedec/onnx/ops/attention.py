"""Attention by edgedec's TreeAttention, or by GroupQueryAttention with tree and window as an additive bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import KvState
from edgedec.graph.ops import Attention, Rope
from edgedec.onnx.emitter import CONTRIB, KERNELS, Emitter
from edgedec.onnx.model_bytes import DataType
from edgedec.onnx.ops.rope import rotary_tables

__all__ = ["lower"]

_ROTARY = {"half": 1, "interleaved": 2}
_SHAPES = {"flat": (-1,), "column": (-1, 1)}


def lower(op: Attention, emitter: Emitter) -> None:
    state = emitter.graph.states[op.state]
    lowered = _tree_attention if emitter.kernels else _group_query_attention
    emitter.bound[op.outputs[0]] = lowered(op, state, emitter)


def _tree_attention(op: Attention, state: KvState, emitter: Emitter) -> str:
    if state.bits not in (32, 16, 8, 4):
        raise UnsupportedError(f"{op.name}: KV bits must be 32, 16, 8 or 4, not {state.bits}")
    rotation = _rotation(op, state, emitter)
    if state.basis is not None and rotation is None and _is_rotated(op, emitter):
        raise UnsupportedError(
            f"{op.name}: keys of a basis are rotated within attention, which the CPU kernels can do for whole heads only; "
            "the reference target can run it (--device float_reference)"
        )
    return emitter.node(
        "TreeAttention",
        [
            *(emitter.bound[name] for name in op.inputs),
            *("positions", "visible", "sequences", "blocks", "cache"),
            *(rotary_tables(rotation, emitter) if rotation else ()),
        ],
        op.name,
        domain=KERNELS,
        heads=op.heads,
        kv_heads=state.kv_heads,
        head_dim=state.head_dim,
        bits=state.bits,
        capacity=emitter.positions,
        slots=emitter.cache.slots(state.name),
        table=emitter.cache.kind_of[state.name],
        offset=emitter.cache.offsets[state.name],
        window=state.window or 0,
        sinks=state.sinks,
        rotary=_ROTARY[rotation.layout] if rotation else 0,
        scale=float(op.scale),
        cap=float(op.soft_cap or 0.0),
        **_selection(state, emitter),
    )


def _selection(state: KvState, emitter: Emitter) -> dict[str, Any]:
    """Return the attributes of the selection of keys; they say that there is none if the state has none."""
    selection = state.selection
    if selection is None:
        return {"select": [0, 0, 0, 0, 8, 0, 0, 0, 0, 0]}
    counts, basis = emitter.cache.counts, state.basis
    assert counts is not None
    numbers = [
        *(selection.keys, selection.parts, selection.sinks, selection.recent, selection.bits, counts, selection.kept),
        0 if basis is None else basis.rank,
        *emitter.cache.values_place(state.name),
    ]
    return {
        "select": numbers,
        "channels": [channel for own in selection.channels for channel in own],
        "steps": [float(step) for own in selection.steps for step in own],
        **({"importance": [float(x) for own in selection.importance for x in own]} if selection.kept else {}),
        **({} if basis is None else {"basis": basis.array(state.kv_heads).reshape(-1)}),
    }


def _is_rotated(op: Attention, emitter: Emitter) -> bool:
    return any(isinstance(maker, Rope) and op.inputs[1] in maker.outputs for maker in emitter.graph.operations)


def _rotation(op: Attention, state: KvState, emitter: Emitter) -> Rope | None:
    """Return the rotation that TreeAttention applies to queries and keys, or None."""
    first, second = (emitter.rotations.get(name) for name in op.inputs[:2])
    assert (first is None) == (second is None)
    if first and first.head_dim != state.head_dim:
        raise UnsupportedError(f"{op.name}: the rotation's heads are {first.head_dim} wide, not {state.head_dim}")
    return first


def _group_query_attention(op: Attention, state: KvState, emitter: Emitter) -> str:
    if state.bits != 32:
        raise UnsupportedError(
            f"{op.name}: KV bits {state.bits} on the portable ONNX graph; the CPU kernels (edgedec doctor) or the "
            "reference target can run it"
        )
    if state.capacity != "full":
        raise UnsupportedError(
            f"{op.name}: the portable ONNX graph keeps all rows of a sequence, and state {state.name} is a ring; the CPU "
            "kernels (edgedec doctor) or the reference target can run it"
        )
    shape = (1, state.kv_heads, emitter.positions, state.head_dim)
    past = [emitter.input(f"past.{state.name}.{part}", shape) for part in ("key", "value")]
    present = [emitter.output(f"present.{state.name}.{part}", shape) for part in ("key", "value")]
    q, k, v = (emitter.bound[name] for name in op.inputs)
    return emitter.node(
        "GroupQueryAttention",
        [q, k, v, *past, "seqlens_k", "total_length", "", "", "", _bias(state, emitter)],
        op.name,
        outputs=[op.name, *present],
        domain=CONTRIB,
        num_heads=op.heads,
        kv_num_heads=state.kv_heads,
        scale=op.scale,
        softcap=op.soft_cap or 0.0,
    )


def _bias(state: KvState, emitter: Emitter) -> str:
    """Return the additive bias, which also hides positions outside a window; layers with equal windows share it.

    The position of a committed row is its slot, as in TreeAttention; the rows of the pass have their own positions.
    """
    if state.window is None:
        return "attention_bias"
    name = f"attention_bias.window{state.window}.sinks{state.sinks}"
    if name in emitter.bound:
        return emitter.bound[name]

    def node(kind: str, inputs: list[str], part: str, **attrs: Any) -> str:
        return emitter.node(kind, inputs, f"{name}.{part}", **attrs)

    zero, one = emitter.scalar("i0", 0, np.int64), emitter.scalar("i1", 1, np.int64)
    flat, column = (emitter.constant(f"shape.{label}", np.array(sizes, np.int64)) for label, sizes in _SHAPES.items())
    rows = node("Reshape", ["positions", flat], "rows")  # [n]
    past = node("Sub", [node("Cast", ["total_length"], "total", to=DataType.INT64), node("Size", [rows], "n")], "past")
    slots = node("Range", [zero, node("Squeeze", [past], "past.scalar"), one], "slots")
    keys = node("Concat", [slots, rows], "keys", axis=0)  # [total] positions
    window = emitter.scalar(f"i{state.window}", state.window, np.int64)
    before = node("Sub", [node("Reshape", ["positions", column], "queries"), window], "before")  # [n, 1]
    hidden = node("LessOrEqual", [keys, before], "hidden")
    if state.sinks:
        sinks = emitter.scalar(f"i{state.sinks}", state.sinks, np.int64)
        hidden = node("And", [hidden, node("GreaterOrEqual", [keys, sinks], "behind")], "hidden.behind")
    nothing = emitter.scalar("f-inf", -np.inf)
    emitter.bound[name] = emitter.node("Where", [hidden, nothing, "attention_bias"], name)
    return emitter.bound[name]
