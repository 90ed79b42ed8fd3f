"""The part of the operators' self-test for those with recurrent states: their inputs, nodes, and the reference's results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.graph import RecurrentState
from edgedec.graph.ops import CausalConv, GatedDeltaRule, SelectiveScan
from edgedec.onnx.model_bytes import Node
from edgedec.onnx.recurrent_layout import SLOT_INPUTS, RecurrentLayout, slot_layout
from edgedec.reference.float_profile.cache import FloatCache
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.reference.float_profile.ops import causal_conv, gated_delta_rule, selective_scan
from edgedec.schemes import FloatWeight

__all__ = ["RecurrentCheck", "recurrent_check"]

F32 = NDArray[np.float32]
# A tree, so that states are computed again from the rows of a pass, and a chain.
_SEQUENCES = (np.array([-1, 0, 0, 1, 3]), np.array([-1, 0, 1]))  # parents
_ROWS = sum(map(len, _SEQUENCES))
# So many channels that two threads share the rows of the convolution; those of the scan are three blocks of eight.
_CHANNELS, _KERNEL, _HEADS, _GROUPS, _SIZE, _SCANNED = 1024, 4, 4, 2, 8, 24

_CONV = CausalConv(name="conv", inputs=("conv.x",), outputs=("conv",), state="conv", weight="taps", bias="bias")
_SCAN = SelectiveScan(
    name="scan",
    inputs=("scan.x", "scan.b", "scan.c", "scan.step"),
    outputs=("scan",),
    state="scan",
    heads=_HEADS,
    groups=_GROUPS,
    decay="decay",
    skip="skip",
    step_bias="step_bias",
    step_limits=(0.5, 1.0),
)
_DELTA = GatedDeltaRule(
    name="delta",
    inputs=("delta.q", "delta.k", "delta.v", "delta.rate", "delta.step"),
    outputs=("delta",),
    state="delta",
    heads=_HEADS,
    key_heads=_GROUPS,
    decay="decay",
    step_bias="step_bias",
)
_SCAN_CHANNELS = replace(
    _SCAN,
    name="channels",
    inputs=tuple(f"channels.{end}" for end in ("x", "b", "c", "step")),
    outputs=("channels",),
    state="channels",
    heads=_SCANNED,
    groups=1,
    decay="channels.decay",
    skip="channels.skip",
    step_bias="channels.step_bias",
    decay_by="channel",
)
_DELTA_CHANNELS = replace(
    _DELTA,
    name="keys",
    inputs=tuple(f"keys.{end}" for end in ("q", "k", "v", "rate", "step")),
    outputs=("keys",),
    state="keys",
    step_bias="keys.step_bias",
    decay_by="channel",
)
_OPERATIONS: Mapping[str, tuple[CausalConv | SelectiveScan | GatedDeltaRule, Callable[..., tuple[F32, ...]]]] = {
    "CausalConv": (_CONV, causal_conv.run),
    "SelectiveScan": (_SCAN, selective_scan.run),
    "ChannelScan": (_SCAN_CHANNELS, selective_scan.run),
    "GatedDeltaRule": (_DELTA, gated_delta_rule.run),
    "GatedDeltaRule by channel": (_DELTA_CHANNELS, gated_delta_rule.run),
}
_WIDTHS = {
    **dict.fromkeys(_CONV.inputs, _CHANNELS),
    **dict.fromkeys(("channels.x", "channels.step"), _SCANNED),
    **dict.fromkeys(("scan.x", "delta.v", "keys.v", "keys.step"), _HEADS * _SIZE),
    **dict.fromkeys(("scan.b", "scan.c", "delta.q", "delta.k", "keys.q", "keys.k"), _GROUPS * _SIZE),
    **dict.fromkeys(("channels.b", "channels.c"), _SIZE),
    **dict.fromkeys(("scan.step", "delta.rate", "delta.step", "keys.rate"), _HEADS),
}
_SHAPES = {
    **dict.fromkeys(("decay", "skip", "step_bias"), (_HEADS,)),
    **{"taps": (_CHANNELS, 1, _KERNEL), "bias": (_CHANNELS,), "keys.step_bias": (_HEADS * _SIZE,)},
    **{"channels.decay": (_SCANNED, _SIZE), **dict.fromkeys(("channels.skip", "channels.step_bias"), (_SCANNED,))},
}
_STATES = {
    "conv": RecurrentState(name="conv", shape=(_KERNEL - 1, _CHANNELS)),
    "channels": RecurrentState(name="channels", shape=(_SCANNED, 1, _SIZE)),
    **{name: RecurrentState(name=name, shape=(_HEADS, _SIZE, _SIZE)) for name in ("scan", "delta", "keys")},
}


@dataclass(frozen=True, kw_only=True)
class RecurrentCheck:
    """Nodes, and the outputs that they must have, each float32 [1, n, width] within a tolerance.

    Members:
        inputs: inputs of a run.
        expected: outputs by name.
    """

    nodes: list[Node]
    constants: Mapping[str, NDArray[Any]]
    inputs: Mapping[str, NDArray[Any]]
    expected: Mapping[str, F32]


def recurrent_check(values: Callable[[int, int], F32]) -> RecurrentCheck:
    """Return the check. ``values(seed, count)`` returns ``count`` numbers in [0, 1)."""

    def drawn(seed: int, *shape: int) -> F32:
        return 2 * values(40 + seed, int(np.prod(shape))).reshape(shape) - 1

    inputs = {name: drawn(number, _ROWS, width) for number, (name, width) in enumerate(_WIDTHS.items())}
    weights = {name: drawn(30 + number, *shape) for number, (name, shape) in enumerate(_SHAPES.items())}
    before = [
        {name: drawn(50 + 10 * slot + number, *state.shape) for number, (name, state) in enumerate(_STATES.items())}
        for slot in range(len(_SEQUENCES))
    ]
    operations = [op for op, _ in _OPERATIONS.values()]
    layout = slot_layout(operations, _STATES, max(map(len, _SEQUENCES)))
    slots = np.zeros((len(_SEQUENCES), layout.slot_floats), np.float32)
    parts, begin = list[Mapping[str, F32]](), 0
    for slot, (states, parents) in enumerate(zip(before, _SEQUENCES, strict=True)):
        for name, state in states.items():
            at, sizes = layout.states[name].offset, layout.states[name]
            stored = state
            if name in ("scan", "channels"):  # the kernels have the columns of b first
                stored = state.reshape(sizes.heads, sizes.inner, sizes.outer).swapaxes(1, 2)
            slots[slot, at : at + state.size] = stored.ravel()
        own = {name: value[begin : begin + len(parents)] for name, value in inputs.items()}
        parts.append(_reference(own, weights, states, _masks(parents)))
        begin += len(parents)
    visible = np.concatenate([_masks(parents) @ (1 << np.arange(len(parents))) for parents in _SEQUENCES])
    lengths = [[len(parents), 0] for parents in _SEQUENCES]
    return RecurrentCheck(
        nodes=_nodes(layout),
        constants={**weights, "taps": np.ascontiguousarray(weights["taps"].transpose(2, 1, 0))},
        inputs={
            **{name: value[None] for name, value in inputs.items()},
            "visible": visible.astype(np.int64)[:, None],
            "sequences": np.array(lengths, np.int64),
            "slots": np.arange(len(_SEQUENCES), dtype=np.int64),
            "states": np.concatenate([layout.tables(weights.__getitem__), slots.ravel()]),
        },
        expected={name: np.concatenate([part[name] for part in parts])[None] for name in _STATES},
    )


def _masks(parents: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the rows that each row of a tree sees, bool [n, n]."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


def _nodes(layout: RecurrentLayout) -> list[Node]:
    least, most = _SCAN.step_limits
    nodes = []
    for kind, (op, _) in _OPERATIONS.items():
        limits = {"least": least, "most": most} if isinstance(op, SelectiveScan) else {}
        weights = [name for name in op.weight_names if name not in layout.decays.values()]
        nodes.append(
            Node(
                kind=kind.partition(" ")[0],
                inputs=[*op.inputs, *weights, *SLOT_INPUTS],
                outputs=list(op.outputs),
                name=op.name,
                domain="edgedec",
                attributes={**layout.attributes(op.state), **limits},
            )
        )
    return nodes


def _reference(
    inputs: Mapping[str, F32], weights: Mapping[str, F32], states: Mapping[str, F32], visible: NDArray[np.bool_]
) -> Mapping[str, F32]:
    """Return the reference's outputs for one sequence, whose committed states are ``states``."""
    cache, one = FloatCache({}, _STATES), np.zeros(1, np.int32)
    cache.begin(one, np.ones((1, 1), np.bool_))
    for name, state in states.items():
        cache.advance(name, state)
    cache.commit(one)
    positions = np.arange(len(visible), dtype=np.int32)
    cache.begin(positions, visible)
    context = FloatPassContext(
        weights=lambda name: FloatWeight(values=weights[name]),
        cache=cache,
        visible=visible,
        positions=positions,
        embeds=None,
    )
    return {op.state: run(op, [inputs[name] for name in op.inputs], context)[0] for op, run in _OPERATIONS.values()}
