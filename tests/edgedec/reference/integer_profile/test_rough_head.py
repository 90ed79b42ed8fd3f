"""Test the rough head of the integer profile: its candidates, the logits of a row, and the sums of exponentials."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UnsupportedError
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.rescoring import HeadRows, Rescored, Rescoring
from edgedec.reference.integer_profile.rough_head import head_codes, head_of
from edgedec.reference.integer_profile.values import Logits
from edgedec.schemes import Int8Weight
from tests.edgedec.reference.integer_profile.support.make_models import VOCAB, rough_tiny, tiny

IDS = np.random.default_rng(3).integers(0, VOCAB, 24).astype(np.int32)


def rescoring_of(model: IntegerModel) -> Rescoring:
    rescoring: Rescoring = model.constants[head_of(model.graph).name].rescoring
    return rescoring


def rough_row(model: IntegerModel) -> Logits:
    """Return the logits of the rough head alone."""
    op = head_of(model.graph)
    alone = replace(model.constants[op.name], rescoring=None)
    return IntegerModel(model.graph, {**model.constants, op.name: alone}, model.forms).open().forward(IDS)


@pytest.mark.parametrize(("kind", "planes"), [("native", 2), ("native", 1), ("gemma2", 2)])
@pytest.mark.parametrize("candidates", [1, 2, 7, VOCAB - 1, VOCAB, VOCAB + 9])
def test_candidates_have_the_int8_heads_logits_and_come_first(kind: str, planes: int, candidates: int) -> None:
    model = rough_tiny(kind, candidates, planes)
    rough, exact, row = rough_row(model), tiny(kind)[2].open().forward(IDS), model.open().forward(IDS, check=True)
    assert np.array_equal(row.exponent, exact.exponent)
    assert np.array_equal(row.mantissa, exact.mantissa)
    assert row.cap == exact.cap
    chosen = head.top(rough, candidates)
    for at, ids in enumerate(chosen):
        assert row.values[at, ids].tolist() == exact.values[at, ids].tolist()
        others = np.setdiff1d(np.arange(VOCAB), ids)
        least = row.values[at, ids].min()
        aligned = rough.values[at, others] << rescoring_of(model).coarser
        lowered = max(int(aligned.max(initial=least - 1)) - (least - 1), 0)
        assert row.values[at, others].tolist() == (aligned - lowered).tolist()
        expected = sorted(ids.tolist(), key=lambda one: (-exact.values[at, one], one))
        assert head.top(row, candidates)[at].tolist() == expected


def test_a_best_token_that_is_no_candidate_is_not_given() -> None:
    """Take one candidate: the rough head's best, wherever the int8 head has another one."""
    model = rough_tiny("native", 1)
    rough, exact = head.top(rough_row(model), 1), head.top(tiny("native")[2].open().forward(IDS), 1)
    assert (rough != exact).any()
    assert np.array_equal(head.top(model.open().forward(IDS), 1), rough)
    alike = (head.top(rough_tiny("native", 8).open().forward(IDS), 1) == exact).mean()
    assert alike > (rough == exact).mean()


def test_rows_of_a_pass_do_not_depend_on_the_others() -> None:
    model = rough_tiny("native", 4)
    whole, sequence = model.open().forward(IDS), model.open()
    for at in range(len(IDS)):
        assert np.array_equal(sequence.forward(IDS[at : at + 1]).values[0], whole.values[at])
        sequence.commit(np.zeros(1, np.int32))


def test_the_codes_of_the_head_are_those_that_it_multiplies() -> None:
    _, weights, model = tiny("native")
    op = head_of(model.graph)
    weight: Any = weights[op.weights[0]]
    codes, (matrix,) = head_codes(model, [IDS, IDS[:3]]), model.constants[op.name].matrices
    assert codes.shape == (len(IDS) + 3, weight.codes.shape[1])
    rows = HeadRows.of(
        weight, model.forms[op.inputs[1]].unit, exponent=matrix.scale.exponent, pre_shift=matrix.pre_shift
    )
    every = np.tile(np.arange(VOCAB), (len(IDS), 1))
    assert np.array_equal(rows.logits(every, codes[: len(IDS)]), model.open().forward(IDS).values)
    assert rows.logit_exponent == matrix.logit_exponent


