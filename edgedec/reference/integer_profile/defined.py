"""Refuse features of operations that the integer profile does not define, before a calibration takes minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import Graph, check_no_features
from edgedec.graph.ops import (
    Add,
    Attention,
    Concat,
    GatedDeltaRule,
    Hadamard,
    Linear,
    Operation,
    RmsNorm,
    Rope,
    SelectiveScan,
    Split,
)
from edgedec.plugins import names
from edgedec.reference.integer_profile.site import norms_heads, norms_outputs, unsupported

__all__ = ["OPS", "check_accelerated", "check_defined"]

OPS = "edgedec.reference.integer_profile.ops"

_RECURRENT = ("causal_conv", "concat", "gated_delta_rule", "gated_rms_norm", "selective_scan", "sigmoid_gate", "split")
_MOST_MAGNITUDE = 1.9999  # largest magnitude of rotated columns: cos and sin, with 14 fraction bits, must fit s16
_REFERENCE = "; the reference runs it (--device float_reference)"
_INSTEAD = "; the float targets run it (--device cpu or float_reference)"


def check_defined(graph: Graph) -> None:
    """Check that the profile defines all operations of a graph.

    Raises:
        UnsupportedError: it does not define a feature of an operation; the message names the operation, the reason and a
            target that runs it. Or the graph reads features beside its ids, for which the accelerator has no input.
    """
    check_no_features(graph, "the accelerator")
    makers = {output: op for op in graph.operations for output in op.outputs}
    readers = graph.readers()
    for op in graph.operations:
        heads = norms_heads(op, readers.get(op.outputs[0], ()))
        reason = _undefined(op, graph) or (
            _parts_of_heads(op, graph, readers) if heads else _misplaced_norm(op, makers, readers)
        )
        if reason:
            raise unsupported(op, reason + (_INSTEAD if op.kind in names(OPS) else _REFERENCE))


def check_accelerated(graph: Graph) -> None:
    """Check that the accelerator has a unit for each operation of a graph that the profile defines.

    Raises:
        UnsupportedError: it has none; the message names the operation, and targets that run it.
    """
    for op in graph.operations:
        reason = None
        if isinstance(op, Hadamard):
            reason = f"it has no unit for a Walsh-Hadamard transform of {op.block} columns"
        elif op.kind in _RECURRENT:
            reason = "it has no units for recurrent states, and for what stands around them"
        if reason:
            raise UnsupportedError(f"the accelerator cannot run {op.kind} {op.name}: {reason}{_INSTEAD}")


def _undefined(op: Operation, graph: Graph) -> str | None:
    known = names(OPS)
    match op:
        case _ if op.kind not in known:
            return f"it is not defined; known: {', '.join(known)}"
        case Concat() if not op.plain:
            return f"it joins columns of each of {op.heads} heads"
        case SelectiveScan() if op.decay_by == "channel":
            return "each column of its state has a decay of its own"
        case Rope() if op.magnitude > _MOST_MAGNITUDE:
            return f"it multiplies rotated columns by {op.magnitude:g}, more than {_MOST_MAGNITUDE:g}"
        case Linear() if op.soft_cap is not None and not set(op.outputs) <= set(graph.outputs):
            return f"its sums have a soft-cap of {op.soft_cap:g}, and are no logits"
    return None


def _parts_of_heads(op: Operation, graph: Graph, readers: Mapping[str, Sequence[Operation]]) -> str | None:
    """Return why a norm of queries or keys does not norm each head by itself, or None."""
    assert isinstance(op, RmsNorm)
    (width,) = graph.weights[op.weight].shape
    reader = readers[op.outputs[0]][0]
    assert isinstance(reader, Rope | Attention), "``norms_heads`` has checked it"
    head_dim = reader.head_dim if isinstance(reader, Rope) else graph.states[reader.state].head_dim
    return None if width == head_dim else f"it normalizes {width} columns together; a head has {head_dim}"


def _source(name: str, makers: Mapping[str, Operation]) -> Operation | None:
    """Return the operation of which a value is an output, or columns of one."""
    made = makers.get(name)
    return _source(made.inputs[0], makers) if isinstance(made, Split) else made


def _misplaced_norm(
    op: Operation, makers: Mapping[str, Operation], readers: Mapping[str, Sequence[Operation]]
) -> str | None:
    if isinstance(op, RmsNorm) and op.heads > 1 and not isinstance(makers.get(op.inputs[0]), GatedDeltaRule):
        return f"it normalizes each of {op.heads} parts of a row separately, which are no heads of queries or keys"
    if isinstance(op, RmsNorm) and op.heads == 1 and isinstance(made := _source(op.inputs[0], makers), Linear):
        if norms_outputs(op, readers.get(op.outputs[0], ())) and makers.get(op.inputs[0]) is made:
            return None
        return f"it normalizes the output of the linear {made.name}, which has no unit by definition"
    if not isinstance(op, Add):
        return None
    norms = [made for name in op.inputs if isinstance(made := makers.get(name), RmsNorm)]
    others = [norm.name for norm in norms if not isinstance(makers.get(norm.inputs[0]), Linear)]
    return (
        f"the output of {others[0]}, which normalizes no linear's output, is added to the residual stream"
        if others
        else None
    )
