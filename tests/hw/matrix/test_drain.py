from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from edgedec.hw.matrix.drain import Drain
from edgedec.reference.integer_profile.numbers import I64, clamp_shift, round_shift, saturate
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, from_words, to_words

WIDTHS = [7, 5, 1, 16, 10, 23]


@dataclass(frozen=True, kw_only=True)
class Rows:
    bias: I64
    shift: I64
    weight: I64

    def words(self, lanes: int) -> list[dict[str, Any]]:
        columns = {name: lanes_of(getattr(self, name), lanes) for name in ("bias", "shift", "weight")}
        return [dict(zip(columns, word, strict=True)) for word in zip(*columns.values(), strict=True)]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Describe a matrix; ``base`` and ``weight`` have one entry, or two for a pair."""

    acc: I64  # [slots, n]
    pre_shift: int
    base: list[int]
    weight: list[int]
    mantissa: I64  # [slots]
    exponent: I64  # [slots]
    rows: Rows | None = None
    logits: bool = False
    wide: bool = True

    def settings(self) -> dict[str, Any]:
        return {
            "pre_shift": self.pre_shift,
            "base": [*self.base, -77][:2],
            "weight": [*self.weight, 54321][:2],
            "pair": len(self.base) > 1,
            "rows": self.rows is not None,
            "logits": self.logits,
            "wide": self.wide,
            "scales": [
                {"mantissa": int(a), "exponent": int(e)} for a, e in zip(self.mantissa, self.exponent, strict=True)
            ],
        }

    def expected(self, per_row: bool) -> I64:
        index = np.arange(self.acc.shape[1]) % len(self.base)
        base, weight = np.array(self.base)[index], np.array(self.weight)[index]
        bias = extra = np.zeros_like(index)
        if self.rows is not None:
            bias, extra = self.rows.bias, self.rows.shift
            weight = self.rows.weight if per_row else weight
        t = round_shift(self.acc, self.pre_shift)
        if self.logits:
            return round_shift(t * weight, 11 + extra)
        factor = round_shift(self.mantissa[:, None] * weight, 15)
        out = round_shift(t * factor, clamp_shift(base - self.exponent[:, None] + extra)) + bias
        return saturate(out, 27 if self.wide else 18)


def matrix(rng: np.random.Generator, slots: int, width: int, *, pre_shifts: bool = True) -> Matrix:
    pre_shift = int(rng.integers(0, 8)) if pre_shifts else 0
    limit = min(((1 << 26) - 1) << pre_shift, (1 << 31) - 1)  # the largest that rounds into s27
    acc = np.clip(awkward(rng, slots, width, min(27 + pre_shift, 32)), -limit, limit)
    exponent = rng.integers(-50, 11, slots)
    wide, count = bool(rng.integers(2)), int(rng.integers(1, 3))
    rows = Rows(
        bias=awkward(rng, 1, width, 27 if wide else 18)[0],
        shift=rng.integers(0, int(rng.choice([1, 4, 32])), width),
        weight=rng.integers(0, 1 << 16, width),
    )
    return Matrix(
        acc=acc,
        pre_shift=pre_shift,
        base=[int(np.clip(rng.choice([-30, 0, 20, 30, 47, 60]) + exponent[0], -256, 255)) for _ in range(count)],
        weight=rng.integers(1 << 15, 1 << 16, count).tolist(),
        mantissa=rng.integers(1 << 15, 1 << 16, slots) * (rng.random(slots) < 0.9),
        exponent=exponent,
        rows=rows if rng.integers(2) else None,
        logits=not rng.integers(4),
        wide=wide,
    )


def lanes_of(values: I64, lanes: int) -> list[list[int]]:
    """Return the values of each row, by words."""
    return [[lane[0] for lane in word["values"]] for word in to_words(values[None], lanes)]


def check(matrices: list[Matrix], drain: Drain, lanes: int = 1, *, per_row: bool = False, **how: Any) -> None:
    inputs: dict[str, list[Any]] = {
        "input": [word for x in matrices for word in to_words(x.acc, lanes)],
        "settings": [x.settings() for x in matrices],
        "rows": [word for x in matrices if x.rows is not None for word in x.rows.words(lanes)],
    }
    outputs = run(drain, inputs, {"output": len(inputs["input"])}, **how)["output"]
    for i, (actual, x) in enumerate(
        zip(from_words(outputs, [x.acc.shape[1] for x in matrices]), matrices, strict=True)
    ):
        assert np.array_equal(actual, x.expected(per_row)), f"matrix {i}"


@pytest.mark.nightly(sample=7)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("slots", "lanes"), [(1, 5), (3, 2), (2, 1), (8, 1)])
@pytest.mark.parametrize("per_row", [False, True])
def test_rows_equal_the_profile(slots: int, lanes: int, per_row: bool, idle: float, stall: float) -> None:
    rng = np.random.default_rng([slots, lanes, per_row, int(10 * idle)])
    matrices = [matrix(rng, slots, n) for n in WIDTHS * (1 if slots > 3 else 5)]
    check(matrices, Drain(slots=slots, lanes=lanes, per_row=per_row), lanes, per_row=per_row, idle=idle, stall=stall)


EDGES = [(1 << 26) - 1, -(1 << 26) + 1, (1 << 26) - 2, 0, 1, -1, 1 << 17, -(1 << 17), 3, -3]
EDGES += [sign << v for v in range(2, 26) for sign in (1, -1)]


def same_rows(width: int, *, bias: int = 0, shift: int = 0, weight: int = 0) -> Rows:
    return Rows(bias=np.full(width, bias), shift=np.full(width, shift), weight=np.full(width, weight))


@pytest.mark.nightly(sample=2)
@pytest.mark.rtl
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shift", [-20, -1, 0, 1, 15, 16, 17, 25, 31, 32, 43, 44, 47, 48, 63])
def test_every_kind_of_shift_is_exact_at_the_ends_of_the_range(wide: bool, shift: int) -> None:
    """Shift by base alone, and by base and the row's own; both negative, or too large, before and after."""
    acc, limit = np.array([EDGES]), (1 << 26) - 1
    matrices = [
        Matrix(
            acc=acc,
            pre_shift=0,
            base=[shift - 9 - extra],
            weight=[weight],
            mantissa=np.array([mantissa]),
            exponent=np.array([-9]),
            rows=same_rows(acc.shape[1], bias=bias, shift=extra) if bias or extra else None,
            wide=wide,
        )
        for weight, mantissa in ((65535, 65535), (1 << 15, 1 << 15), (0, 65535))
        for bias in (0, limit, -limit)
        for extra in (0, 9, 31)
    ]
    check(matrices, Drain(slots=1))


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("extra", [0, 1, 15, 31])
def test_logits_are_exact_at_the_ends_of_the_range(extra: int) -> None:
    """Check that scale, base, bias and the width of the output have no effect."""
    acc = np.array([EDGES])
    matrices = [
        Matrix(
            acc=acc,
            pre_shift=0,
            base=[200],
            weight=[weight],
            mantissa=np.array([0]),
            exponent=np.array([100]),
            rows=same_rows(acc.shape[1], bias=12345, shift=extra, weight=weight) if extra else None,
            logits=True,
            wide=False,
        )
        for weight in (65535, 1 << 15, 1, 0)
    ]
    check(matrices, Drain(slots=1))
    check(matrices, Drain(slots=1, per_row=True), per_row=True)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("per_row", [False, True])
