"""Softmax attention over int8 keys and values, with the exact maximum first, exact sums, and one division at the end.

Nothing is rescaled, so that neither the order of keys nor other rows of the pass change a bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.graph import KvState
from edgedec.graph.ops import Attention
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import (
    CODE_BITS,
    I64,
    LONGEST_SHIFT,
    NARROW_BITS,
    WIDE_BITS,
    Mantissas,
    largest,
    mantissas,
    normalize16,
    round_shift,
    saturate,
    shifted,
    to_fixed,
)
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.tables import (
    CAP_FRACTION_BITS,
    CAP_LAST,
    CAP_VALUE_BITS,
    EXP2_FRACTION_BITS,
    EXP2_LAST,
    capped,
    exp2_negative,
)
from edgedec.reference.integer_profile.values import Form, Value

__all__ = ["AttentionConstants", "capped_scores", "prepare", "run", "visible_keys"]

QUERY_BITS = 12  # fits the multiplier of p (u16); with 8 bits and heads of 8, top-1 agreement is a point lower
_WIDEST_HEAD = 8192  # columns, so that a score fits s32
_DIFFERENCE_BITS = 26
_OUT_SHIFT = 13
_LEAST_V_EXPONENT = -21  # limit so that a following norm's eps, in squared units, fits 48 bits
_LONGEST_CODE_SHIFT = 34
# Least range of a column, relative to the largest of its layer.
_LEAST_RANGE = 1 / 256
_HIDDEN = -(1 << 40)


@dataclass(frozen=True, kw_only=True)
class AttentionConstants:
    """Factors as u16 mantissas with one exponent each.

    Keys have one static scale per head and column, which is part of the query's factors; values have one per head.

    Members:
        q, k, v: factors to codes, per column of q [heads, head_dim] and k [kv_heads, head_dim], per head of v [kv_heads, 1].
        k_middle: s18 [kv_heads, head_dim], subtracted from every key, which does not change a softmax.
        score: factors of scores, or of capped ones, to the exponential's unit [heads].
        cap: factors of scores to the argument of a soft-cap's tanh [heads]; None without a soft-cap.
        output: scale of the values [kv_heads].
    """

    q: Mantissas
    k: Mantissas
    v: Mantissas
    k_middle: I64
    score: Mantissas
    output: Mantissas
    cap: Mantissas | None = None


def _ranges(site: Site, name: str, heads: int, form: Form) -> NDArray[np.float64]:
    """Return calibrated maxima [heads, columns], at least 1/256 of the largest one and at least the form's unit."""
    maxima = np.array(site.calibration.columns(name)).reshape(heads, -1)
    ranges: NDArray[np.float64] = np.maximum(maxima, max(float(maxima.max()) * _LEAST_RANGE, form.unit))
    return ranges


def _factor(op: Attention, what: str, real: NDArray[np.float64], longest: int) -> Mantissas:
    factor = mantissas(real, least_exponent=-longest)
    if factor.exponent > 0:
        raise unsupported(op, f"the factor of {what} is {float(real.max()):g}, above 2^16; calibrate on other text")
    return factor


def prepare(op: Attention, site: Site) -> AttentionConstants:
    """Compute the constants.

    Raises:
        UnsupportedError: a head is too wide, an input is not a linear's output, or a scale is far larger than in any model.
    """
    state = site.graph.states[op.state]
    if state.head_dim > _WIDEST_HEAD:
        raise unsupported(op, f"its heads are {state.head_dim} wide; at most {_WIDEST_HEAD}")
    q_form, k_form, v_form = (site.form(name) for name in op.inputs)
    if {q_form.width, k_form.width, v_form.width} != {NARROW_BITS}:
        raise unsupported(op, "its inputs are not outputs of linears or rotations of such")
    q_name, k_name, v_name = op.inputs
    middles = np.array(site.calibration.middles.get(k_name, np.zeros(state.kv_heads * state.head_dim)))
    middles = middles.reshape(state.kv_heads, -1)
    shared = np.arange(op.heads) * state.kv_heads // op.heads
    code = largest(CODE_BITS)
    k = _factor(op, k_name, k_form.unit * code / _ranges(site, k_name, state.kv_heads, k_form), _LONGEST_CODE_SHIFT)
    # Real value of a key's code, including the rounding of the mantissa, so that the rounding cancels.
    k_scale = k_form.unit / shifted(k.values, k.exponent)  # [kv_heads, head_dim]
    reach = _ranges(site, q_name, op.heads, q_form) * k_scale[shared]
    q_scale = reach.max(axis=1, keepdims=True) / largest(QUERY_BITS)  # [heads, 1]
    v_scale = _ranges(site, v_name, state.kv_heads, v_form) / code  # [kv_heads, 1]
    output = mantissas(v_scale, least_exponent=_LEAST_V_EXPONENT)
    site.set_form(op, Form(unit=2.0 ** (output.exponent - 3), width=WIDE_BITS))
    octaves = (1 << EXP2_FRACTION_BITS) * math.log2(math.e)
    score, cap = q_scale[:, 0] * op.scale * octaves, None
    if op.soft_cap is not None:
        cap = _factor(
            op, "capped scores", q_scale[:, 0] * op.scale / op.soft_cap * (1 << CAP_FRACTION_BITS), LONGEST_SHIFT
        )
        score = np.full(op.heads, op.soft_cap * octaves / (1 << CAP_VALUE_BITS))
    return AttentionConstants(
        q=_factor(op, q_name, q_form.unit * k_scale[shared] / q_scale, _LONGEST_CODE_SHIFT),
        k=k,
        k_middle=to_fixed(middles, k_form.unit, NARROW_BITS),
        v=_factor(op, v_name, v_form.unit / v_scale, _LONGEST_CODE_SHIFT),
        score=_factor(op, "scores", score, LONGEST_SHIFT),
        output=output,
        cap=cap,
    )


