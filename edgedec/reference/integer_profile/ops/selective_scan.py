"""The recurrence of state space duality with a state in fixed point, one row at a time.

A factor of the state is a power of two by table and interpolation, as in the gated delta rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.graph.ops import SelectiveScan
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import (
    I64,
    NARROW_BITS,
    WIDE_BITS,
    Mantissas,
    mantissas,
    round_shift,
    saturate,
    to_fixed,
)
from edgedec.reference.integer_profile.site import Site, fraction_bits, unsupported
from edgedec.reference.integer_profile.tables import (
    LONGEST_POWER,
    POWER_FRACTION_BITS,
    STEP_FRACTION_BITS,
    power_of_two,
    softplus,
)
from edgedec.reference.integer_profile.values import Form, Value

__all__ = ["ScanConstants", "prepare", "run"]

_STATE_HEADROOM, _OUT_HEADROOM = 4.0, 2.0
_MOST_FRACTION = 22
_FINE_BITS = 24  # fraction bits of a step
_STEP_BITS = 32
_WRITTEN_SHIFT = 12  # shift of step * x, which then has 12 more fraction bits than x, for small steps


@dataclass(frozen=True, kw_only=True)
class ScanConstants:
    """The constants of a scan.

    Members:
        decay: u16 [heads], exp(decay) * log2(e) as mantissas.
        step_bias: s27 [heads] in units of step.
        step_left: shift to the left of step to 16 fraction bits.
        step_limits: u32, the least and the largest step with 24 fraction bits.
        state_shift: shift of the product of step * x and b to the unit of the state.
        read_shift: shift of the sum of c * state to the unit of the output.
        skip: s16 mantissas [heads].
        skip_shift: shift of skip * x to the unit of the output.
    """

    decay: Mantissas
    step_bias: I64
    step_left: int
    step_limits: tuple[int, int]
    state_shift: int
    read_shift: int
    skip: Mantissas
    skip_shift: int


def prepare(op: SelectiveScan, site: Site) -> ScanConstants:
    """Compute the constants.

    Raises:
        UnsupportedError: an input is not the output of a linear or of a convolution.
    """
    forms = [site.form(name) for name in op.inputs]
    if any(form.width != NARROW_BITS for form in forms):
        raise unsupported(op, "its inputs are not outputs of linears or convolutions")
    x, b, c, step = forms
    written = x.fraction + _WRITTEN_SHIFT + b.fraction
    most = _STATE_HEADROOM * site.calibration.most(op.state)
    state = fraction_bits(most, WIDE_BITS, min(_MOST_FRACTION, written))
    skip = mantissas(site.weights(op.skip).dense(), bits=15)
    finest = min(_MOST_FRACTION, c.fraction + state, x.fraction - skip.exponent)
    fraction = fraction_bits(_OUT_HEADROOM * site.calibration.most(op.outputs[0]), WIDE_BITS, finest)
    site.set_form(op, Form(unit=2.0**-fraction, width=WIDE_BITS, fraction=fraction))
    rate = np.exp(site.weights(op.decay).dense().astype(np.float64))
    least, largest = (min(limit, 2.0 ** (_STEP_BITS - _FINE_BITS)) for limit in op.step_limits)
    return ScanConstants(
        decay=mantissas(rate * math.log2(math.e)),
        step_bias=to_fixed(site.weights(op.step_bias).dense(), step.unit, WIDE_BITS),
        step_left=STEP_FRACTION_BITS - step.fraction,
        step_limits=(
            math.floor(least * 2**_FINE_BITS + 0.5),
            min(math.floor(largest * 2**_FINE_BITS + 0.5), 2**_STEP_BITS - 1),
        ),
        state_shift=written - state,
        read_shift=c.fraction + state - fraction,
        skip=skip,
        skip_shift=x.fraction - skip.exponent - fraction,
    )


def run(
    op: SelectiveScan, constants: ScanConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    x, b, c, step = (part for part in inputs if isinstance(part, np.ndarray))
    name, shared = op.outputs[0], np.arange(op.heads) * op.groups // op.heads
    x = x.reshape(len(x), op.heads, -1)
    b, c = (part.reshape(len(part), op.groups, -1)[:, shared] for part in (b, c))  # [n, heads, size]
    argument = (step + constants.step_bias) << constants.step_left
    steps = np.clip(softplus(argument, _FINE_BITS), *constants.step_limits)  # [n, heads]
    context.unsigned(f"{name}.step", steps, _STEP_BITS)
    shift = _FINE_BITS - STEP_FRACTION_BITS - constants.decay.exponent
    exponent = np.minimum(round_shift(steps * constants.decay.values, shift), LONGEST_POWER)
    kept = context.unsigned(f"{name}.kept", power_of_two(exponent), POWER_FRACTION_BITS + 1)
    written = round_shift(steps[..., None] * x, _WRITTEN_SHIFT)
    out = round_shift(constants.skip.values[:, None] * x, constants.skip_shift)
    for row in range(len(x)):
        before = context.cache.before(op.state, row)  # s27 [heads, head_dim, size]
        decayed = round_shift(before * kept[row][:, None, None], POWER_FRACTION_BITS)
        added = round_shift(written[row][..., None] * b[row][:, None], constants.state_shift)
        after = saturate(decayed + added, WIDE_BITS)
        context.cache.advance(op.state, after)
        out[row] += round_shift((after * c[row][:, None]).sum(axis=2), constants.read_shift)
    return (context.signed(name, saturate(out.reshape(len(x), -1), WIDE_BITS), WIDE_BITS),)
