from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.vector.rms_norm import RmsNorm
from edgedec.reference.integer_profile.numbers import I64, round_shift
from edgedec.reference.integer_profile.ops.rms_norm import root_mean_square, sums_of_squares
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, from_words, to_words

Norm = tuple[I64, I64, int]  # x [slots, n], gain [n], eps


def some_norm(rng: np.random.Generator, slots: int, width: int) -> Norm:
    gain = rng.integers(-(1 << 15) + 1, 1 << 15, width)
    gain[0] = rng.choice([(1 << 15) - 1, -(1 << 15) + 1])
    return awkward(rng, slots, width), gain, int(rng.choice([0, 1, 1000, 1 << 40, (1 << 48) - 1]))


def normed(norms: list[Norm], **how: Any) -> dict[str, list[Any]]:
    gains = [w for _, gain, _ in norms for w in to_words(gain[None])]
    inputs: dict[str, list[Any]] = {
        "input": [w for x, _, _ in norms for w in to_words(x)],
        "gains": [[lane[0] for lane in w["values"]] for w in gains],
        "eps": [eps for _, _, eps in norms],
    }
    slots = norms[0][0].shape[0]
    outputs = {"output": len(inputs["input"]), "roots": len(norms)}
    return run(RmsNorm(slots=slots), inputs, outputs, **how)


def assert_equal_to_the_profile(norms: list[Norm], collected: dict[str, list[Any]]) -> None:
    outputs = from_words(collected["output"], [x.shape[1] for x, _, _ in norms])
    for (x, gain, eps), y, roots in zip(norms, outputs, collected["roots"], strict=True):
        want = round_shift(x * gain, 15)
        assert np.array_equal(y, want)
        small, big = sums_of_squares(x)
        mantissa, exponent = root_mean_square(small + eps, big)
        assert roots == [{"mantissa": int(a), "exponent": int(e)} for a, e in zip(mantissa, exponent, strict=True)]


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_norms_equal_the_profile(slots: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng([slots, int(10 * idle)])
    norms = [some_norm(rng, slots, width) for width in (7, 1, 20, 5, 33, 4)]
    assert_equal_to_the_profile(norms, normed(norms, idle=idle, stall=stall))


@pytest.mark.rtl
def test_every_length_of_the_sum_is_exact() -> None:
    """Use one square of each size, alone, with eps 0 and with the largest eps, and no square at all."""
    values = [0, *(1 << k for k in range(26)), *((1 << k) - 1 for k in range(2, 27)), -(1 << 17), -(1 << 17) - 1]
    values += [0] * (-len(values) % 8)
    gain = np.full(2, (1 << 15) - 1)
    norms = [
        (np.stack([values[i : i + 8], np.zeros(8, np.int64)], axis=1).astype(np.int64), gain, eps)
        for eps in (0, (1 << 48) - 1)
        for i in range(0, len(values), 8)
    ]
    assert_equal_to_the_profile(norms, normed(norms))


@pytest.mark.rtl
def test_latency_and_throughput_are_as_documented() -> None:
    rng = np.random.default_rng(3)
    cycles: dict[str, list[int]] = {}
    normed([some_norm(rng, 8, 100)], cycles=cycles)
    assert cycles["input"][-1] - cycles["input"][0] == 99
    assert [b - a for a, b in zip(cycles["input"], cycles["output"], strict=True)] == [4] * 100
    assert cycles["roots"][0] - cycles["input"][-1] == 16 + 18 * 8


@pytest.mark.thorough
def test_roots_wait_for_a_stalled_sink() -> None:
    rng = np.random.default_rng(4)
    norms = [some_norm(rng, 2, 12) for _ in range(4)]
    assert_equal_to_the_profile(norms, normed(norms, stall={"roots": 0.995}))


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^slots must be an integer from 1 to 8, not 0$"):
        RmsNorm(slots=0)
