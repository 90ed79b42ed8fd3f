from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.compiler.constants import head_norm_items
from edgedec.hw.vector.output_norm import OutputNorm
from edgedec.hw.vector.residual_path import ResidualPath
from edgedec.reference.integer_profile.numbers import I64, saturate
from edgedec.reference.integer_profile.ops.rms_norm import normed_rows
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, from_words, to_words
from tests.hw.vector.test_residual_path import as_items, as_words

MOST = (1 << 26) - 1
Norm = tuple[I64, I64, int, int]  # x [slots, width], gains [width], eps, shift


def some_norm(rng: np.random.Generator, slots: int, width: int) -> Norm:
    """Draw rows of very different sizes, some of them zero, and gains at both ends of their range."""
    x = rng.integers(-MOST, MOST + 1, (slots, width)) >> rng.integers(0, 27, (slots, 1))
    x[rng.random(slots) < 0.1] = 0
    gains = rng.integers(-(1 << 15) + 1, 1 << 15, width)
    gains[0] = rng.choice([(1 << 15) - 1, -(1 << 15) + 1])
    return x, gains, int(rng.choice([0, 1, 1 << 20, (1 << 48) - 1])), int(rng.choice([0, 3, 8, 10, 14, 30, 47]))


def items_of(norms: list[Norm]) -> list[list[int]]:
    return [[int(item)] for norm in norms for item in head_norm_items(*norm[1:]).view("<i2")[:, 0]]


def normed(norms: list[Norm], **how: Any) -> list[I64]:
    slots = len(norms[0][0])
    inputs: dict[str, list[Any]] = {
        "input": [word for norm in norms for word in to_words(norm[0])],
        "gains": items_of(norms),
    }
    component = OutputNorm(slots=slots, depth=max(len(norm[1]) for norm in norms))
    collected = run(component, inputs, {"output": len(inputs["input"])}, settings={"normed": 1}, **how)
    return from_words(collected["output"], [norm[0].shape[1] for norm in norms])


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_rows_equal_the_profile(slots: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng([slots, int(10 * idle)])
    norms = [some_norm(rng, slots, width) for width in (20, 1, 2, 33, 33, 7)]
    for norm, actual in zip(norms, normed(norms, idle=idle, stall=stall), strict=True):
        assert actual.tolist() == normed_rows(*norm).tolist()


@pytest.mark.rtl
@pytest.mark.parametrize(("slots", "width"), [(8, 6), (2, 40)])
def test_latency_and_throughput_are_as_documented(slots: int, width: int) -> None:
    cycles: dict[str, list[int]] = {}
    normed([some_norm(np.random.default_rng(1), slots, width)], cycles=cycles)
    assert cycles["input"][0] - cycles["gains"][0] == 4
    assert cycles["input"][-1] - cycles["input"][0] == width - 1
    assert cycles["output"][0] - cycles["input"][-1] == 37 * slots + 31
    assert cycles["output"][-1] - cycles["output"][0] == width - 1


def test_other_vectors_pass_unchanged() -> None:
    x = np.random.default_rng(2).integers(-MOST, MOST + 1, (2, 12))
    cycles: dict[str, list[int]] = {}
    collected = run(
        OutputNorm(slots=2, depth=12), {"input": to_words(x)}, {"output": 12}, settings={"normed": 0}, cycles=cycles
    )
    assert from_words(collected["output"], [12])[0].tolist() == x.tolist()
    assert cycles["output"] == cycles["input"]


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
def test_the_residual_adds_vectors_that_are_normed_and_others(idle: float, stall: float) -> None:
    rng, slots, count = np.random.default_rng([5, int(10 * idle)]), 2, 23
    first, second = some_norm(rng, slots, count), some_norm(rng, slots, count)
    x, plain = (rng.integers(-MOST, MOST + 1, (slots, count)) for _ in range(2))
    sums = [saturate(x + normed_rows(*first), 27)]
    sums.append(saturate(sums[-1] + plain, 27))
    sums.append(saturate(sums[-1] + normed_rows(*second), 27))
    whole = {"start": 0, "elements": count, "more": 0, "onward": 1}
    collected = run(
        ResidualPath(slots=slots, depth=count, norms=True),
        {
            "loads": [count],
            "items": as_items(x.T),
            "additions": [
                {**whole, "normed": 1},
                {**whole, "elements": 9, "more": 1, "normed": 0},
                {**whole, "start": 9, "elements": count - 9, "normed": 0},
                {**whole, "normed": 1},
            ],
            "input": as_words(first[0].T) + as_words(plain.T, None) + as_words(second[0].T),
            "gains": items_of([first, second]),
        },
        {"output": 4 * count},
        idle={"input": idle, "items": idle, "additions": idle, "gains": idle},
        stall=stall,
    )
    assert collected["output"] == as_words(x.T) + [word for rows in sums for word in as_words(rows.T)]
