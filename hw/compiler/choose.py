"""The smallest accelerator that a model fits, for simulation and tests."""

from typing import Any

from edgedec.errors import UnsupportedError
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.ops import Attention, Linear, QuantizeActivation
from edgedec.reference.integer_profile.model import IntegerModel

__all__ = ["config_for"]

_MOST_TILE_ROWS = 1280
_MOST_INSTRUCTIONS = 1 << 16


def config_for(model: IntegerModel, **overrides: Any) -> AcceleratorConfig:
    """Widths, heads, tile, kinds of weights and program length as the model needs them; the rest by default.

    Args:
        overrides: members of AcceleratorConfig that are wanted otherwise.

    Raises:
        UnsupportedError: no configuration runs the model; as ``compile_model``.
        UsageError: the overrides make no configuration.
    """
    graph = model.graph
    states = [graph.states[op.state] for op in graph.operations if isinstance(op, Attention)]
    if not states:
        raise UnsupportedError("the accelerator cannot run a graph without attention: give it a layer")
    matrices = [
        matrix for op in graph.operations if isinstance(op, Linear) for matrix in model.constants[op.name].matrices
    ]
    widths = [graph.values[op.inputs[0]].shape[1] for op in graph.operations if isinstance(op, QuantizeActivation)]
    most_rows = max(len(matrix.weight) for matrix in matrices)
    kv_heads = max(state.kv_heads for state in states)
    heads = max(op.heads for op in graph.operations if isinstance(op, Attention))
    hidden = graph.values[next(iter(graph.operations)).outputs[0]].shape[1]
    found: dict[str, Any] = {
        "width": max(width for width in widths if isinstance(width, int)),
        "hidden": hidden,
        "heads": -(-heads // kv_heads) * kv_heads,
        "kv_heads": kv_heads,
        "head_dim": states[0].head_dim,
        "scaling": any(matrix.groups is not None for matrix in matrices),
        "per_row": any(matrix.trits is None for matrix in matrices),
        "tile_rows": min(_MOST_TILE_ROWS, -(-2 * most_rows // (2 * ROWS)) * 2 * ROWS),
        "ports": min(AcceleratorConfig.ports, max(1, overrides.get("beat_bytes", AcceleratorConfig.beat_bytes) // 4)),
    }
    if "instructions" in overrides:
        return AcceleratorConfig(**(found | overrides))
    longest = AcceleratorConfig(**(found | overrides | {"instructions": _MOST_INSTRUCTIONS}))
    lowering = Lowering(model, longest)
    lowering.run()
    needed = -(-len(lowering.out.instructions) // 16) * 16
    return AcceleratorConfig(**(found | overrides | {"instructions": needed}))
