"""The gated delta rule by edgedec's GatedDeltaRule."""

from __future__ import annotations

from edgedec.graph.ops import GatedDeltaRule
from edgedec.onnx.emitter import Emitter
from edgedec.onnx.ops._recurrent import stateful

__all__ = ["lower"]


def lower(op: GatedDeltaRule, emitter: Emitter) -> None:
    stateful(op, "GatedDeltaRule", [emitter.own_weight(name) for name in op.weight_names], emitter)
