from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from edgedec.hw.attention.head_norm import HeadNorm
from edgedec.hw.compiler.constants import head_norm_items
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.ops.rms_norm import normed_heads
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, from_words, to_words

Norm = tuple[I64, I64, int, int]  # x [slots, heads * head_dim], gains [head_dim], eps, shift


def some_norm(rng: np.random.Generator, slots: int, heads: int, head_dim: int) -> Norm:
    """Draw heads of very different sizes, some of them zero, and gains at both ends of their range."""
    limit = (1 << 17) - 1
    x = rng.integers(-limit, limit + 1, (slots, heads, head_dim)) >> rng.integers(0, 18, (slots, heads, 1))
    x[rng.random((slots, heads)) < 0.1] = 0
    gains = rng.integers(-(1 << 15) + 1, 1 << 15, head_dim)
    gains[0] = rng.choice([(1 << 15) - 1, -(1 << 15) + 1])
    eps = int(rng.choice([0, 1, 1 << 20, (1 << 48) - 1]))
    return x.reshape(slots, -1), gains, eps, int(rng.choice([6, 13, 14, 15, 30, 47]))


def normed(norms: list[Norm], **how: Any) -> list[I64]:
    slots, head_dim = len(norms[0][0]), len(norms[0][1])
    items = [head_norm_items(*norm[1:]).view("<i2")[:, 0].tolist() for norm in norms]
    inputs: dict[str, list[Any]] = {
        "input": [word for norm in norms for word in to_words(norm[0])],
        "gains": [[item] for of in items for item in of],
    }
    component = HeadNorm(slots=slots, head_dim=head_dim)
    collected = run(component, inputs, {"output": len(inputs["input"])}, settings={"normed": 1}, **how)
    return from_words(collected["output"], [norm[0].shape[1] for norm in norms])


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("slots", "head_dim"), [(1, 10), (3, 2)])
def test_heads_equal_the_profile(slots: int, head_dim: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng([slots, head_dim, int(10 * idle)])
    norms = [some_norm(rng, slots, heads, head_dim) for heads in (4, 1, 5)]
    for norm, actual in zip(norms, normed(norms, idle=idle, stall=stall), strict=True):
        assert actual.tolist() == normed_heads(*norm).tolist()


@pytest.mark.rtl
@pytest.mark.parametrize(("slots", "head_dim"), [(8, 6), (2, 40)])
def test_latency_and_throughput_are_as_documented(slots: int, head_dim: int) -> None:
    cycles: dict[str, list[int]] = {}
    normed([some_norm(np.random.default_rng(1), slots, 4, head_dim)], cycles=cycles)
    assert cycles["input"][0] - cycles["gains"][0] == head_dim + 4
    first, last = cycles["output"][::head_dim], cycles["input"][head_dim - 1 :: head_dim]
    assert first[0] - last[0] == 37 * slots + 29
    assert [b - a for a, b in pairwise(first)] == [head_dim + 18 * slots + 16] * 3


def test_other_vectors_pass_unchanged() -> None:
    x = np.random.default_rng(2).integers(-(1 << 17) + 1, 1 << 17, (2, 12))
    cycles: dict[str, list[int]] = {}
    inputs = {"input": to_words(x)}
    collected = run(HeadNorm(slots=2, head_dim=4), inputs, {"output": 12}, settings={"normed": 0}, cycles=cycles)
    assert from_words(collected["output"], [12])[0].tolist() == x.tolist()
    assert cycles["output"] == cycles["input"]
