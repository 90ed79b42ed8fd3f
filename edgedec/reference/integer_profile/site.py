"""Preparation of a graph in real numbers, which gives every value a unit and every operation its constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import Graph
from edgedec.graph.ops import (
    Add,
    Attention,
    CausalConv,
    Concat,
    Embed,
    GatedActivation,
    GatedDeltaRule,
    GatedRmsNorm,
    Hadamard,
    Linear,
    Operation,
    RmsNorm,
    Rope,
    SelectiveScan,
    SigmoidGate,
    Split,
)
from edgedec.reference.integer_profile.calibration import Calibration
from edgedec.reference.integer_profile.numbers import NARROW_BITS, WIDE_BITS, largest
from edgedec.reference.integer_profile.tables import GATE_FRACTION_BITS
from edgedec.reference.integer_profile.values import Form
from edgedec.schemes import Weight

__all__ = ["Site", "divides", "fraction_bits", "in_residual", "norms_heads", "norms_outputs", "unsupported"]

_RESIDUAL_HEADROOM = 8.0
_NARROW_HEADROOM = 2.0
_OUTPUT_HEADROOM = 8.0  # headroom of outputs that are normed before they are added, and as wide as the residual
# Limits of the fraction bits. A finer unit has no benefit, and the norm's eps, in squared units, would exceed 48 bits.
_MOST_RESIDUAL_FRACTION = 24
_MOST_FRACTION = 22
_MOST_GATED_FRACTION = 16
_MOST_NORMED_FRACTION = 18  # fraction bits of queries and keys before their norm, which adds 9


_GATED = (
    GatedActivation,
    GatedDeltaRule,
    GatedRmsNorm,
    SigmoidGate,
)  # readers that look a sigmoid up, or multiply by one
_NARROW = (Rope, Attention, CausalConv, SelectiveScan, *_GATED)  # readers of narrow values


def unsupported(op: Operation, reason: str) -> UnsupportedError:
    """Return an error that names the operation, whose name contains the layer."""
    return UnsupportedError(f"the integer profile cannot run {op.kind} {op.name}: {reason}")


def in_residual(op: Operation) -> bool:
    """Return True if the operation's output has the residual's unit by definition."""
    return isinstance(op, Embed | Add) or (isinstance(op, Hadamard) and op.inverse)


def norms_heads(op: Operation, readers: Iterable[Operation]) -> bool:
    """Return True for the norm of each head of queries or keys, which rotations and attention read, and nothing else."""
    kinds = {type(reader) for reader in readers}
    return isinstance(op, RmsNorm) and bool(kinds) and kinds <= {Rope, Attention}


def norms_outputs(op: Operation, readers: Iterable[Operation]) -> bool:
    """Return True for the norm of the output of a linear that is added to the residual, and that nothing else reads."""
    kinds = {type(reader) for reader in readers}
    return isinstance(op, RmsNorm) and op.heads == 1 and kinds == {Add}


def divides(op: Operation, readers: Iterable[Operation]) -> bool:
    """Return True for a norm whose output is divided by its roots: no quantizer follows that could take them over."""
    return norms_heads(op, readers) or (isinstance(op, RmsNorm) and op.heads > 1)


def _least_fraction(op: Operation, name: str) -> int:
    """Return the least number of fraction bits of a value that the operation takes to the argument of its table."""
    match op:
        case GatedActivation() if op.activation != "relu2" and op.inputs[0] == name:
            return GATE_FRACTION_BITS.get(op.activation, 6) - 6
        case SigmoidGate() | GatedRmsNorm() if op.inputs[0] == name:
            return GATE_FRACTION_BITS["silu"] - 6
        case GatedDeltaRule() if op.inputs[3] == name:
            return GATE_FRACTION_BITS["silu"] - 6
    return 0


def fraction_bits(most: float, width: int, limit: int) -> int:
    """Return the largest f <= limit for which ``most`` * 2^f fits ``width`` bits."""
    if most <= 0:
        return limit
    return min(math.floor(math.log2(largest(width) / most)), limit)


@dataclass(kw_only=True)
class Site:
    """The information for an operation's ``prepare``: forms of values, weights, calibrated maxima and readers of values."""

    graph: Graph
    weights: Callable[[str], Weight]
    calibration: Calibration
    forms: dict[str, Form] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._readers = self.graph.readers()
        residual = [name for op in self.graph.operations if in_residual(op) for name in op.outputs]
        most = max((self.calibration.most(name) for name in residual), default=0.0)
        fraction = fraction_bits(_RESIDUAL_HEADROOM * most, WIDE_BITS, _MOST_RESIDUAL_FRACTION)
        self.residual = Form(unit=2.0**-fraction, width=WIDE_BITS, fraction=fraction)

    def readers(self, name: str) -> Sequence[Operation]:
        return self._readers.get(name, ())

    def uses(self, name: str) -> Sequence[tuple[Operation, str]]:
        """Return the operations that read a value or some columns of it, and the name by which each of them reads it."""
        uses = list[tuple[Operation, str]]()
        for reader in self.readers(name):
            parts = reader.outputs if isinstance(reader, Split | Concat) else ()
            uses += [use for part in parts for use in self.uses(part)] if parts else [(reader, name)]
        return uses

    def form(self, name: str) -> Form:
        return self.forms[name]

    def set_form(self, op: Operation, form: Form, index: int = 0) -> Form:
        self.forms[op.outputs[index]] = form
        return form

    def width(self, name: str) -> int:
        width = self.graph.values[name].shape[1]
        assert isinstance(width, int)
        return width

    def of_linear(self, op: Linear, name: str) -> Form:
        """Return the form of a linear's output: that of the residual if it is added, and a calibrated one otherwise.

        The latter is wide if the output is normed before it is added, and else narrow.

        Raises:
            UnsupportedError: its readers need different units, or nothing reads it.
        """
        uses = self.uses(name)
        if uses and all(isinstance(reader, Add) for reader, _ in uses):
            return self.residual
        if uses and all(norms_outputs(reader, self.readers(reader.outputs[0])) for reader, _ in uses):
            fraction = fraction_bits(_OUTPUT_HEADROOM * self.calibration.most(name), WIDE_BITS, _MOST_RESIDUAL_FRACTION)
            return Form(unit=2.0**-fraction, width=WIDE_BITS, fraction=fraction)
        normed = [norms_heads(reader, self.readers(reader.outputs[0])) for reader, _ in uses]
        if uses and all(norm or isinstance(reader, _NARROW) for norm, (reader, _) in zip(normed, uses, strict=True)):
            return self._narrow(op, name, uses, _MOST_NORMED_FRACTION if any(normed) else _MOST_FRACTION)
        kinds = ", ".join(sorted({reader.kind for reader, _ in uses})) or "nothing"
        known = ", ".join(sorted(kind.kind for kind in _NARROW))
        raise unsupported(op, f"its output {name} is read by {kinds}; only add, or a norm of heads, {known}")

    def narrow(self, name: str, most_fraction: int = _MOST_FRACTION) -> Form:
        """Return the form of a narrow value with a calibrated maximum, with at most ``most_fraction`` fraction bits."""
        limit = min(most_fraction, _MOST_FRACTION)
        fraction = fraction_bits(_NARROW_HEADROOM * self.calibration.most(name), NARROW_BITS, limit)
        return Form(unit=2.0**-fraction, width=NARROW_BITS, fraction=fraction)

    def _narrow(self, op: Linear, name: str, uses: Sequence[tuple[Operation, str]], limit: int) -> Form:
        if any(isinstance(reader, _GATED) for reader, _ in uses):
            limit = min(limit, _MOST_GATED_FRACTION)
        form = self.narrow(name, limit)
        for reader, part in uses:
            least = _least_fraction(reader, part)
            if form.fraction < least:
                kind = reader.activation if isinstance(reader, GatedActivation) else reader.kind
                most, bound = self.calibration.most(name), 1 << NARROW_BITS - 2 - least
                raise unsupported(
                    op, f"{name} reaches {most:g} in calibration; a {kind}'s gate must stay below {bound}"
                )
        return form
