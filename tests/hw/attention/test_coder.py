from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.attention.coder import Coder
from edgedec.reference.integer_profile.numbers import I64, largest, round_shift, saturate
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import awkward, from_words, to_words


def coded(
    vectors: list[I64], mantissas: list[I64], middles: list[I64], settings: list[tuple[bool, int]], **how: Any
) -> list[I64]:
    inputs = {
        "settings": [{"narrow": int(narrow), "shift": shift} for narrow, shift in settings],
        "constants": [
            {"mantissa": int(m), "middle": int(middle)}
            for pair in zip(mantissas, middles, strict=True)
            for m, middle in zip(*pair, strict=True)
        ],
        "input": [word for x in vectors for word in to_words(x, 1)],
    }
    collected = run(Coder(slots=len(vectors[0])), inputs, {"output": len(inputs["input"])}, **how)["output"]
    return from_words(collected, [x.shape[1] for x in vectors])


def check(
    vectors: list[I64], mantissas: list[I64], middles: list[I64], settings: list[tuple[bool, int]], **how: Any
) -> None:
    results = coded(vectors, mantissas, middles, settings, **how)
    for arguments in zip(results, vectors, mantissas, middles, settings, strict=True):
        result, x, mantissa, middle, (narrow, shift) = arguments
        expected = saturate(round_shift((x - middle) * mantissa, shift), 8 if narrow else 12)
        assert result.tolist() == expected.tolist()


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("idle", [0.0, 0.5, {"settings": 0.95}, {"constants": 0.8}])
@pytest.mark.parametrize("slots", [1, 3])
def test_codes_follow_the_formula(slots: int, idle: Any) -> None:
    """Use every shift, at which some codes saturate and some vanish, with vectors of one element and of several."""
    rng = np.random.default_rng(slots)
    settings = [(bool(rng.integers(2)), int(shift)) for shift in rng.permutation(35)]
    widths = rng.choice([1, 2, 24], len(settings))
    vectors = [awkward(rng, slots, width, 18) for width in widths]
    mantissas = [rng.choice([0, 1, 1 << 15, 65535, int(rng.integers(1 << 16))], width) for width in widths]
    middles = [awkward(rng, 1, width, 18)[0] for width in widths]
    check(vectors, mantissas, middles, settings, idle=idle)


@pytest.mark.parametrize("narrow", [False, True])
def test_codes_round_half_up_and_saturate(narrow: bool) -> None:
    """Use values on both sides of zero and of the largest code, and products at their extremes."""
    limit = largest(8 if narrow else 12)
    steps = np.array([-2 * limit - 3, -2 * limit - 2, -2 * limit - 1, -2 * limit, -3, -2, -1, 0, 1, 2, 3])
    x = np.concatenate([steps, -steps])[None]
    half = [(x, np.ones(x.shape[1], int), np.zeros(x.shape[1], int), (narrow, 1))]
    edge = largest(18)
    ends = np.array([[edge, -edge, edge, -edge, 0]])
    middle = np.array([-edge, edge, edge, -edge, edge])
    extremes = [(ends, np.full(5, 65535), middle, (narrow, shift)) for shift in (0, 22, 26, 33, 34)]
    actual = coded(*map(list, zip(*half, *extremes, strict=True)))
    check(*map(list, zip(*half, *extremes, strict=True)))
    assert {int(y) for y in actual[0][0]} >= {-limit, limit, -1, 0, 1}


def test_latency_and_throughput_are_as_documented() -> None:
    cycles: dict[str, list[int]] = {}
    vectors = [np.arange(n)[None] for n in (4, 1, 1, 6)]
    constants = [np.ones(x.shape[1], int) for x in vectors]
    check(vectors, constants, constants, [(False, 0)] * 4, cycles=cycles)
    assert np.ptp(cycles["output"]) == 11
    assert cycles["output"][0] - cycles["input"][0] == 8


def test_estimate_has_a_multiplier_per_slot() -> None:
    assert [Coder(slots=slots).resources.dsp for slots in (1, 4)] == [1, 4]


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^slots must be an integer from 1 to 8, not 0$"):
        Coder(slots=0)
