"""Matrix products with exact integer sums, and one multiplication by the product of the row's and the weight's scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import GatedDeltaRule, Linear
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import (
    CODE_BITS,
    I64,
    WIDE_BITS,
    Mantissas,
    clamp_shift,
    largest,
    mantissas,
    normalize16,
    round_shift,
    saturate,
    to_fixed,
)
from edgedec.reference.integer_profile.ops.quantize_activation import normed_scale
from edgedec.reference.integer_profile.rescoring import LOGIT_SHIFT, Rescoring
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.values import Form, Logits, Normed, Scale, Value
from edgedec.schemes import FloatWeight, Int4Weight, Int8Weight, TernaryWeight

__all__ = ["LinearConstants", "MatrixConstants", "integer_weight", "prepare", "rough_matrix", "run"]

NARROW_ROWS = 64  # most rows of a float matrix that is rounded to s16
ROW_BITS = 16  # bits of its weights, and of the codes that they are multiplied by
ROW_SUM_BITS = 48
GROUP_BITS = 8
SUM_BITS = 32
FACTOR_SHIFT = 15
ROW_SHIFT_MOST = 15
_GROUP_COLUMNS = 64  # columns of a beat; a group must end with a beat


@dataclass(frozen=True, kw_only=True)
class MatrixConstants:
    """One matrix of a linear.

    Members:
        weight: [out, in], the integers that are summed: trits, trits times u8 group mantissas, or int8 codes; their type is
            the float type in which every sum of their products with int8 codes is exact.
        trits: int8 [planes, out, in], which include the signs of negative scales; None for int8.
        groups: u8 [planes, out, groups]; None without groups.
        scale: u16 mantissas, [1] or [out].
        row_shift: u4 [out], the additional shift of a row with groups in the drain; otherwise 0.
        pre_shift: shift that reduces a sum to s27.
        base: the drain shifts by base - the row scale's exponent + row_shift.
        bias: [out] in units of the output; None if there is none.
        form: form of the output; None for logits.
        rough: it is a rough head; if it has two planes, a weight is 3 times the trit of the first plus that of the second.
    """

    name: str
    weight: NDArray[Any]
    groups: NDArray[np.uint8] | None
    trits: NDArray[np.int8] | None  # [planes, out, in]
    scale: Mantissas
    row_shift: I64 | int
    pre_shift: int
    bias: I64 | None
    form: Form | None
    rough: bool = False

    @property
    def base(self) -> int:
        return -(self.pre_shift + self.scale.exponent + FACTOR_SHIFT)

    @property
    def logit_exponent(self) -> int:
        """Exponent by which a logit's real value is logit * A * 2^(ea + exponent)."""
        return self.scale.exponent + self.pre_shift + LOGIT_SHIFT


@dataclass(frozen=True, kw_only=True)
class LinearConstants:
    """The constants of all matrices of a linear.

    Members:
        rescoring: the second step of a rough head, whose likeliest tokens are scored again; None for any other linear.
    """

    matrices: tuple[MatrixConstants, ...]
    rescoring: Rescoring | None = None


@dataclass(frozen=True, kw_only=True)
class _IntegerWeight:
    summed: NDArray[np.int64]
    scale: NDArray[np.float64]  # [1] or [out]
    groups: NDArray[np.uint8] | None = None
    trits: NDArray[np.int8] | None = None
    row_shift: I64 | None = None  # [out]


def integer_weight(weight: Int8Weight | TernaryWeight) -> _IntegerWeight:
    """Return a weight as integers and the remaining real scale. The integers include the signs of scales."""
    if isinstance(weight, Int8Weight):
        signs = np.where(weight.scale < 0, -1, 1)[:, None]
        return _IntegerWeight(
            summed=(weight.codes * signs).astype(np.int64), scale=np.abs(weight.scale).astype(np.float64)
        )
    scale = weight.plane_scales().astype(np.float64)
    if not weight.group_size:
        trits = (weight.trits * np.int8(-1 if scale[0] < 0 else 1)).astype(np.int8)
        return _IntegerWeight(summed=trits.sum(axis=0, dtype=np.int64), scale=np.abs(scale), trits=trits)
    sizes = np.abs(scale)
    most, top = float(sizes.max()), (1 << GROUP_BITS) - 1
    rows = sizes.max(axis=(0, 2))
    # A row with small scales keeps its 8 bits, and is shifted further in the drain.
    shift = np.floor(np.log2(most / np.where(rows > 0, rows, max(most, 1.0)))).astype(np.int64)
    shift = np.clip(np.where(rows > 0, shift, 0), 0, ROW_SHIFT_MOST)
    factor = (top / most if most else 0.0) * np.exp2(shift)
    groups = np.floor(sizes * factor[:, None] + 0.5).astype(np.uint8)
    negative = np.repeat(scale < 0, weight.group_size, axis=2)[..., : weight.trits.shape[2]]
    trits = np.where(negative, -weight.trits, weight.trits)
    spread = np.repeat(groups.astype(np.int64), weight.group_size, axis=2)[..., : weight.trits.shape[2]]
    summed = (trits * spread).sum(axis=0)
    return _IntegerWeight(summed=summed, scale=np.array([most / top]), groups=groups, trits=trits, row_shift=shift)


