from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.logits.exponential_sum import SUM_CYCLES, SUM_STAGES, ExponentialSum
from edgedec.reference.integer_profile.head import sum_of_exponentials
from edgedec.reference.integer_profile.numbers import I64, clamp_shift
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import awkward

CLEARED = 32  # cycles after a reset for each slot


def expected(x: I64, scales: list[tuple[int, int]], shift: int) -> list[int]:
    """Return the sums of x [slots, n] by the definition."""
    mantissas, exponents = np.array(scales).T
    sums: list[int] = sum_of_exponentials(x, mantissas, clamp_shift(shift - exponents)).tolist()
    return sums


def items(x: I64, scales: list[tuple[int, int]], counted: int) -> list[dict[str, int]]:
    """Return the items of x [slots, n] with at least three turns for an id; ids from ``counted`` on add nothing."""
    slots, ids = x.shape
    turns = max(slots, 3)
    return [
        {
            "logit": int(x[turn % slots, at]),
            "slot": turn if turn < slots else 0,
            "mantissa": scales[turn % slots][0],
            "exponent": scales[turn % slots][1],
            "counts": int(turn < slots and at < counted),
            "last": int((at, turn) == (ids - 1, turns - 1)),
        }
        for at in range(ids)
        for turn in range(turns)
    ]


def vectors(rng: np.random.Generator, slots: int) -> dict[str, tuple[I64, int]]:
    """Return vectors [slots, n] with the shift of their exponents, of which each kind is added in another way."""
    ramp = np.linspace(-(2**22), 2**22, 70).astype(np.int64)[None].repeat(slots, axis=0)
    return {
        "awkward": (awkward(rng, slots, 40, 32), 20),
        "rising": (ramp, 20),
        "falling": (-ramp, 20),
        "equal": (np.full((slots, 50), -12345), 8),
        "alone": (rng.integers(-9, 9, (slots, 1)), 0),
        "far apart": (rng.integers(-(2**31) + 1, 2**31, (slots, 40)), 0),
        "near": (rng.integers(-(2**20), 2**20, (slots, 90)), 21),
        "below all shifts": (rng.integers(-(2**31) + 1, 2**31, (slots, 9)), 300),
    }


KINDS = tuple(vectors(np.random.default_rng(0), 1))


def drawn_scales(rng: np.random.Generator, slots: int) -> list[tuple[int, int]]:
    """Return a scale for each slot, of the last one that of codes that are all 0."""
    return [(int(rng.integers(1 << 15, 1 << 16)), int(rng.integers(-3, 4))) for _ in range(slots - 1)] + [(0, 0)]


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.4, 0.4)])
@pytest.mark.parametrize("slots", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_sums_equal_the_definition(kind: str, slots: int, idle: float, stall: float) -> None:
    """Give two vectors, the second one's logits in the order that is farthest from the first one's."""
    rng = np.random.default_rng(slots)
    x, shift = vectors(rng, slots)[kind]
    scales = drawn_scales(rng, slots)
    given = run(
        ExponentialSum(slots=slots),
        {"logits": items(x, scales, x.shape[1]) + items(-x[:, ::-1], scales, x.shape[1])},
        {"sums": 2 * slots},
        idle=idle,
        stall=stall,
        settings={"shift": shift, "used": slots},
    )["sums"]
    assert given == expected(x, scales, shift) + expected(-x, scales, shift)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("counted", [0, 1, 5])
def test_logits_that_do_not_count_and_slots_that_are_not_used_change_nothing(counted: int) -> None:
    rng = np.random.default_rng(counted)
    x, scales = awkward(rng, 4, 12, 32), [(40000, -2)] * 4
    given = run(
        ExponentialSum(slots=4),
        {"logits": items(x, scales, counted) + items(x, scales, 12)},
        {"sums": 6},
        settings={"shift": 25, "used": 3},
    )["sums"]
    assert given == expected(x[:3, :counted], scales[:3], 25) + expected(x[:3], scales[:3], 25)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("slots", "ids", "used"), [(1, 9, 1), (3, 40, 2), (8, 12, 8)])
def test_throughput_and_latency_are_as_documented(slots: int, ids: int, used: int) -> None:
    """Give equal logits of 2^15 in 15 fraction bits, whose sum has 24 bits and those of the number of ids."""
    cycles = dict[str, list[int]]()
    run(
        ExponentialSum(slots=slots),
        {"logits": items(np.zeros((slots, ids), np.int64), [(40000, 0)] * slots, ids)},
        {"sums": used},
        settings={"shift": 20, "used": used},
        cycles=cycles,
    )
    assert cycles["logits"][0] in (CLEARED * slots, CLEARED * slots + 1)
    assert set(np.diff(cycles["logits"])) == {1}
    dropped = max(0, 23 + ids.bit_length() - 27)
    assert cycles["sums"][0] - cycles["logits"][-1] == SUM_STAGES + SUM_CYCLES + dropped
    assert (np.diff(cycles["sums"]) == SUM_CYCLES + dropped).all()


def test_logits_of_a_slot_that_come_too_early_are_noticed() -> None:
    first = items(np.zeros((1, 2), np.int64), [(40000, 0)], 2)[0]
    with pytest.raises(AssertionError, match="Three cycles lie between the logits of a slot"):
        run(
            ExponentialSum(slots=1),
            {"logits": [first, {**first, "last": 1}]},
            {"sums": 1},
            settings={"shift": 20, "used": 1},
        )


@pytest.mark.parametrize("slots", [0, 9])
def test_impossible_slots_are_refused(slots: int) -> None:
    with pytest.raises(ValueError, match=f"slots must be an integer from 1 to 8, not {slots}"):
        ExponentialSum(slots=slots)