def visible_keys(state: KvState, context: IntegerPassContext) -> NDArray[np.bool_]:
    """Return the keys that each row sees, bool [n, committed + n].

    A row sees the committed keys and the rows of its mask. A window hides those that are further back, except the first
    ``sinks`` positions.
    """
    committed = np.ones((len(context.positions), context.cache.length), np.bool_)
    seen = np.concatenate([committed, context.visible], axis=1)
    if state.window is not None:
        at = context.cache.positions
        seen &= (at > context.positions[:, None] - state.window) | (at < state.sinks)
    return seen


def _codes(x: I64, factor: Mantissas, bits: int) -> I64:
    """Quantize x s19 [n, heads, head_dim] to signed codes of ``bits``."""
    return saturate(round_shift(x * factor.values, -factor.exponent), bits)


def _integers(x: Value) -> I64:
    assert isinstance(x, np.ndarray)
    return x


def capped_scores(scores: I64, factors: I64, shift: int) -> I64:
    """Return tanh(score * factor * 2^-(shift + 16)), s18 with 17 fraction bits; factors u16 broadcast against scores."""
    size = np.minimum(np.abs(scores), (1 << _DIFFERENCE_BITS) - 1)
    positive = capped(np.minimum(round_shift(size * factors, shift), CAP_LAST))
    return np.where(scores < 0, -positive, positive)


def _exact(bound: int) -> Any:
    """Return the smaller float type that is exact for sums up to ``bound``, in any order: 2^24 or 2^53 is its limit."""
    return np.float32 if bound < 1 << 24 else np.float64


def run(
    op: Attention, constants: AttentionConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    state, name = context.cache.states[op.state], op.outputs[0]
    counts = (op.heads, state.kv_heads, state.kv_heads)
    q, k, v = (_integers(x).reshape(-1, heads, state.head_dim) for x, heads in zip(inputs, counts, strict=True))
    q = context.signed(f"{name}.q12", _codes(q, constants.q, QUERY_BITS), QUERY_BITS)
    k = context.signed(f"{name}.k8", _codes(k - constants.k_middle, constants.k, CODE_BITS), CODE_BITS)
    v = context.signed(f"{name}.v8", _codes(v, constants.v, CODE_BITS), CODE_BITS)
    context.cache.append(op.state, k.astype(np.int8), v.astype(np.int8))
    shared = np.arange(op.heads) * state.kv_heads // op.heads
    seen = visible_keys(state, context)  # [n, t]
    kind = _exact(largest(QUERY_BITS) * largest(CODE_BITS) * state.head_dim)
    queries = q.transpose(1, 0, 2).astype(kind)  # [heads, n, head_dim]
    keys = context.cache.keys[op.state][:, shared].transpose(1, 2, 0).astype(kind)  # [heads, head_dim, t]
    scores = (queries @ keys).astype(np.int64)
    if constants.cap is not None:
        scores = capped_scores(scores, constants.cap.values[:, None, None], -constants.cap.exponent)
        context.check.signed(f"{name}.capped", scores, CAP_VALUE_BITS + 1)
    largest_score = np.where(seen, scores, _HIDDEN).max(axis=2, keepdims=True)
    context.signed(f"{name}.max", largest_score, 32)
    d = np.minimum(np.where(seen, largest_score - scores, 0), (1 << _DIFFERENCE_BITS) - 1)
    u = np.minimum(round_shift(d * constants.score.values[:, None, None], -constants.score.exponent), EXP2_LAST)
    p = np.where(seen, exp2_negative(u), 0)
    context.unsigned(f"{name}.p", p, 16)
    total = context.unsigned(f"{name}.sum", p.sum(axis=2, keepdims=True), 32)  # [heads, n, 1]
    values = context.cache.values[op.state][:, shared].transpose(1, 0, 2).astype(np.float64)
    mixed = (p.astype(np.float64) @ values).astype(np.int64)  # [heads, n, head_dim]; below 2^40
    context.signed(f"{name}.mixed", mixed, 40)
    out = _divide(mixed, total, constants.output.values[shared, None], context, name)
    return (context.signed(name, out.transpose(1, 0, 2).reshape(len(seen), -1), WIDE_BITS),)


def _divide(mixed: I64, total: I64, scale: I64, context: IntegerPassContext, name: str) -> I64:
    """Return mixed / total * scale * 2^3, with sums shifted to 24 bits and one reciprocal u17 per query and head."""
    l16, e = normalize16(total)
    reciprocal = round_shift(((1 << 32) - 1) // l16 * scale, 16)
    context.unsigned(f"{name}.reciprocal", reciprocal, 17)
    short = context.check.signed(f"{name}.short", round_shift(mixed, e - 16), 24)
    return round_shift(short * reciprocal, _OUT_SHIFT)