def _matrix(op: Linear, index: int, code_unit: float, site: Site) -> MatrixConstants:
    name, bias = op.weights[index], op.biases[index]
    weight = site.weights(name)
    if isinstance(weight, Int4Weight):
        raise unsupported(
            op,
            f"{name} is int4, which the accelerator cannot multiply; quantize with --method ternary --planes 2, or int8",
        )
    if not isinstance(weight, Int8Weight | TernaryWeight):
        raise unsupported(op, f"{name} is kept as float; quantize it as int8 or ternary")
    if isinstance(weight, TernaryWeight) and weight.group_size % _GROUP_COLUMNS:
        raise unsupported(
            op, f"{name} has groups of {weight.group_size} columns; quantize with --group-size {_GROUP_COLUMNS} or 128"
        )
    integers = integer_weight(weight)
    bound = largest(CODE_BITS) * int(np.abs(integers.summed).sum(axis=1).max(initial=0))
    if bound > largest(SUM_BITS):
        raise unsupported(
            op, f"a sum over {integers.summed.shape[1]} columns of {name} can reach {bound}; at most 2^31 - 1"
        )
    output = op.outputs[index]
    logits = output in site.graph.outputs
    if logits and bias:
        raise unsupported(op, f"the head has the bias {bias}; remove it")
    form = None if logits else site.set_form(op, site.of_linear(op, output), index)
    unit = 1.0 if form is None else form.unit
    return MatrixConstants(
        name=output,
        # Float sums of integers are exact in any order if all partial sums stay below 2^24 (float32) or 2^53 (float64).
        weight=integers.summed.astype(np.float32 if bound < 1 << 24 else np.float64),
        groups=integers.groups,
        trits=integers.trits,
        scale=mantissas(integers.scale * (code_unit / unit)),
        row_shift=0 if integers.row_shift is None else integers.row_shift,
        pre_shift=max(0, bound.bit_length() - (WIDE_BITS - 1)),
        bias=to_fixed(site.weights(bias).dense(), form.unit, form.width) if bias and form else None,
        form=form,
    )


def rough_matrix(name: str, trits: NDArray[np.int8], scale: NDArray[np.float32], code_unit: float) -> MatrixConstants:
    """Return the constants of a rough head: trits [planes, out, in], 1 or 2, and scales of the rows, not negative."""
    summed = trits[-1].astype(np.float32)
    if len(trits) == 2:
        summed += 3 * trits[0]
    bound = largest(CODE_BITS) * int(np.abs(summed).sum(axis=1, dtype=np.float64).max(initial=0))
    return MatrixConstants(
        name=name,
        weight=summed.astype(np.float32 if bound < 1 << 24 else np.float64),
        groups=None,
        trits=trits,
        scale=mantissas(scale.astype(np.float64) * code_unit),
        row_shift=0,
        pre_shift=max(0, bound.bit_length() - (WIDE_BITS - 1)),
        bias=None,
        form=None,
        rough=True,
    )


def _steers(op: Linear, index: int, site: Site) -> bool:
    """Return True for a float matrix of few rows that only steers recurrent states, and may stay float for that."""
    weight, uses = site.weights(op.weights[index]), site.uses(op.outputs[index])
    few = isinstance(weight, FloatWeight) and weight.values.shape[0] <= NARROW_ROWS
    return few and bool(uses) and all(isinstance(reader, GatedDeltaRule) for reader, _ in uses)


