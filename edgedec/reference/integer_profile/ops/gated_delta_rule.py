"""The gated delta rule with a state in fixed point, one row at a time.

Keys and queries of length one have 16 fraction bits. A factor of the state is a power of two by table and interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.graph.ops import GatedDeltaRule
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import (
    I64,
    NARROW_BITS,
    WIDE_BITS,
    Mantissas,
    clamp_shift,
    mantissas,
    round_shift,
    saturate,
    to_fixed,
)
from edgedec.reference.integer_profile.ops.gated_activation import gate_factor
from edgedec.reference.integer_profile.ops.rms_norm import root_mean_square
from edgedec.reference.integer_profile.site import Site, fraction_bits, unsupported
from edgedec.reference.integer_profile.tables import (
    GATE_FRACTION_BITS,
    LONGEST_POWER,
    POWER_FRACTION_BITS,
    STEP_FRACTION_BITS,
    power_of_two,
    softplus,
)
from edgedec.reference.integer_profile.values import Form, Value

__all__ = ["DeltaConstants", "prepare", "run"]

UNIT_BITS = 16  # fraction bits of unit vectors
_HEADROOM = 4.0
_MOST_FRACTION = 22
_LEAST = 1e-6


@dataclass(frozen=True, kw_only=True)
class DeltaConstants:
    """The constants of a gated delta rule.

    Members:
        decay: u16 [heads, 1], rate * log2(e) as mantissas.
        step_bias: s27 [heads * (1 or key_dim)] in units of step.
        step_left: shift to the left of step to 16 fraction bits.
        rate_shift: shift of |rate| * 2^6 to the 12 fraction bits of the sigmoid's table.
        value_left: shift to the left of v to the unit of the state; negative: to the right.
        least: u48, 1e-6 in squared units of q and of k.
    """

    decay: Mantissas
    step_bias: I64
    step_left: int
    rate_shift: int
    value_left: int
    least: tuple[int, int]


def prepare(op: GatedDeltaRule, site: Site) -> DeltaConstants:
    """Compute the constants.

    Raises:
        UnsupportedError: an input is not the output of a linear or of a convolution.
    """
    forms = [site.form(name) for name in op.inputs]
    if any(form.width != NARROW_BITS for form in forms):
        raise unsupported(op, "its inputs are not outputs of linears or convolutions")
    q, k, v, rate, step = forms
    most = site.calibration.most(op.state)
    fraction = fraction_bits(_HEADROOM * most, WIDE_BITS, _MOST_FRACTION)
    (_, key_dim, _) = site.graph.recurrent[op.state].shape
    site.set_form(op, Form(unit=2.0**-fraction / math.sqrt(key_dim), width=WIDE_BITS))
    decay = np.exp(site.weights(op.decay).dense().astype(np.float64).reshape(op.heads, 1))
    return DeltaConstants(
        decay=mantissas(decay * math.log2(math.e)),
        step_bias=to_fixed(site.weights(op.step_bias).dense(), step.unit, WIDE_BITS),
        step_left=STEP_FRACTION_BITS - step.fraction,
        rate_shift=rate.fraction + 6 - GATE_FRACTION_BITS["silu"],
        value_left=fraction - v.fraction,
        least=tuple(int(np.floor(_LEAST / form.unit**2 + 0.5)) for form in (q, k)),  # type: ignore[arg-type]
    )


def _unit(x: I64, least: int) -> I64:
    """Return x s18 [n, heads, key_dim] divided by its length, s18 with 16 fraction bits."""
    shape = x.shape
    rows = x.reshape(-1, shape[-1])
    root, exponent = root_mean_square((rows * rows).sum(axis=1) + least, np.zeros(len(rows), np.int64))
    reciprocal = ((1 << 32) - 1) // root
    shift = clamp_shift(32 - UNIT_BITS + exponent)
    return round_shift(rows * reciprocal[:, None], shift[:, None]).reshape(shape)


def _kept(step: I64, constants: DeltaConstants, heads: int) -> I64:
    """Return the factors of the state, u18 [n, heads, 1 or key_dim] with 17 fraction bits."""
    argument = (step + constants.step_bias) << constants.step_left
    steps = softplus(argument).reshape(len(step), heads, -1)
    shifted = round_shift(steps * constants.decay.values, -constants.decay.exponent)
    return power_of_two(np.minimum(shifted, LONGEST_POWER))


def run(
    op: GatedDeltaRule, constants: DeltaConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    q, k, v, rate, step = (x for x in inputs if isinstance(x, np.ndarray))
    name, shared = op.outputs[0], np.arange(op.heads) * op.key_heads // op.heads
    q, k = (
        context.signed(f"{name}.{part}", _unit(x.reshape(len(x), op.key_heads, -1), least), NARROW_BITS)[:, shared]
        for part, x, least in zip("qk", (q, k), constants.least, strict=True)
    )
    v = v.reshape(len(v), op.heads, -1)
    v = v << constants.value_left if constants.value_left >= 0 else round_shift(v, -constants.value_left)
    v = saturate(v, WIDE_BITS)
    rates = gate_factor(rate, constants.rate_shift)[..., None]  # [n, heads, 1]
    kept = context.unsigned(f"{name}.kept", _kept(step, constants, op.heads), POWER_FRACTION_BITS + 1)
    out = np.empty_like(v)
    for row in range(len(v)):
        before = context.cache.before(op.state, row)  # s27 [heads, key_dim, value_dim]
        decayed = round_shift(before * kept[row][..., None], POWER_FRACTION_BITS)
        key = k[row][..., None]
        read = round_shift((key * decayed).sum(axis=1), UNIT_BITS)
        wrong = saturate(v[row] - read, WIDE_BITS)
        written = round_shift(wrong * rates[row], 16)
        after = saturate(decayed + round_shift(key * written[:, None], UNIT_BITS), WIDE_BITS)
        context.cache.advance(op.state, after)
        out[row] = round_shift((q[row][..., None] * after).sum(axis=1), UNIT_BITS)
    out = saturate(out.reshape(len(v), -1), WIDE_BITS)
    return (context.signed(name, out, WIDE_BITS),)
