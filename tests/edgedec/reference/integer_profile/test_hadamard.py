"""Compare the transform, and the quantizer after it, with the formulas of docs/integer-profile.md, in Python's integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UnsupportedError
from edgedec.graph.ops import Hadamard
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import I64, WidthCheck
from edgedec.reference.integer_profile.ops import hadamard, quantize_activation
from edgedec.schemes import FloatWeight, TernaryScheme
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared, tiny
from tests.edgedec.reference.integer_profile.test_ops import rows, rs, sat, seeds
from tests.support.make_rotated import rotated_config


@given(seeds, st.sampled_from([2, 8, 64]))
def test_sums_of_a_transform_are_exact(seed: int, block: int) -> None:
    x = rows(seed, 27, width=2 * block)
    x[1] = 2**26 - 1  # the largest sum
    sums = hadamard.block_sums(x, block)
    assert np.abs(sums).max() == block * (2**26 - 1)
    for row, found in zip(x.tolist(), sums.tolist(), strict=True):
        for start in (0, block):
            part = row[start : start + block]
            assert found[start : start + block] == [
                sum((-1) ** (i & j).bit_count() * value for j, value in enumerate(part)) for i in range(block)
            ]


@given(seeds)
def test_a_quantizer_shifts_long_sums_once(seed: int) -> None:
    """Rows of up to 37 bits are shifted to 27 before their codes are computed, and the scale gets the shift back."""
    y = rows(seed, 37)
    y[2] >>= 10  # rows of s27 are not shifted
    short, dropped = quantize_activation.shortened(y)
    for row, found, shift in zip(y.tolist(), short.tolist(), dropped.tolist(), strict=True):
        assert shift == max(0, max(map(abs, row)).bit_length() - 26)
        assert found == [sat(rs(value, shift), 27) for value in row]
    codes, mantissa, exponent = quantize_activation.codes_of(short)
    for row, found, m, e in zip(
        y.tolist(), codes.tolist(), mantissa.tolist(), (exponent + dropped).tolist(), strict=True
    ):
        real = m * 2.0 ** (e - 16) / 127
        assert all(abs(code * real - value) < 0.52 * max(real, 1) for code, value in zip(found, row, strict=True))


def test_a_row_at_the_edge_saturates_by_one() -> None:
    """Rounding would carry 2^27 - 1, shifted by 1, to 2^26, which s27 does not have."""
    y = np.array([[2**27 - 1, -(2**27) + 1, 4]])
    short, dropped = quantize_activation.shortened(y)
    assert short.tolist() == [[2**26 - 1, -(2**26) + 1, 2]]
    assert dropped.tolist() == [1]
    assert quantize_activation.codes_of(short)[0].tolist() == [[127, -127, 0]]


def test_a_transform_back_keeps_the_residuals_unit() -> None:
    graph, _, model = tiny("rotated")
    op = next(op for op in graph.operations if op.name == "embed.hadamard")
    constants = model.constants[op.name]
    assert model.forms["embed"] == model.forms["embed.hadamard"] == model.forms["layers.0.out"]
    assert (constants.shift, constants.width) == (2, 31)
    x = rows(5, 24, width=32)
    traced: dict[str, I64] = {}
    context = IntegerPassContext(
        cache=IntegerCache({}),
        visible=np.ones((3, 3), np.bool_),
        positions=np.zeros(3, np.int32),
        embeds=None,
        trace=traced.__setitem__,
        check=WidthCheck(enabled=True),
    )
    (back,) = hadamard.run(op, constants, (x,), context)  # type: ignore[arg-type]
    expected = [
        [sat(rs(value, 2), 27) * sign for value, sign in zip(row, constants.signs.tolist(), strict=True)]
        for row in traced["embed.hadamard.sums"].tolist()
    ]
    assert back.tolist() == expected  # type: ignore[union-attr]


def test_the_widths_of_sums_and_units_follow_the_block() -> None:
    graph, _, model = tiny("rotated-int8")
    for op in graph.operations:
        if isinstance(op, Hadamard):
            source, form = model.forms[op.inputs[0]], model.forms[op.outputs[0]]
            assert (source.width, form.width) == (27, 32)
            assert form.unit == source.unit * 32**-0.5
            assert model.constants[op.name].shift == 0


@pytest.mark.parametrize(
    ("changes", "signs", "message"),
    [
        ({"block_size": 32}, 1, r"embed\.hadamard: it transforms embed back by blocks of 32; .* blocks of 4, 16, 64"),
        ({}, 2, r"embed\.hadamard: hadamard\.signs\.32 holds other values than 1 and -1"),
    ],
)
def test_transforms_that_the_profile_does_not_have_are_refused(
    changes: dict[str, Any], signs: int, message: str
) -> None:
    graph, weights = float_model(TernaryScheme(), rotated_config(**changes))
    values = weights["hadamard.signs.32"].dense() * np.float32(signs)
    with pytest.raises(UnsupportedError, match=f"integer profile cannot run hadamard {message}"):
        prepared(graph, weights | {"hadamard.signs.32": FloatWeight(values=values)})


def test_a_transform_that_no_quantizer_reads_is_refused() -> None:
    graph, weights = float_model(TernaryScheme(), rotated_config(weights=[]))
    operations = [replace(op, inverse=False) if isinstance(op, Hadamard) else op for op in graph.operations]
    with pytest.raises(UnsupportedError, match=r"embed\.hadamard: add, rms_norm reads it; only a quantizer"):
        prepared(replace(graph, operations=tuple(operations)), weights)