def test_rows_with_negative_scales_are_those_of_negative_codes() -> None:
    rng = np.random.default_rng(4)
    codes, scale = rng.integers(-127, 128, (6, 9), np.int8), rng.uniform(0.1, 1, 6).astype(np.float32)
    signs = np.array([1, -1, 1, -1, -1, 1])
    constants: dict[str, Any] = {"exponent": -16, "pre_shift": 3}
    negative = HeadRows.of(Int8Weight(codes=codes, scale=scale * signs.astype(np.float32)), 1.0, **constants)
    positive = HeadRows.of(Int8Weight(codes=(codes * signs[:, None]).astype(np.int8), scale=scale), 1.0, **constants)
    ids, x = np.arange(6)[None], rng.integers(-127, 128, (1, 9))
    assert np.array_equal(negative.logits(ids, x), positive.logits(ids, x))


def chosen(**members: Any) -> Rescoring:
    rows = HeadRows(codes=np.eye(4, dtype=np.int8), mantissa=np.full(4, 1 << 11), exponent=-31, pre_shift=0)
    return Rescoring(**{"rows": rows, "candidates": 3, "rough_exponent": -18, **members})


def test_equal_logits_are_ordered_by_ids() -> None:
    """Give rough logits that are equal at the end of the candidates, and codes that make exact logits equal."""
    rough = Logits(values=np.array([[5, 7, 7, 7]]), mantissa=np.array([1 << 15]), exponent=np.array([-18]))
    row = chosen(candidates=2).logits(rough, np.array([[9, 3, 3, 9]]))
    assert row.values.tolist() == [[-6, 3, 3, 2]]  # 5 << 2 and 7 << 2 are not below 3, and are lowered by 26
    assert head.top(row, 4).tolist() == [[1, 2, 3, 0]]
    row = chosen(candidates=4).logits(rough, np.array([[9, 3, 3, 9]]))
    assert head.top(row, 4).tolist() == [[0, 3, 1, 2]]
    found = chosen().again(np.array([[3, 1, 2, 0]], np.int32), np.array([[7, 7, 7, 5]]), np.array([[9, 3, 3, 9]]))
    assert (found.ids.tolist(), found.rough.tolist()) == ([[0, 3, 1, 2]], [[5, 7, 7, 7]])


def test_a_rough_unit_may_be_the_finer_one() -> None:
    rough = Logits(values=np.array([[-5, 90, -7, -6]]), mantissa=np.array([1 << 15]), exponent=np.array([-22]))
    row = chosen(candidates=1, rough_exponent=-22).logits(rough, np.array([[9, 3, 3, 9]]))
    assert row.values.tolist() == [[-1, 3, -2, -1]]  # halves are rounded up
    assert row.exponent.tolist() == [-20]


@pytest.mark.parametrize(("kind", "scheme"), [("bonsai", "ternary")])
def test_a_head_that_is_not_int8_is_refused(kind: str, scheme: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"is {scheme}, and a rough head is made of an int8 head"):
        head_of(tiny(kind)[0])


def one_by_one(
    word: int, exact: list[int], rough: list[int], adds: list[bool], mantissa: int, exponents: tuple[int, int]
) -> int:
    """Compute a sum by docs/integer-profile.md, in Python integers."""

    def rounded(x: int, shift: int) -> int:
        return (x + (1 << shift >> 1)) >> shift

    powers = [math.floor(Fraction(2 ** (15 + i / 256)) + Fraction(1, 2)) for i in range(257)]

    def terms(logits: list[int], exponent: int) -> tuple[int, int]:
        factor, shift = rounded(mantissa * 47274, 15), min(max(-exponent - 12, 0), 47)
        octaves = [rounded(logit * factor, shift) for logit, added in zip(logits, adds, strict=True) if added]
        highest, total = max(octaves) >> 12, 0
        for e in octaves:
            low, high = powers[(e >> 4) % 256], powers[(e >> 4) % 256 + 1]
            below = highest - (e >> 12)
            total += (low + rounded((high - low) * (e % 16), 4) << 8) >> below if below < 32 else 0
        return total, highest

    if not any(adds):
        return 0
    (own, top), (taken, rough_top) = terms(exact, exponents[0]), terms(rough, exponents[1])
    rest, bits = max((word % (1 << 27) << (word >> 27)) - taken, 0), rough_top - top
    total = own + min(rest << bits if bits > 0 else rest >> -bits, (1 << 57) - 1)
    left_out = max(total.bit_length() - 27, 0)
    return total >> left_out | left_out << 27


