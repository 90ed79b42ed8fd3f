from __future__ import annotations

import random
from typing import Any

import pytest

from edgedec.hw.attention.softmax import Softmax
from tests.hw.support.bench_streams import run
from tests.hw.support.reference_exponentials import chance

STREAMS = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.7), (0.4, 0.4)]


def item(rng: random.Random, slots: int, lanes: int) -> dict[str, Any]:
    """Draw distances at which the exponential is neither one nor zero, and the extremes."""
    shifts = [rng.choice([0, 1, 15, 16, 31, 47, rng.randrange(48)]) for _ in range(slots)]
    factors = [rng.choice([0, 1, 65535, rng.randrange(1 << 15, 1 << 16)]) for _ in range(slots)]

    def distance(factor: int, shift: int) -> int:
        reach = min((1 << 26) - 1, (5000 << shift) // max(factor, 1) + 1)
        return rng.choice([0, (1 << 26) - 1, rng.randint(0, reach), rng.randint(0, reach)])

    return {
        "distances": [[distance(*pair) for pair in zip(factors, shifts, strict=True)] for _ in range(lanes)],
        "visible": [[int(rng.random() < 0.8) for _ in range(slots)] for _ in range(lanes)],
        "factors": factors,
        "shifts": shifts,
        "last": rng.randrange(2),
    }


def expected(payload: dict[str, Any]) -> dict[str, Any]:
    chances = [
        [
            chance(d, factor, shift) if is_visible else 0
            for d, factor, shift, is_visible in zip(line, payload["factors"], payload["shifts"], visible, strict=True)
        ]
        for line, visible in zip(payload["distances"], payload["visible"], strict=True)
    ]
    return {"chances": chances, "last": payload["last"]}


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("slots", "lanes"), [(1, 1), (8, 1), (3, 2), (1, 8)])
@pytest.mark.parametrize(("idle", "stall"), STREAMS)
def test_chances_follow_the_formula(slots: int, lanes: int, idle: float, stall: float) -> None:
    rng = random.Random(slots)
    items = [item(rng, slots, lanes) for _ in range(60)]
    cycles: dict[str, list[int]] = {}
    collected = run(
        Softmax(slots=slots, lanes=lanes),
        {"input": items},
        {"output": len(items)},
        idle=idle,
        stall=stall,
        cycles=cycles,
    )
    assert collected["output"] == [expected(given) for given in items]
    if not idle and not stall:
        assert [b - a for a, b in zip(cycles["input"], cycles["output"], strict=True)] == [13] * len(items)


@pytest.mark.rtl
def test_every_exponent_follows_the_formula() -> None:
    items: list[dict[str, Any]] = [
        {"distances": [[u]], "visible": [[1]], "factors": [1], "shifts": [0], "last": 0}
        for u in [*range(4700), 1 << 25]
    ]
    outputs = run(Softmax(slots=1), {"input": items}, {"output": len(items)})["output"]
    assert [given["chances"][0][0] for given in outputs] == [chance(i["distances"][0][0], 1, 0) for i in items]


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^slots must be an integer from 1 to 8, not 9$"):
        Softmax(slots=9)
    with pytest.raises(ValueError, match=r"^lanes must be an integer from 1 to 8, not 0$"):
        Softmax(slots=1, lanes=0)
