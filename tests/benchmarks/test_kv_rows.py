"""Test how the benchmark of rows of few bits codes planted rows, and that nothing else of the integer profile changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.quality import kv_rows
from benchmarks.quality.kv_rows import FormCache, Window
from benchmarks.quality.row_codings import FORMS, PROFILE, Coding, RowForm, bytes_of_position, coded
from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.reference.integer_profile.numbers import Mantissas
from tests.edgedec.reference.integer_profile.support.make_models import VOCAB, tiny

# 128 is one int8 code, in all columns.
FACTOR = Mantissas(values=np.full((1, 8), 1 << 15), exponent=-22)
UNEVEN = Mantissas(values=np.array([[1 << 15] * 4 + [1 << 11] * 4]), exponent=-22)


def one_row(x: list[int], coding: Coding, factor: Mantissas = FACTOR) -> list[float]:
    """Return the integers of a row after its coding, in their own unit."""
    rows = coded(np.array(x).reshape(1, 1, 8), factor, coding) / np.ldexp(factor.values, factor.exponent)
    return [float(value) for value in rows.reshape(8)]


@pytest.mark.parametrize(
    ("coding", "x", "expected"),
    [
        # the largest element is 7 scales of 100, which a byte holds as 25 * 2^2
        (Coding(bits=4), [630, -700, 149, 150, -150, -151, 49, 0], [600, -700, 100, 200, -100, -200, 0, 0]),
        # 1001 / 7 = 143 is rounded up to 18 * 2^3
        (Coding(bits=4), [1001, 0, 0, 0, 0, 0, 0, 0], [1008, 0, 0, 0, 0, 0, 0, 0]),
        (Coding(bits=4, scale="word"), [1001, 72, 71, 0, 0, 0, 0, 0], [1001, 143, 0, 0, 0, 0, 0, 0]),
        (Coding(bits=4, scale="power"), [700, 60, 64, 192, 0, 0, 0, 0], [640, 0, 128, 256, 0, 0, 0, 0]),
        (Coding(bits=6), [310, 15, 14, -15, -16, 5, 4, 0], [310, 20, 10, -10, -20, 10, 0, 0]),
        (Coding(bits=4, group=4), [700, 60, 0, 0, 7, 3, -7, 0], [700, 100, 0, 0, 7, 3, -7, 0]),
        # 15 steps of 100 from the least to the most, and zeros of 2 and -10
        (Coding(bits=4, zero=True), [-200, 1300, 0, 149, 150, -151, 0, 0], [-200, 1300, 0, 100, 200, -200, 0, 0]),
        (Coding(bits=4, zero=True, group=4), [100, 115, 105, 107, 0, 0, 0, 0], [100, 115, 105, 107, 0, 0, 0, 0]),
        # the sums are 860 and 740, 7 and 6 scales of 124
        (Coding(bits=4, turned=True), [800, 60, 0, 0, 0, 0, 0, 0], [806, 62, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_a_row_is_its_codes_times_its_scales(coding: Coding, x: list[int], expected: list[float]) -> None:
    assert one_row(x, coding) == expected


def test_a_division_by_scales_of_columns_gives_narrow_columns_as_many_levels() -> None:
    x = [7 * 128, 0, 0, 0, 7 * 2048, 2048, 0, 0]
    assert one_row(x, Coding(bits=4, columns=True), UNEVEN) == x
    assert one_row(x, Coding(bits=4), UNEVEN) == [0, 0, 0, 0, 7 * 2048, 2048, 0, 0]


def test_static_scales_reach_as_far_as_the_int8_codes() -> None:
    x = [1 << 17, -(1 << 17), 127 * 128, 1000, 0, 0, 0, 0]
    most, *_ = one_row(x, Coding(bits=4, columns=True, scale="static"))
    assert one_row(x, Coding(bits=4, columns=True, scale="static")) == [most, -most, most, 0, 0, 0, 0, 0]
    assert most == pytest.approx(127 * 128, rel=1e-3)


def test_what_the_int8_codes_saturate_is_saturated_before() -> None:
    assert one_row([1 << 17] * 8, Coding(bits=8)) == [127 * 128] * 8


def test_groups_that_do_not_divide_a_head_are_refused() -> None:
    with pytest.raises(UsageError, match="heads of 8 elements have no whole groups of 3; choose other --forms"):
        one_row([0] * 8, Coding(bits=4, group=3))


def test_bytes_of_a_position_count_scales_and_zero_points() -> None:
    config = {"num_hidden_layers": 3, "num_key_value_heads": 2, "num_attention_heads": 4, "hidden_size": 256}
    count = partial(bytes_of_position, config=config)
    assert count(PROFILE) == 3 * 2 * (64 + 64)
    assert count(FORMS["4"]) == 3 * 2 * (33 + 33)
    assert count(FORMS["4, groups of 32"]) == 3 * 2 * (34 + 34)
    assert count(FORMS["4, zero points"]) == 3 * 2 * (34 + 34)
    assert count(FORMS["4, scales that are powers of two"]) == 3 * 2 * 65
    assert count(FORMS["4, scales of two bytes"]) == 3 * 2 * 68
    assert count(FORMS["4, divided, without other scales"]) == 3 * 2 * (32 + 32)
    assert count(FORMS["keys 8, values 4"]) == 3 * 2 * (64 + 33)
    assert bytes_of_position(PROFILE) == 73_728


def nats(form: RowForm | None, kind: str = "native") -> list[float]:
    ids = np.random.default_rng(1).integers(VOCAB, size=150).astype(np.int32)
    return kv_rows._nats(tiny(kind)[2], Window(ids=ids, ends=(40, 41, 150)), form, VOCAB)


@pytest.mark.parametrize("kind", ["native", "hybrid"])
def test_the_profiles_own_rows_change_nothing_and_coded_ones_do(kind: str) -> None:
    own = nats(None, kind)
    assert nats(PROFILE, kind) == own
    fine, coarse = (
        sum(abs(np.array(nats(form, kind)) - own)) for form in (FORMS["8, a scale for each row and head"], FORMS["4"])
    )
    assert 0 < fine < coarse


@pytest.mark.parametrize("side", ["keys", "values"])
def test_each_side_has_its_own_coding(side: str) -> None:
    model, form = tiny("native")[2], replace(PROFILE, **{side: Coding(bits=4)})
    cache, own = FormCache(model, form), FormCache(model, PROFILE)
    for each in (cache, own):
        model.forward(np.arange(9, dtype=np.int32), each, trace=each.trace)
    for name in ("keys", "values"):
        (a, *_), (b, *_) = (getattr(each, name).values() for each in (cache, own))
        assert np.array_equal(a, b) == (name != side)
        # a code of the largest element is at most a seventh of it away, and so are the coded rows
        assert np.abs(a - b).max() < np.abs(b.astype(np.float64)).max() / 7


def test_documents_have_the_nats_of_their_own_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = nats(None)
    monkeypatch.setattr(kv_rows, "_PASS_ROWS", 150)
    assert nats(None) == parts
    ids = np.random.default_rng(1).integers(VOCAB, size=150).astype(np.int32)
    (first,) = kv_rows._nats(tiny("native")[2], Window(ids=ids[:40], ends=(40,)), None, VOCAB)
    assert first == pytest.approx(parts[0], rel=1e-12)


def test_windows_have_whole_documents_after_a_start_of_text() -> None:
    bundle = Bundle.open(demo.bundle_path())
    text = "Once upon a time.\n\nThere was a cat.\n\n\n\nThe end.\n"
    one, two = kv_rows.windows_of(text, bundle, 10)
    assert len(one.ends) == 2
    assert len(two.ends) == 1
    assert one.ids[0] == two.ids[0] == bundle.tokens.bos
    assert one.ends[-1] == len(one.ids) >= 10
    assert one.ends[0] < 10


def test_equal_losses_have_no_error_and_more_of_them_a_smaller_one() -> None:
    ratio, error = kv_rows.ratio_and_error([0.5, 1.0], [50, 100])
    assert ratio == pytest.approx(np.exp(0.01))
    assert error == pytest.approx(0)
    excess: NDArray[np.float64] = np.random.default_rng(3).normal(1, 2, 400)
    ratio, error = kv_rows.ratio_and_error(list(excess), [100] * 400)
    assert error == pytest.approx(2 / 100 / 400**0.5 * ratio, rel=0.1)


def test_the_table_marks_what_is_not_below_the_gate_by_two_standard_errors() -> None:
    forms = {"4": {"ratio": 1.004, "error": 0.0006}, "6": {"ratio": 1.004, "error": 0.0004}}
    figures = {"perplexity": 1.5, "forms": forms}
    text = kv_rows.table({"bytes": {"4": 37_632, "6": 56_064}, "models": {"demo": figures}})
    assert text.splitlines()[2:] == [
        "| 8, the profile | 73,728 | 1 (1.5000) |",
        "| 4 | 37,632 (51%) | **1.0040 ± 0.0006** |",
        "| 6 | 56,064 (76%) | 1.0040 ± 0.0004 |",
    ]