@given(
    st.lists(st.tuples(*(st.integers(-(2**31) + 1, 2**31 - 1),) * 2, st.booleans()), min_size=1, max_size=9),
    st.integers(0, (1 << 27) - 1),
    st.integers(0, 18),
    st.integers(0, 40),
    st.integers(1 << 15, (1 << 16) - 1),
    st.integers(-70, -30),
    st.integers(-4, 9),
)
def test_sums_are_those_of_the_definition(
    logits: list[tuple[int, int, bool]],
    low: int,
    left_out: int,
    narrower: int,
    mantissa: int,
    exponent: int,
    coarser: int,
) -> None:
    exact, rough = [one >> narrower for one, _, _ in logits], [one >> narrower for _, one, _ in logits]
    adds, word = [added for _, _, added in logits], low | left_out << 27
    # Ids that pad the vocabulary are those from 5 on.
    ids = [0 if added else 5 for added in adds]
    found = Rescored(ids=np.array([ids], np.int32), values=np.array([exact]), rough=np.array([rough]))
    row = Logits(values=found.values, mantissa=np.array([mantissa]), exponent=np.array([exponent]))
    sums = chosen(rough_exponent=-20 + coarser).sums(np.array([word]), found, row, 5)
    expected = one_by_one(word, exact, rough, adds, mantissa, (exponent, exponent + coarser))
    assert sums.tolist() == [expected]
    assert 0 <= expected < 1 << 32


@pytest.mark.parametrize("octaves", range(9, 17))
def test_a_rough_sum_far_above_the_exact_logits_ends_at_57_bits(octaves: int) -> None:
    """Take the largest sum, of 45 bits: from 13 octaves on it would have more."""
    logit, word, mantissa = -((-octaves << 40) // 47274), (1 << 27) - 1 | 18 << 27, 1 << 15
    found = Rescored(ids=np.zeros((1, 1), np.int32), values=np.array([[0]]), rough=np.array([[logit]]))
    row = Logits(values=found.values, mantissa=np.array([mantissa]), exponent=np.array([-40]))
    sums = chosen(rough_exponent=-20).sums(np.array([word]), found, row, 5)
    assert sums.tolist() == [one_by_one(word, [0], [logit], [True], mantissa, (-40, -40))]
    assert (int(sums[0]) >> 27) == min(18 + octaves, 31)


def logarithm(sums: I64, row: Logits) -> Any:
    largest = replace(row, values=row.values.max(axis=1, keepdims=True))
    return head.real(largest)[:, 0] + np.log(head.relative_sum(sums, largest))


@pytest.mark.parametrize("candidates", [1, 3, VOCAB])
@pytest.mark.parametrize("counted", [VOCAB, VOCAB - 7])
def test_a_sum_is_near_that_of_the_row(candidates: int, counted: int) -> None:
    """Compare with the exponentials of exact candidates and rough others, in float64."""
    model = rough_tiny("native", candidates)
    rough, rescoring, row = rough_row(model), rescoring_of(model), model.open().forward(IDS)
    ids = head.top(rough, candidates)
    values = np.take_along_axis(row.values, ids.astype(np.int64), 1)
    found = Rescored(ids=ids, values=values, rough=np.take_along_axis(rough.values, ids.astype(np.int64), 1))
    words = head.sum_of_exponentials(rough.values[:, :counted], rough.mantissa, head.sum_shift(rough.exponent))
    sums = rescoring.sums(words, found, replace(row, values=values), counted)
    mixed = head.real(rough)
    np.put_along_axis(mixed, ids.astype(np.int64), head.real(replace(row, values=values)), axis=1)
    expected = np.log(np.exp(mixed[:, :counted]).sum(axis=1))
    some = (ids < counted).any(axis=1)
    assert (sums[~some] == 0).all()
    own = np.where(ids < counted, values, values.min(axis=1, keepdims=True) - 1)
    some_rows = replace(row, values=own[some], mantissa=row.mantissa[some], exponent=row.exponent[some])
    found_sums = logarithm(sums[some], some_rows)
    assert found_sums == pytest.approx(expected[some], abs=3e-4)
