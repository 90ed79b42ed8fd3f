"""GroupQueryAttention over one shared past/present buffer, the tree as an additive bias."""

from __future__ import annotations

from edgedec.errors import UnsupportedError
from edgedec.onnx.emitter import CONTRIB, Emitter
from edgedec.ops import Attention

__all__ = ["lower"]


def lower(op: Attention, emitter: Emitter) -> None:
    state = emitter.graph.states[op.state]
    for wanted, asked, what in (
        (32, state.bits, "KV bits"),
        (None, state.window, "a window"),
        (0, state.sinks, "sinks"),
    ):
        if asked != wanted:
            raise UnsupportedError(
                f"{op.name}: {what} {asked} on the portable ONNX graph; the reference target can run it"
            )
    shape = (1, state.kv_heads, emitter.positions, state.head_dim)
    past = [emitter.input(f"past.{state.name}.{part}", shape) for part in ("key", "value")]
    present = [emitter.output(f"present.{state.name}.{part}", shape) for part in ("key", "value")]
    q, k, v = (emitter.bound[name] for name in op.inputs)
    emitter.bound[op.outputs[0]] = emitter.node(
        "GroupQueryAttention",
        [q, k, v, *past, "seqlens_k", "total_length", "", "", "", "attention_bias"],
        op.name,
        outputs=[op.name, *present],
        domain=CONTRIB,
        num_heads=op.heads,
        kv_num_heads=state.kv_heads,
        scale=op.scale,
    )
