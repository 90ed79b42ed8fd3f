"""The common part of the operators of the kernels with recurrent states."""

from __future__ import annotations

from typing import Any

from edgedec.graph.ops import CausalConv, GatedDeltaRule, SelectiveScan
from edgedec.onnx.emitter import KERNELS, Emitter
from edgedec.onnx.recurrent_layout import SLOT_INPUTS

__all__ = ["stateful"]


def stateful(
    op: CausalConv | SelectiveScan | GatedDeltaRule, kind: str, weights: list[str], emitter: Emitter, **attributes: Any
) -> None:
    """Add the node of an operation with its weights and its state's place in the slots."""
    layout = emitter.recurrent
    assert layout is not None, f"{op.name} needs the layout of the slots"  # ``check_lowered``: only kernels get here
    emitter.bound[op.outputs[0]] = emitter.node(
        kind,
        [*(emitter.bound[name] for name in op.inputs), *weights, *SLOT_INPUTS],
        op.name,
        domain=KERNELS,
        **layout.attributes(op.state),
        **attributes,
    )
