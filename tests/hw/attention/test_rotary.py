from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.attention.rotary import Rotary
from edgedec.reference.integer_profile.numbers import round_shift, saturate
from edgedec.reference.integer_profile.tables import rotary
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, from_words, to_words

Array = np.ndarray[Any, Any]


def turned(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate x [slots, n] by cos and sin [slots, head_dim / 2]."""
    half = cos.shape[1]
    heads = x.reshape(len(x), -1, 2, half)
    a, b = heads[:, :, 0], heads[:, :, 1]
    cos, sin = cos[:, None], sin[:, None]
    rotated = np.stack([a * cos - b * sin, b * cos + a * sin], axis=2)
    return saturate(round_shift(rotated, 14), 18).reshape(x.shape)


def items(table: Array, lanes: int) -> list[Any]:
    return list(table.T.reshape(-1, lanes, len(table)).tolist())


@pytest.mark.rtl
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(
    ("slots", "head_dim", "lanes", "heads"),
    [(1, 2, 1, [1, 4]), (8, 8, 4, [3, 1]), (3, 12, 3, [2, 2, 1]), (2, 12, 1, [1]), (2, 24, 6, [1, 5]), (1, 16, 4, [2])],
)
def test_rotations_follow_the_formulas(
    slots: int, head_dim: int, lanes: int, heads: list[int], idle: float, stall: float
) -> None:
    rng = np.random.default_rng(head_dim)
    frequencies = tuple(10000.0 ** -(2 * i / head_dim) for i in range(head_dim // 2))
    cos, sin = rotary(rng.integers(0, 5000, slots).astype(np.int32), frequencies)
    vectors = [awkward(rng, slots, head_dim * count, 18) for count in heads]
    vectors[0][:, :] = rng.choice([-(1 << 17) + 1, (1 << 17) - 1], vectors[0].shape)  # sums that saturate
    angle_items = [{"cos": c, "sin": s} for c, s in zip(items(cos, lanes), items(sin, lanes), strict=True)]
    words = [word for x in vectors for word in to_words(x, lanes)]
    cycles: dict[str, list[int]] = {}
    collected = run(
        Rotary(slots=slots, head_dim=head_dim, lanes=lanes),
        {"angles": angle_items, "input": words},
        {"output": len(words)},
        idle=idle,
        stall=stall,
        cycles=cycles,
    )["output"]
    results = from_words(collected, [x.shape[1] for x in vectors])
    for result, x in zip(results, vectors, strict=True):
        assert result.tolist() == turned(x, cos, sin).tolist()
    assert any((np.abs(result) == (1 << 17) - 1).any() for result in results)
    if not idle and not stall:
        half = head_dim // 2 // lanes
        assert cycles["output"][0] - cycles["input"][half] == 6
        assert cycles["output"][half - 1 + half] - cycles["output"][0] == 2 * half - 1
        assert np.ptp(cycles["input"]) == len(words) - 1


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("idle", [{"angles": 0.9, "input": 0.0}, {"angles": 0.0, "input": 0.9}, 0.0, 0.7])
def test_each_pass_uses_one_set_of_angles(idle: Any) -> None:
    """Check that a vector is rotated by one set, whenever new ones are offered; the second uses the last if words are
    slow.
    """
    rng = np.random.default_rng(0)
    tables = [(rng.integers(-16384, 16385, (2, 4)), rng.integers(-16384, 16385, (2, 4))) for _ in range(2)]
    vectors = [awkward(rng, 2, 16, 18) for _ in range(2)]
    collected = run(
        Rotary(slots=2, head_dim=8, lanes=2),
        {
            "angles": [
                {"cos": c, "sin": s} for cos, sin in tables for c, s in zip(items(cos, 2), items(sin, 2), strict=True)
            ],
            "input": [word for x in vectors for word in to_words(x, 2)],
        },
        {"output": 16},
        idle=idle,
    )["output"]
    results = from_words(collected, [16, 16])
    by = [
        [turned(x, *table).tolist() for table in tables].index(y.tolist())
        for x, y in zip(vectors, results, strict=True)
    ]
    assert by == sorted(by)
    if idle == 0.0 or (isinstance(idle, dict) and not idle["angles"]):
        assert by[1] == 1


@pytest.mark.rtl
@pytest.mark.parametrize("seed", range(4))
def test_angles_that_arrive_within_a_vector_wait_for_its_end(seed: int) -> None:
    """Offer three sets of angles, item by item, while six vectors of three heads go by: one set rotates each vector."""
    rng = np.random.default_rng(seed)
    tables = [(rng.integers(-16384, 16385, (1, 4)), rng.integers(-16384, 16385, (1, 4))) for _ in range(3)]
    vectors = [rng.integers(-(1 << 16), 1 << 16, (1, 24)) for _ in range(6)]
    angle_items = [
        {"cos": c, "sin": s} for cos, sin in tables for c, s in zip(items(cos, 1), items(sin, 1), strict=True)
    ]
    words = [word for x in vectors for word in to_words(x, 1)]
    collected = run(
        Rotary(slots=1, head_dim=8),
        {"angles": angle_items, "input": words},
        {"output": len(words)},
        idle={"angles": 0.8},
        seed=seed,
    )["output"]
    by = []
    for x, y in zip(vectors, from_words(collected, [24] * 6), strict=True):
        by.append([turned(x, *table).tolist() for table in tables].index(y.tolist()))
    assert by == sorted(by)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 7}, "head_dim must be even, not 7"),
        ({"lanes": 4}, "lanes must divide 6, not 4"),
        ({"lanes": 7}, "lanes must be an integer from 1 to 6, not 7"),
        ({"slots": 0}, "slots must be an integer from 1 to 8, not 0"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Rotary(**{"slots": 1, "head_dim": 12, "lanes": 1, **changes})
