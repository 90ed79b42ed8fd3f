from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.vector.requantizer import Requantizer
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.ops.quantize_activation import codes_of, normed_scale
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, from_words, to_words

MOST = (1 << 26) - 1
Root = tuple[I64, I64]  # mantissas and exponents, [slots] each


def floats(mantissa: I64, exponent: I64) -> list[dict[str, int]]:
    return [{"mantissa": int(a), "exponent": int(e)} for a, e in zip(mantissa, exponent, strict=True)]


def expected(y: I64, root: Root | None) -> tuple[I64, list[dict[str, int]]]:
    codes, m16, e = codes_of(y)
    if root is None:
        return codes, floats(m16, np.where(m16 > 0, e - 16, 0))
    scale = normed_scale(m16, e, *root)
    return codes, floats(scale.mantissa, scale.exponent)


def requantized(
    vectors: list[I64], norms: list[Root | None], **how: Any
) -> tuple[list[I64], list[list[dict[str, int]]]]:
    inputs: dict[str, list[Any]] = {
        "maxima": [
            {"absmax": np.abs(y).max(axis=1).tolist(), "normed": int(root is not None)}
            for y, root in zip(vectors, norms, strict=True)
        ],
        "roots": [floats(*root) for root in norms if root is not None],
        "input": [word for y in vectors for word in to_words(y)],
    }
    collected = run(
        Requantizer(slots=len(vectors[0])),
        inputs,
        {"output": len(inputs["input"]), "scales": len(vectors)},
        **how,
    )
    return from_words(collected["output"], [y.shape[1] for y in vectors]), collected["scales"]


def some_root(rng: np.random.Generator, slots: int) -> Root:
    mantissa = rng.integers(1 << 15, 1 << 16, slots)
    mantissa[0] = rng.choice([1 << 15, (1 << 16) - 1])
    return mantissa, rng.integers(-15, 19, slots)


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_codes_equal_the_profile(slots: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng([slots, int(10 * idle)])
    vectors = [awkward(rng, slots, width) for width in (7, 1, 20, 5, 33, 4)]
    norms = [some_root(rng, slots) if i % 2 else None for i in range(len(vectors))]
    codes, scales = requantized(vectors, norms, idle=idle, stall=stall)
    for y, root, actual, scale in zip(vectors, norms, codes, scales, strict=True):
        want, want_scale = expected(y, root)
        assert np.array_equal(actual, want)
        assert scale == want_scale


@pytest.mark.rtl
def test_each_length_of_the_maximum_is_exact_at_its_ends() -> None:
    tops = sorted({min(max(v, 0), MOST) for k in range(27) for v in ((1 << k) - 1, 1 << k, (1 << k) + 1, 5 << k >> 2)})
    tops = [v for v in tops if v] + [0] * (-len([v for v in tops if v]) % 8)
    vectors = []
    for start in range(0, len(tops), 8):
        m = np.array(tops[start : start + 8])[:, None]
        near = np.array([1.0, -1.0, 0.5, -0.5, 0.5039, 1 / 254, 3 / 254, -1 / 254, 0.0, 0.99609])
        vectors.append(np.clip(np.floor(m * near + 0.5).astype(np.int64), -m, m))
    rng = np.random.default_rng(0)
    norms: list[Root | None] = [some_root(rng, 8) for _ in vectors]
    codes, scales = requantized(vectors, norms)
    for y, root, actual, scale in zip(vectors, norms, codes, scales, strict=True):
        want, want_scale = expected(y, root)
        assert np.array_equal(actual, want)
        assert scale == want_scale
    assert max(int(c.max()) for c in codes) == 127
    assert min(int(c.min()) for c in codes) == -127


def test_latency_and_throughput_are_as_documented() -> None:
    rng = np.random.default_rng(1)
    cycles: dict[str, list[int]] = {}
    slots = 8
    requantized([awkward(rng, slots, 64)], [None], cycles=cycles)
    start = cycles["maxima"][0]
    assert cycles["input"][0] - start == slots + 26
    assert cycles["input"][-1] - cycles["input"][0] == 63
    assert [b - a for a, b in zip(cycles["input"], cycles["output"], strict=True)] == [7] * 64
    assert cycles["scales"][0] - start == slots + 28


@pytest.mark.rtl
def test_the_codes_do_not_wait_for_the_root() -> None:
    rng = np.random.default_rng(2)
    cycles: dict[str, list[int]] = {}
    y, root = awkward(rng, 2, 20), some_root(rng, 2)
    codes, scales = requantized([y], [root], idle={"roots": 0.999}, seed=4, cycles=cycles)
    assert cycles["roots"][0] > cycles["output"][-1]
    assert cycles["scales"][0] - cycles["roots"][0] == 19
    assert (codes[0].tolist(), scales[0]) == (expected(y, root)[0].tolist(), expected(y, root)[1])


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^slots must be an integer from 1 to 8, not 9$"):
        Requantizer(slots=9)
