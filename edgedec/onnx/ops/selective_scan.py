"""The recurrence of state space duality by edgedec's SelectiveScan."""

from __future__ import annotations

from edgedec.onnx.emitter import Emitter
from edgedec.onnx.ops._recurrent import stateful
from edgedec.ops import SelectiveScan

__all__ = ["lower"]


def lower(op: SelectiveScan, emitter: Emitter) -> None:
    least, most = map(float, op.step_limits)
    weights = [emitter.float_weight(name) for name in op.weight_names]
    stateful(op, "SelectiveScan", weights, emitter, least=least, most=most)
