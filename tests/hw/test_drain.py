from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edgedec.hw.drain import Drain
from edgedec.reference.integer_profile.numbers import I64, clamp_shift, round_shift, saturate
from tests.hw.streams import run
from tests.hw.vectors import PATTERNS, awkward, from_words, to_words

WIDTHS = [7, 5, 1, 16, 10, 23]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    acc: I64  # [slots, n]
    pre_shift: int
    base: int
    weight: I64  # [1] or [n]
    mantissa: I64  # [slots]
    exponent: I64  # [slots]
    bias: I64 | None  # [n]
    wide: bool

    def settings(self) -> dict[str, Any]:
        per_row = len(self.weight) > 1
        return {
            "pre_shift": self.pre_shift,
            "base": self.base,
            "weight": 0 if per_row else int(self.weight[0]),
            "wide": self.wide,
            "bias": self.bias is not None,
            "per_row": per_row,
            "scales": [
                {"mantissa": int(a), "exponent": int(e)} for a, e in zip(self.mantissa, self.exponent, strict=True)
            ],
        }

    def expected(self) -> I64:
        t = round_shift(self.acc, self.pre_shift)
        factor = round_shift(self.mantissa[:, None] * self.weight, 15)
        out = round_shift(t * factor, clamp_shift(self.base - self.exponent)[:, None])
        if self.bias is not None:
            out = out + self.bias
        return saturate(out, 27 if self.wide else 18)


def matrix(rng: np.random.Generator, slots: int, width: int, *, per_row: bool, pre_shifts: bool = True) -> Matrix:
    pre_shift = int(rng.integers(0, 6)) if pre_shifts else 0
    most = ((1 << 26) - 1) << pre_shift  # what rounds into s27
    acc = np.clip(awkward(rng, slots, width, 27 + pre_shift), -most, most)
    exponent = rng.integers(-50, 11, slots)
    wide = bool(rng.integers(2))
    bias = awkward(rng, 1, width, 27 if wide else 18)[0] if rng.integers(2) else None
    return Matrix(
        acc=acc,
        pre_shift=pre_shift,
        base=int(np.clip(rng.choice([0, 20, 30, 47, 60]) + exponent[0], -256, 255)),
        weight=rng.integers(0, 1 << 16, width) if per_row and width > 1 else rng.integers(1 << 15, 1 << 16, 1),
        mantissa=rng.integers(1 << 15, 1 << 16, slots) * (rng.random(slots) < 0.9),
        exponent=exponent,
        bias=bias,
        wide=wide,
    )


def lanes_of(values: I64, lanes: int) -> list[list[int]]:
    """A row's values by words."""
    return [[lane[0] for lane in word["values"]] for word in to_words(values[None], lanes)]


def drained(matrices: list[Matrix], drain: Drain, lanes: int, **how: Any) -> list[I64]:
    inputs: dict[str, list[Any]] = {
        "input": [word for x in matrices for word in to_words(x.acc, lanes)],
        "settings": [x.settings() for x in matrices],
        "biases": [word for x in matrices if x.bias is not None for word in lanes_of(x.bias, lanes)],
    }
    if hasattr(drain, "weights"):
        inputs["weights"] = [word for x in matrices if len(x.weight) > 1 for word in lanes_of(x.weight, lanes)]
    found = run(drain, inputs, {"output": len(inputs["input"])}, **how)["output"]
    return from_words(found, [x.acc.shape[1] for x in matrices])


@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("slots", "lanes"), [(1, 5), (3, 2), (8, 5)])
@pytest.mark.parametrize("per_row", [False, True])
def test_equal_to_the_profile(slots: int, lanes: int, per_row: bool, idle: float, stall: float) -> None:
    rng = np.random.default_rng([slots, lanes, per_row, int(10 * idle)])
    repeats = 1 if slots > 3 else 4
    matrices = [matrix(rng, slots, n, per_row=per_row and bool(rng.integers(4))) for n in WIDTHS * repeats]
    drain = Drain(slots=slots, lanes=lanes, per_row=per_row)
    found = drained(matrices, drain, lanes, idle=idle, stall=stall)
    for got, x in zip(found, matrices, strict=True):
        assert np.array_equal(got, x.expected())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 15, 16, 17, 25, 31, 32, 43, 44, 47])
def test_every_kind_of_shift_at_the_ends_of_the_range(wide: bool, shift: int) -> None:
    most = (1 << 26) - 1
    edges = [most, -most, most - 1, 0, 1, -1, 1 << 17, -(1 << 17), 3, -3]
    edges += [sign << v for v in range(2, 26) for sign in (1, -1)]
    acc = np.clip(np.array([edges]), -most, most)
    matrices = [
        Matrix(
            acc=acc,
            pre_shift=0,
            base=shift - 9,
            weight=np.array([weight]),
            mantissa=np.array([mantissa]),
            exponent=np.array([-9]),
            bias=bias,
            wide=wide,
        )
        for weight, mantissa in ((65535, 65535), (1 << 15, 1 << 15), (0, 65535))
        for bias in (None, np.full(acc.shape[1], most), np.full(acc.shape[1], -most))
    ]
    for got, x in zip(drained(matrices, Drain(slots=1), 5), matrices, strict=True):
        assert np.array_equal(got, x.expected())


@pytest.mark.parametrize("per_row", [False, True])
def test_without_a_pre_shift(per_row: bool) -> None:
    rng = np.random.default_rng(7)
    matrices = [matrix(rng, 2, n, per_row=per_row, pre_shifts=False) for n in WIDTHS * 4]
    drain = Drain(slots=2, per_row=per_row, pre_shift=False)
    for got, x in zip(drained(matrices, drain, 5, idle=0.3, stall=0.3), matrices, strict=True):
        assert np.array_equal(got, x.expected())


def test_a_word_per_cycle_across_vectors() -> None:
    rng = np.random.default_rng(5)
    matrices = [matrix(rng, 1, 20, per_row=False) for _ in range(4)]
    cycles: dict[str, list[int]] = {}
    drained(matrices, Drain(slots=1), 5, cycles=cycles)
    assert cycles["input"][0] - cycles["settings"][0] == 4
    assert [b - a for a, b in zip(cycles["input"], cycles["output"], strict=True)] == [8] * 16
    assert cycles["input"][-1] - cycles["input"][0] == 15


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"slots": 0}, "slots must be an integer from 1 to 8, not 0"),
        ({"slots": 1, "lanes": 65}, "lanes must be an integer from 1 to 64, not 65"),
    ],
)
def test_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Drain(**parameters)