def test_rows_without_a_pre_shift_are_exact(per_row: bool) -> None:
    rng = np.random.default_rng(7)
    matrices = [matrix(rng, 2, n, pre_shifts=False) for n in WIDTHS * 4]
    drain = Drain(slots=2, per_row=per_row, pre_shift=False)
    check(matrices, drain, per_row=per_row, idle=0.3, stall=0.3)


@pytest.mark.parametrize("per_row", [False, True])
def test_a_word_takes_a_cycle_across_vectors(per_row: bool) -> None:
    rng = np.random.default_rng(5)
    matrices = [replace(matrix(rng, 1, 20), rows=same_rows(20, bias=i, weight=i)) for i in range(4)]
    cycles: dict[str, list[int]] = {}
    check(matrices, Drain(slots=1, per_row=per_row), per_row=per_row, cycles=cycles)
    assert cycles["input"][0] - cycles["settings"][0] == 4
    assert [b - a for a, b in zip(cycles["input"], cycles["output"], strict=True)] == [12 + per_row] * 80
    assert cycles["input"][-1] - cycles["input"][0] == 79
    assert cycles["rows"] == cycles["input"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"slots": 0}, "slots must be an integer from 1 to 8, not 0"),
        ({"slots": 1, "lanes": 65}, "lanes must be an integer from 1 to 64, not 65"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Drain(**parameters)
