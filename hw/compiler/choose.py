"""The choice of an accelerator for a model by its shape; edgedec.hw.plan.choose_board considers a board as well."""

from collections.abc import Iterable, Mapping
from typing import Any

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import KvState
from edgedec.graph.ops import Attention, Linear, QuantizeActivation
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.ops.attention import AttentionConstants
from edgedec.reference.integer_profile.ops.gated_activation import GateConstants
from edgedec.reference.integer_profile.ops.rms_norm import HeadNormConstants, OutputNormConstants

__all__ = [
    "CANDIDATES",
    "MOST_CONTEXT",
    "config_for",
    "lowered",
    "ports_of",
    "ring_window",
    "ringed",
    "shape_of",
    "small_config",
    "with_sequences",
]

# Likeliest tokens of a slot that a rough head of so many planes gives: among them is the int8 head's at 99.5 % of the
# positions or more. The LUTs of many more cost a KV260 a slot.
CANDIDATES = {1: 32, 2: 16}
_MOST_TILE_ROWS = 1280  # rows of the largest tile
MOST_CONTEXT = 1 << 16  # positions of the largest cache
_MOST_INSTRUCTIONS = 1 << 16  # largest number of instructions of a configuration


def config_for(model: IntegerModel, **overrides: Any) -> AcceleratorConfig:
    """Return a configuration with the widths, heads, tile, kinds of weights and program length of a model.

    Args:
        model: the model.
        overrides: members of AcceleratorConfig that are fixed; the others follow the model or have their defaults.

    Raises:
        UnsupportedError: no configuration runs the model, see ``compile_model``.
        UsageError: the overrides are no valid configuration.
    """
    shape = shape_of(model) | {"ports": ports_of(overrides.get("beat_bytes", AcceleratorConfig.beat_bytes), 4, 4)}
    if "instructions" in overrides:
        _check_sequences(model, shape | overrides)
        return AcceleratorConfig(**ringed(shape | overrides))
    return lowered(model, shape | overrides)[0]


def small_config(model: IntegerModel, *, texts: int = 1, **overrides: Any) -> AcceleratorConfig:
    """Return a configuration that simulates at an acceptable speed: one port of 16 bytes, 4 slots.

    Args:
        model: the model.
        texts: texts that are written at a time, of which a pass has rows as far as there are slots.
        overrides: members of AcceleratorConfig that are fixed.

    Raises:
        UnsupportedError, UsageError: see ``config_for``.
    """
    small = {
        "beat_bytes": 16,
        "slots": 4,
        "ports": 1,
        "context": 128,
        "prefetch_beats": 256,
        "top_k": shape_of(model).get("top_k", 4),
        "ultra": False,
    }
    return config_for(model, **with_sequences(small | overrides, texts))


