from __future__ import annotations

import math
import random

import pytest

from edgedec.hw.blocks.isqrt import Root
from tests.hw.support.bench_streams import run


@pytest.mark.parametrize("bits", [2, 8])
def test_all_values_of_a_small_root_are_exact(bits: int) -> None:
    collected = run(Root(bits=bits), {"input": list(range(1 << bits))}, {"output": 1 << bits})
    assert collected["output"] == [math.isqrt(v) for v in range(1 << bits)]


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.7), (0.4, 0.4)])
def test_roots_of_full_width_are_exact(idle: float, stall: float) -> None:
    rng = random.Random(2)
    edges = [r * r + d for r in (1 << 15, 46341, 65535) for d in (0, -1, 1)]
    values = [*edges, 0, 1, 1 << 30, (1 << 32) - 1, *(rng.randrange(1 << 30, 1 << 32) for _ in range(20))]
    cycles: dict[str, list[int]] = {}
    actual = run(Root(bits=32), {"input": values}, {"output": len(values)}, idle=idle, stall=stall, cycles=cycles)[
        "output"
    ]
    assert actual == [math.isqrt(v) for v in values]
    if not idle and not stall:
        assert cycles["output"][0] - cycles["input"][0] == 17
        assert cycles["input"][1] - cycles["input"][0] == 18


@pytest.mark.parametrize(
    ("bits", "message"), [(3, "bits must be even, not 3"), (66, "bits must be an integer from 2 to 64, not 66")]
)
def test_wrong_parameters_are_refused(bits: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Root(bits=bits)
