from __future__ import annotations

import random

import pytest

from edgedec.hw.blocks.divider import Divider
from tests.hw.support.bench_streams import run


@pytest.mark.rtl
@pytest.mark.parametrize("quotient_bits", [5, 3])
def test_all_pairs_of_a_small_divider_are_exact(quotient_bits: int) -> None:
    pairs = [(a, b) for a in range(32) for b in range(16)]
    component = Divider(numerator_bits=5, denominator_bits=4, quotient_bits=quotient_bits)
    collected = run(
        component,
        {"input": [{"numerator": a, "denominator": b} for a, b in pairs]},
        {"output": len(pairs)},
    )["output"]
    limit = (1 << quotient_bits) - 1
    assert collected == [min(a // b, limit) if b else limit for a, b in pairs]


@pytest.mark.parametrize("quotient_bits", [2, 4])
def test_a_denominator_narrower_than_the_leading_bits_is_exact(quotient_bits: int) -> None:
    """Check also numerators whose leading bits equal the denominator, of which the quotient is too long by a bit."""
    pairs = [(a, b) for a in range(64) for b in range(2)]
    component = Divider(numerator_bits=6, denominator_bits=1, quotient_bits=quotient_bits)
    collected = run(
        component, {"input": [{"numerator": a, "denominator": b} for a, b in pairs]}, {"output": len(pairs)}
    )
    limit = (1 << quotient_bits) - 1
    assert collected["output"] == [min(a, limit) if b else limit for a, b in pairs]


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.7), (0.4, 0.4)])
def test_quotients_of_the_profile_are_exact(idle: float, stall: float) -> None:
    rng = random.Random(1)
    pairs = [(127 << 25, 1 << 15), (127 << 25, (1 << 16) - 1), ((1 << 32) - 1, 1 << 15), (65535 << 16, 1 << 15)]
    pairs += [(rng.randrange(1 << 32), rng.randrange(1 << 15, 1 << 16)) for _ in range(20)]
    cycles: dict[str, list[int]] = {}
    collected = run(
        Divider(numerator_bits=32, denominator_bits=16, quotient_bits=17),
        {"input": [{"numerator": a, "denominator": b} for a, b in pairs]},
        {"output": len(pairs)},
        idle=idle,
        stall=stall,
        cycles=cycles,
    )["output"]
    assert collected == [a // b for a, b in pairs]
    if not idle and not stall:
        assert cycles["output"][0] - cycles["input"][0] == 18  # the documented latency
        assert cycles["input"][1] - cycles["input"][0] == 19  # and throughput


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"numerator_bits": 0, "denominator_bits": 1}, "numerator_bits must be an integer from 1 to 64, not 0"),
        ({"numerator_bits": 8, "denominator_bits": 65}, "denominator_bits must be an integer from 1 to 64, not 65"),
        (
            {"numerator_bits": 8, "denominator_bits": 8, "quotient_bits": 9},
            "quotient_bits must be an integer from 1 to 8, not 9",
        ),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Divider(**parameters)
