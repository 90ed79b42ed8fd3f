from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.log_sum_exp import LOG2E, LogSumExp
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.values import Logits
from tests.hw.streams import run
from tests.hw.vectors import PATTERNS, awkward, to_words

Array = np.ndarray[Any, Any]


def rows(rng: np.random.Generator, slots: int, size: int, offset: int) -> Logits:
    """Rows from flat to steep, and of the extremes; exponents such that the shift is also clamped at either end."""
    mantissa = rng.integers(1 << 15, 1 << 16, slots)
    mantissa[rng.random(slots) < 0.2] = 0
    exponent = rng.integers(-30, 1, slots) - offset  # ea, so that the shifts lie around 0..30
    exponent = np.clip(exponent + rng.choice([0, 0, 0, 40, -40], slots), -128, 127)
    # What the reference calls a row's exponent is ea + we + ps + 11.
    return Logits(values=awkward(rng, slots, size, 32), mantissa=mantissa, exponent=exponent + offset - 15)


def scales(given: Logits, offset: int) -> dict[str, Any]:
    return {
        "largest": given.values.max(axis=1).tolist(),
        "mantissas": given.mantissa.tolist(),
        "exponents": (given.exponent - offset + 15).tolist(),
        "offset": offset,
        "ids": given.values.shape[1],
    }


@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(
    ("slots", "lanes", "sizes"), [(1, 1, [1, 5]), (8, 1, [40, 3]), (3, 4, [21, 40]), (2, 3, [30, 31])]
)
def test_equal_to_the_reference(slots: int, lanes: int, sizes: list[int], idle: float, stall: float) -> None:
    rng = np.random.default_rng(lanes)
    offset = int(rng.integers(-30, 30))
    tables = [rows(rng, slots, size, offset) for size in sizes]
    cycles: dict[str, list[int]] = {}
    found = run(
        LogSumExp(slots=slots, lanes=lanes),
        {
            "scales": [scales(given, offset) for given in tables],
            "input": [word for given in tables for word in to_words(given.values, lanes)],
        },
        {"output": len(tables)},
        idle=idle,
        stall=stall,
        cycles=cycles,
    )["output"]
    for sums, given in zip(found, tables, strict=True):
        assert sums == head.sum_of_exponentials(given)[1].tolist()
    if not idle and not stall:
        count = -(-sizes[0] // lanes)
        assert cycles["input"][0] - cycles["scales"][0] == slots + 2
        assert cycles["output"][0] - cycles["input"][count - 1] == 16 + (lanes - 1).bit_length()


def test_all_equal_logits() -> None:
    size = 300
    given = {"largest": [7], "mantissas": [65535], "exponents": [0], "offset": 0, "ids": size}
    found = run(LogSumExp(slots=1), {"scales": [given], "input": to_words(np.full((1, size), 7), 1)}, {"output": 1})
    assert found["output"] == [[65535 * size]]


def test_the_constant_is_the_references() -> None:
    assert LOG2E == head.LOG2E


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"^lanes must be an integer from 1 to 8, not 9$"):
        LogSumExp(slots=1, lanes=9)
    with pytest.raises(ValueError, match=r"^slots must be an integer from 1 to 8, not 0$"):
        LogSumExp(slots=0)
