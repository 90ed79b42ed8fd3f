"""Refuse features of operations that the integer profile does not define, before a calibration takes minutes."""

from __future__ import annotations

from edgedec.graph import Graph
from edgedec.ops import Add, Attention, Embed, GatedActivation, Linear, Operation, RmsNorm, Rope
from edgedec.plugins import names
from edgedec.reference.integer_profile.site import unsupported

__all__ = ["OPS", "check_defined"]

OPS = "edgedec.reference.integer_profile.ops"

_ACTIVATIONS = ("silu", "relu2")
_REFERENCE = "; the reference runs it (--device float_reference)"
_INSTEAD = "; the float targets run it (--device cpu or float_reference)"


def check_defined(graph: Graph) -> None:
    """Check that the profile defines all operations of a graph.

    Raises:
        UnsupportedError: it does not define a feature of an operation; the message names the operation, the reason and a
            target that runs it.
    """
    makers = {output: op for op in graph.operations for output in op.outputs}
    # The scale of an embedding is checked last, because models with a scale have other unsupported features.
    for op in sorted(graph.operations, key=lambda op: isinstance(op, Embed)):
        reason = _undefined(op) or _normed_summand(op, makers)
        if reason:
            raise unsupported(op, reason + (_INSTEAD if op.kind in names(OPS) else _REFERENCE))


def _undefined(op: Operation) -> str | None:
    known = names(OPS)
    match op:
        case _ if op.kind not in known:
            return f"it is not defined; known: {', '.join(known)}"
        case Embed() if op.scale != 1:
            return f"its rows are scaled by {op.scale:g}"
        case RmsNorm() if op.heads > 1:
            return f"it normalizes each of {op.heads} heads separately"
        case Rope() if 2 * len(op.inverse_frequencies) < op.head_dim:
            return f"it rotates {2 * len(op.inverse_frequencies)} of a head's {op.head_dim} columns"
        case Rope() if op.magnitude != 1:
            return f"it multiplies rotated columns by {op.magnitude:g}"
        case Attention() | Linear() if op.soft_cap is not None:
            return f"its {'scores' if isinstance(op, Attention) else 'sums'} have a soft-cap of {op.soft_cap:g}"
        case GatedActivation() if op.activation not in _ACTIVATIONS:
            return f"its activation is {op.activation}; known: {', '.join(_ACTIVATIONS)}"
    return None


def _normed_summand(op: Operation, makers: dict[str, Operation]) -> str | None:
    if not isinstance(op, Add):
        return None
    norms = [makers[name].name for name in op.inputs if isinstance(makers.get(name), RmsNorm)]
    return f"the output of {norms[0]} is added to the residual stream" if norms else None
