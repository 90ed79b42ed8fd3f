"""Tapped rows: values of the graph that leave the accelerator as integers, and the real numbers that they stand for.

A residual, an output of attention or of a gated activation has one unit for all rows. A norm that a quantizer reads is kept
as the product with its gains and the root of each row, because the profile never divides the one by the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError, UsageError
from edgedec.graph.ops import Add, Attention, Embed, GatedActivation, Operation, RmsNorm
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.numbers import I64, shifted
from edgedec.reference.integer_profile.ops.rms_norm import NormConstants

__all__ = ["TapForm", "TapRecorder", "TappedRows", "tap_form"]

_TAPPED = (
    Add,
    Attention,
    Embed,
    GatedActivation,
)  # operations whose output has a unit, and goes to a norm or a quantizer


@dataclass(frozen=True, kw_only=True)
class TapForm:
    """The static properties of a tapped value.

    Members:
        unit: real number of the integer 1, a power of two; of a norm, that of an integer divided by its row's root.
        normed: True for a norm, whose rows have a root each.
    """

    unit: float
    normed: bool = False


@dataclass(frozen=True, kw_only=True)
class TappedRows:
    """Rows of a value, for any number of rows n.

    Members:
        form: the unit.
        values: s27 [n, width].
        root, exponent: u16 [n] in [2^15, 2^16) and s8 [n] of a norm, whose root mean square is root * 2^exponent; None of
            other values.

    Example:
        >>> rows = TappedRows(form=TapForm(unit=2.0**-12), values=np.array([[4096, -1024]]))
        >>> rows.real.tolist()
        [[1.0, -0.25]]
        >>> norm = TapForm(unit=2.0**13, normed=True)
        >>> root, exponent = np.array([1 << 15]), np.array([-1])
        >>> TappedRows(form=norm, values=np.array([[3, -2]]), root=root, exponent=exponent).real.tolist()
        [[1.5, -1.0]]
    """

    form: TapForm
    values: NDArray[Any]
    root: NDArray[Any] | None = None
    exponent: NDArray[Any] | None = None

    @property
    def real(self) -> NDArray[np.float32]:
        """The rows as float32 [n, width]: values * unit, or values * (unit / (root * 2^exponent)).

        The first form is rounded once. In the second one the quotient and the product are float64, and the product is then
        rounded to float32.
        """
        if self.root is None or self.exponent is None:
            # A number of 27 bits times a power of two rounds like the number alone.
            real: NDArray[np.float32] = np.multiply(self.values, np.float32(self.form.unit), dtype=np.float32)
            return real
        units = self.form.unit / shifted(self.root, self.exponent)
        quotients: NDArray[np.float64] = self.values * units[:, None]
        return quotients.astype(np.float32)


def tap_form(model: IntegerModel, name: str) -> TapForm:
    """Return the form of a value that can be tapped.

    Raises:
        UnsupportedError: the graph has no such value, or the profile defines no tapped row of it.
    """
    maker = next((op for op in model.graph.operations if name in op.outputs), None)
    if maker is None or not _is_tapped(maker, model):
        known = [op.outputs[0] for op in model.graph.operations if _is_tapped(op, model)]
        raise UnsupportedError(
            f"the integer profile has no rows {name!r} to tap; it has {', '.join(known[:5])} ... {known[-1]}: sums of the "
            "residual, outputs of attention and of gated activations, and norms before a linear"
        )
    return TapForm(unit=model.forms[name].unit, normed=isinstance(maker, RmsNorm))


def _is_tapped(op: Operation, model: IntegerModel) -> bool:
    return isinstance(op, _TAPPED) or isinstance(model.constants[op.name], NormConstants)


class TapRecorder:
    """Keep tapped rows of a pass of ``IntegerModel``: its ``trace`` is the pass's trace.

    Raises:
        UnsupportedError: see ``tap_form``.

    Example:
        taps = TapRecorder(model, ("layers.0.out",))
        model.open().forward(ids, trace=taps.trace)
        taps.rows("layers.0.out").real      # float32 [n, hidden]
    """

    def __init__(self, model: IntegerModel, names: Iterable[str]) -> None:
        self._forms = {name: tap_form(model, name) for name in names}
        self._kept: dict[str, I64] = {}

    def trace(self, name: str, integers: I64) -> None:
        """Keep the integers of a value, if it is tapped; those of the pass before are forgotten."""
        tapped, _, part = name.rpartition(".")
        if name in self._forms or (tapped in self._forms and part in ("root", "exponent")):
            self._kept[name] = integers

    def rows(self, name: str) -> TappedRows:
        """Return the rows of a value in the last pass.

        Raises:
            UsageError: the value is not tapped, or no pass has run.
        """
        if name not in self._kept:
            raise UsageError(f"there are no rows of {name!r}: tap it, and run a pass with this trace first")
        parts = (self._kept.get(f"{name}.root"), self._kept.get(f"{name}.exponent"))
        return TappedRows(form=self._forms[name], values=self._kept[name], root=parts[0], exponent=parts[1])
