"""Our own TreeAttention over one buffer; without it GroupQueryAttention, the tree as an additive bias."""

from __future__ import annotations

from edgedec.errors import UnsupportedError
from edgedec.graph import KvState
from edgedec.onnx.emitter import CONTRIB, KERNELS, Emitter
from edgedec.onnx.kv_cache import cache_layout
from edgedec.onnx.ops.rope import rotary_tables
from edgedec.ops import Attention, Rope

__all__ = ["lower"]

_ROTARY = {"half": 1, "interleaved": 2}


def lower(op: Attention, emitter: Emitter) -> None:
    state = emitter.graph.states[op.state]
    lowered = _tree_attention if emitter.kernels else _group_query_attention
    emitter.bound[op.outputs[0]] = lowered(op, state, emitter)


def _tree_attention(op: Attention, state: KvState, emitter: Emitter) -> str:
    if state.bits not in (32, 16, 8):
        raise UnsupportedError(f"{op.name}: KV bits must be 32, 16 or 8, not {state.bits}")
    rotation = _rotation(op, state, emitter)
    return emitter.node(
        "TreeAttention",
        [
            *(emitter.bound[name] for name in op.inputs),
            *("positions", "visible", "past", "cache"),
            *(rotary_tables(rotation, emitter) if rotation else ()),
        ],
        op.name,
        domain=KERNELS,
        heads=op.heads,
        kv_heads=state.kv_heads,
        head_dim=state.head_dim,
        bits=state.bits,
        capacity=emitter.positions,
        offset=cache_layout(emitter.graph.states, emitter.positions).offsets[state.name],
        window=state.window or 0,
        sinks=state.sinks,
        rotary=_ROTARY[rotation.layout] if rotation else 0,
        scale=float(op.scale),
    )


def _rotation(op: Attention, state: KvState, emitter: Emitter) -> Rope | None:
    """The rotation that queries and keys still wait for."""
    first, second = (emitter.rotations.get(name) for name in op.inputs[:2])
    if (first is None) != (second is None) or (
        first and second and (first.layout, first.inverse_frequencies) != (second.layout, second.inverse_frequencies)
    ):
        raise UnsupportedError(f"{op.name}: queries and keys are rotated differently; the reference target can run it")
    if first and first.head_dim != state.head_dim:
        raise UnsupportedError(f"{op.name}: the rotation's heads are {first.head_dim} wide, not {state.head_dim}")
    return first


def _group_query_attention(op: Attention, state: KvState, emitter: Emitter) -> str:
    for wanted, asked, what in (
        (32, state.bits, "KV bits"),
        (None, state.window, "a window"),
        (0, state.sinks, "sinks"),
    ):
        if asked != wanted:
            raise UnsupportedError(
                f"{op.name}: {what} {asked} on the portable ONNX graph; the CPU kernels (edgedec doctor) or the "
                "reference target can run it"
            )
    shape = (1, state.kv_heads, emitter.positions, state.head_dim)
    past = [emitter.input(f"past.{state.name}.{part}", shape) for part in ("key", "value")]
    present = [emitter.output(f"present.{state.name}.{part}", shape) for part in ("key", "value")]
    q, k, v = (emitter.bound[name] for name in op.inputs)
    return emitter.node(
        "GroupQueryAttention",
        [q, k, v, *past, "seqlens_k", "total_length", "", "", "", "attention_bias"],
        op.name,
        outputs=[op.name, *present],
        domain=CONTRIB,
        num_heads=op.heads,
        kv_num_heads=state.kv_heads,
        scale=op.scale,
    )