def shape_of(model: IntegerModel) -> dict[str, Any]:
    """Return the members of the configuration that the model determines."""
    graph = model.graph
    states = [graph.states[op.state] for op in graph.operations if isinstance(op, Attention)]
    if not states:
        raise UnsupportedError("the accelerator cannot run a graph without attention: give it a layer")
    matrices = [
        matrix for op in graph.operations if isinstance(op, Linear) for matrix in model.constants[op.name].matrices
    ]
    widths = [graph.values[op.inputs[0]].shape[1] for op in graph.operations if isinstance(op, QuantizeActivation)]
    if not matrices or not widths:
        raise UnsupportedError(
            "the accelerator runs ternary and int8 matrices, and the model has none: quantize it with --method int8"
        )
    most_rows = max(len(matrix.weight) for matrix in matrices)
    kv_heads = max(state.kv_heads for state in states)
    heads = max(op.heads for op in graph.operations if isinstance(op, Attention))
    hidden = graph.values[next(iter(graph.operations)).outputs[0]].shape[1]
    # An accelerator for a rough head reports more tokens, which the host scores again.
    planes = next((len(one.trits) for one in matrices if one.rough and one.trits is not None), 0)
    rough = {"rough_head": planes, "taps": True, "top_k": CANDIDATES[planes]} if planes else {}
    return rough | {
        "width": max(width for width in widths if isinstance(width, int)),
        "hidden": hidden,
        "heads": -(-heads // kv_heads) * kv_heads,
        "kv_heads": kv_heads,
        "head_dim": states[0].head_dim,
        "window": ring_window(states),
        "gelu": any(
            isinstance(one, GateConstants) and one.activation == "gelu_tanh" for one in model.constants.values()
        ),
        "head_norms": any(isinstance(one, HeadNormConstants) for one in model.constants.values()),
        "post_norms": any(isinstance(one, OutputNormConstants) for one in model.constants.values()),
        "score_cap": any(
            isinstance(one, AttentionConstants) and one.cap is not None for one in model.constants.values()
        ),
        "scaling": any(matrix.groups is not None for matrix in matrices),
        "per_row": any(matrix.trits is None or matrix.rough for matrix in matrices),
        "tile_rows": min(_MOST_TILE_ROWS, -(-2 * most_rows // (2 * ROWS)) * 2 * ROWS),
    }


def ring_window(states: Iterable[KvState]) -> int:
    """Return the largest window of states that can be rings, or 0; one of more than 2^16 positions hides nothing."""
    windows = (state.window for state in states if state.window is not None and not state.sinks)
    return max((max(window, 2) for window in windows if window <= MOST_CONTEXT), default=0)


def with_sequences(members: dict[str, Any], texts: int) -> dict[str, Any]:
    """Return members with a sequence for each of so many texts, or for each slot, unless ``sequences`` is fixed."""
    return {"sequences": min(texts, members["slots"])} | members


def ringed(members: dict[str, Any]) -> dict[str, Any]:
    """Return members without a window if rings would not be shorter than the context, which is the same accelerator.

    Raises:
        UnsupportedError: rings would be shorter than a sequence's part of the context, and there are several sequences.
    """
    sequences, context = members.get("sequences", 1), members.get("context", AcceleratorConfig.context)
    alone = AcceleratorConfig(**{**members, "sequences": 1, "context": max(1, context // sequences)})
    if alone.window and alone.ring is None:
        return {**members, "window": 0}
    if alone.window and sequences > 1:
        raise UnsupportedError(
            f"the model's layers have windows of up to {alone.window} positions, whose rows the accelerator keeps in rings, "
            f"and rings hold one sequence, not {sequences}: set window=0 (--configuration), which keeps all rows, or write "
            "one text at a time (--parallel 1)"
        )
    return members


def _check_sequences(model: IntegerModel, members: Mapping[str, Any]) -> None:
    """Check that the accelerator can have several sequences, if it is to have them.

    Raises:
        UnsupportedError: attention sees the first positions beside a window.
    """
    sinks = max((state.sinks for state in model.graph.states.values()), default=0)
    if sinks and members.get("sequences", 1) > 1:
        raise UnsupportedError(
            f"the model's attention sees its first {sinks} positions beside a window (kv policy), which accelerators with "
            "several sequences cannot: give --kv-policy full, or write one text at a time (--parallel 1)"
        )


def attend_together(members: Mapping[str, Any]) -> bool:
    """Return whether ``shared`` pays: heads share keys, and a pass of few tokens leaves slots unused."""
    return bool(members["slots"] > 1 and members["heads"] > members["kv_heads"])


def ports_of(beat_bytes: int, most: int, port_bytes: int) -> int:
    """Return the largest number of ports, up to ``most``, of at least ``port_bytes`` bytes."""
    return min(most, max(1, beat_bytes // port_bytes))


def lowered(model: IntegerModel, members: dict[str, Any]) -> tuple[AcceleratorConfig, Lowering]:
    """Return a configuration with the instructions that the program needs, and the lowering."""
    _check_sequences(model, members)
    members = ringed(members)
    lowering = Lowering(model, AcceleratorConfig(**(members | {"instructions": _MOST_INSTRUCTIONS})))
    lowering.run()
    needed = -(-len(lowering.out.instructions) // 16) * 16
    return AcceleratorConfig(**({"instructions": needed} | members)), lowering
