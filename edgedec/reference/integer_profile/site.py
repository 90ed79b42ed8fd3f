"""Preparation of a graph in real numbers, which gives every value a unit and every operation its constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgedec.errors import UnsupportedError
from edgedec.graph import Graph
from edgedec.ops import Add, Attention, Embed, GatedActivation, Hadamard, Linear, Operation, Rope
from edgedec.reference.integer_profile.calibration import Calibration
from edgedec.reference.integer_profile.numbers import NARROW_BITS, WIDE_BITS, largest
from edgedec.reference.integer_profile.values import Form
from edgedec.schemes import Weight

__all__ = ["Site", "fraction_bits", "in_residual", "unsupported"]

_RESIDUAL_HEADROOM = 8.0
_NARROW_HEADROOM = 2.0
# Limits of the fraction bits. A finer unit has no benefit, and the norm's eps, in squared units, would exceed 48 bits.
_MOST_RESIDUAL_FRACTION = 24
_MOST_FRACTION = 22
_MOST_GATED_FRACTION = 16


def unsupported(op: Operation, reason: str) -> UnsupportedError:
    """Return an error that names the operation, whose name contains the layer."""
    return UnsupportedError(f"the integer profile cannot run {op.kind} {op.name}: {reason}")


def in_residual(op: Operation) -> bool:
    """Return True if the operation's output has the residual's unit by definition."""
    return isinstance(op, Embed | Add) or (isinstance(op, Hadamard) and op.inverse)


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
        self._readers: dict[str, list[Operation]] = {}
        for op in self.graph.operations:
            for name in op.inputs:
                self._readers.setdefault(name, []).append(op)
        residual = [name for op in self.graph.operations if in_residual(op) for name in op.outputs]
        most = max((self.calibration.most(name) for name in residual), default=0.0)
        fraction = fraction_bits(_RESIDUAL_HEADROOM * most, WIDE_BITS, _MOST_RESIDUAL_FRACTION)
        self.residual = Form(unit=2.0**-fraction, width=WIDE_BITS, fraction=fraction)

    def readers(self, name: str) -> Sequence[Operation]:
        return self._readers.get(name, [])

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
        """Return the form of a linear's output: that of the residual if it is added, and a calibrated narrow one otherwise.

        Raises:
            UnsupportedError: its readers need different units, or nothing reads it.
        """
        readers = self.readers(name)
        if readers and all(isinstance(reader, Add) for reader in readers):
            return self.residual
        if readers and all(isinstance(reader, Rope | Attention | GatedActivation) for reader in readers):
            return self._narrow(op, name, readers)
        kinds = ", ".join(sorted({reader.kind for reader in readers})) or "nothing"
        raise unsupported(
            op, f"its output {name} is read by {kinds}; only add, or rope, attention and gated_activation"
        )

    def _narrow(self, op: Linear, name: str, readers: Sequence[Operation]) -> Form:
        gates = [reader for reader in readers if isinstance(reader, GatedActivation)]
        limit = _MOST_GATED_FRACTION if gates else _MOST_FRACTION
        most = self.calibration.most(name)
        fraction = fraction_bits(_NARROW_HEADROOM * most, NARROW_BITS, limit)
        if any(gate.activation == "silu" and gate.inputs[0] == name for gate in gates) and fraction < 6:
            raise unsupported(op, f"{name} reaches {most:g} in calibration; a SiLU's gate must stay below 1024")
        return Form(unit=2.0**-fraction, width=NARROW_BITS, fraction=fraction)