def _narrow(op: Linear, index: int, site: Site) -> MatrixConstants:
    """Return the constants of a float matrix of few rows: s16 for each row, which codes of 16 bits are multiplied by."""
    name, bias = op.weights[index], op.biases[index]
    real = site.weights(name).dense().astype(np.float64)
    row = np.maximum(np.abs(real).max(axis=1, initial=0.0), 1e-30) / largest(ROW_BITS)
    summed = np.floor(real / row[:, None] + 0.5).astype(np.int64)
    bound = largest(ROW_BITS) * int(np.abs(summed).sum(axis=1).max(initial=0))
    form = site.set_form(op, site.of_linear(op, op.outputs[index]), index)
    return MatrixConstants(
        name=op.outputs[index],
        weight=summed.astype(np.float64),
        groups=None,
        trits=None,
        scale=mantissas(row * (site.form(op.inputs[0]).unit / largest(ROW_BITS) / form.unit)),
        row_shift=0,
        pre_shift=max(0, bound.bit_length() - (WIDE_BITS - 1)),
        bias=to_fixed(site.weights(bias).dense(), form.unit, form.width) if bias else None,
        form=form,
    )


def _row_codes(x: Value) -> tuple[I64, Scale]:
    """Return codes s16 [n, width] of the output of a norm, and their scale."""
    assert isinstance(x, Normed)
    m = np.abs(x.y).max(axis=1, initial=0)
    m16, e = normalize16(np.maximum(m, 1))
    reciprocal = (largest(ROW_BITS) << 17) // m16
    codes = round_shift(x.y * reciprocal[:, None], (e + 1)[:, None])
    return codes, normed_scale(np.where(m > 0, m16, 0), np.where(m > 0, e, 0), x.root, x.exponent)


def prepare(op: Linear, site: Site) -> LinearConstants:
    """Compute the constants.

    Raises:
        UnsupportedError: the linear cannot be mapped; see docs/integer-profile.md, "What does not map".
    """
    if len(op.inputs) != 2 and all(_steers(op, index, site) for index in range(len(op.weights))):
        return LinearConstants(matrices=tuple(_narrow(op, i, site) for i in range(len(op.weights))))
    if len(op.inputs) != 2:
        raise unsupported(op, f"{', '.join(op.weights)} is kept as float; quantize it as int8 or ternary")
    code_unit = site.form(op.inputs[1]).unit
    return LinearConstants(matrices=tuple(_matrix(op, i, code_unit, site) for i in range(len(op.weights))))


def _drain(matrix: MatrixConstants, form: Form, t: I64, scale: Scale, context: IntegerPassContext) -> I64:
    """Scale t s27 [n, out] to the output by factors u17 = rs(A * W, 15), one per row, or one per row and column."""
    factor = round_shift(scale.mantissa[:, None] * matrix.scale.values, FACTOR_SHIFT)
    context.check.unsigned(f"{matrix.name}.factor", factor, 17)
    shift = clamp_shift((matrix.base - scale.exponent)[:, None] + matrix.row_shift)
    out = round_shift(t * factor, shift)
    if matrix.bias is not None:
        out = out + matrix.bias
    return context.signed(matrix.name, saturate(out, form.width), form.width)


def run(
    op: Linear, constants: LinearConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    codes, scale = inputs if len(inputs) == 2 else _row_codes(*inputs)
    assert isinstance(codes, np.ndarray)
    assert isinstance(scale, Scale)
    outputs: list[Value] = []
    for matrix in constants.matrices:
        acc = (codes.astype(matrix.weight.dtype) @ matrix.weight.T).astype(np.int64)
        context.signed(f"{matrix.name}.acc", acc, SUM_BITS if len(inputs) == 2 else ROW_SUM_BITS)
        t = context.check.signed(f"{matrix.name}.t", round_shift(acc, matrix.pre_shift), WIDE_BITS)
        if matrix.form is not None:
            outputs.append(_drain(matrix, matrix.form, t, scale, context))
            continue
        logits = context.signed(
            matrix.name, round_shift(t * matrix.scale.values, LOGIT_SHIFT + matrix.row_shift), SUM_BITS
        )
        row = Logits(
            values=logits,
            mantissa=scale.mantissa,
            exponent=scale.exponent + matrix.logit_exponent,
            cap=op.soft_cap,
        )
        outputs.append(row if constants.rescoring is None else constants.rescoring.logits(row, codes))
    return tuple(outputs)
