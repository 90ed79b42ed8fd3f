"""The recurrence of state space duality by edgedec's SelectiveScan, and that of Mamba 1 by ChannelScan."""

from __future__ import annotations

from edgedec.graph.ops import SelectiveScan
from edgedec.onnx.emitter import Emitter
from edgedec.onnx.ops._recurrent import stateful

__all__ = ["lower"]


def lower(op: SelectiveScan, emitter: Emitter) -> None:
    least, most = map(float, op.step_limits)
    by_channel = op.decay_by == "channel"  # the rates are in a table of the layout
    names = [name for name in op.weight_names if not by_channel or name != op.decay]
    weights = [emitter.own_weight(name) for name in names]
    stateful(op, "ChannelScan" if by_channel else "SelectiveScan", weights, emitter, least=least, most=most)
