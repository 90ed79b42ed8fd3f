from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.sampling.position_random import DRAWS, TOKENS, PositionRandom

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
seeds = st.integers(0, MASK)


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def slow_key(seed: int, sample: int, position: int, stream: int) -> int:
    """The formula of the module's docstring, one step a line."""
    key = mix((seed + GAMMA) & MASK) ^ sample
    key = ((mix(key) + GAMMA) & MASK) ^ position
    key = ((mix(key) + GAMMA) & MASK) ^ stream
    return mix(key)


def test_the_generator_is_splitmix64() -> None:
    """The published outputs of SplitMix64 with the seed 1234567."""
    outputs = [mix(1234567 + (i + 1) * GAMMA & MASK) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(seeds, st.integers(0, 100), st.integers(0, 1 << 20), st.lists(st.integers(0, 200_000), min_size=1, max_size=9))
def test_uniforms_are_those_of_the_slow_formula(seed: int, sample: int, position: int, ids: list[int]) -> None:
    random = PositionRandom(seed=seed, sample=sample)
    key = slow_key(seed, sample, position, TOKENS)
    slow = [((mix(key + (i + 1) * GAMMA & MASK) >> 12) + 0.5) / 2**52 for i in ids]
    assert random.uniforms(position, np.array(ids, np.int32)).tolist() == slow
    assert all(0 < u < 1 for u in slow)
    draws, key = random.draws(position), slow_key(seed, sample, position, DRAWS)
    assert [draws.random() for _ in range(3)] == [
        ((mix(key + (i + 1) * GAMMA & MASK) >> 12) + 0.5) / 2**52 for i in range(3)
    ]


def test_vectors_for_other_implementations() -> None:
    """u of the tokens 0, 1 and 4095 for (seed, sample, position)."""
    ids = np.array([0, 1, 4095], np.int32)
    vectors = {
        (0, 0, 0): [0.6510615518482868, 0.08722647834279262, 0.9556648648289977],
        (7, 0, 3): [0.9879506266899613, 0.6380971844848967, 0.3025909569918185],
        (7, 1, 3): [0.9168486156377768, 0.11303416395571586, 0.4945451140826772],
        (18446744073709551615, 2, 100000): [0.9947245511923205, 0.6919889748565812, 0.5690385680974711],
    }
    for (seed, sample, position), expected in vectors.items():
        assert PositionRandom(seed=seed, sample=sample).uniforms(position, ids).tolist() == expected


def test_a_token_does_not_depend_on_what_was_drawn_before() -> None:
    random, probs = PositionRandom(seed=3), np.full(50, 0.02, np.float32)
    forwards = [random.token(probs, t) for t in range(40)]
    for _ in range(5):
        random.draws(7).random()
    assert [random.token(probs, t) for t in reversed(range(40))] == forwards[::-1]
    assert len(set(forwards)) > 20


@pytest.mark.parametrize("changed", [{"seed": 4}, {"sample": 1}])
def test_seeds_and_samples_give_other_texts(changed: dict[str, int]) -> None:
    probs = np.full(50, 0.02, np.float32)
    one, other = PositionRandom(seed=3), PositionRandom(**{"seed": 3, **changed})
    equal = sum(one.token(probs, t) == other.token(probs, t) for t in range(1000))
    assert equal < 60  # 20 are expected by chance, with a standard deviation of 4.4


@pytest.mark.thorough
def test_tokens_come_as_often_as_they_are_likely() -> None:
    """A chi-square over 100,000 positions with 5 degrees of freedom: chance alone exceeds 30 once in 80,000 seeds."""
    probs = np.array([0.5, 0.0, 0.25, 0.125, 0.0625, 0.0625 - 1e-4, 1e-4], np.float32)
    random, count = PositionRandom(seed=11), 100_000
    tokens = np.bincount([random.token(probs, t) for t in range(count)], minlength=7)
    assert tokens[1] == 0
    kept = probs > 0
    expected = count * probs[kept].astype(np.float64)
    assert float(((tokens[kept] - expected) ** 2 / expected).sum()) < 30


@pytest.mark.thorough
def test_neighbouring_positions_are_independent() -> None:
    """The pairs of tokens at t and t + 1 against the product of their probabilities: 8 degrees of freedom."""
    probs, random, count = np.array([0.6, 0.3, 0.1], np.float32), PositionRandom(seed=12), 60_000
    tokens = [random.token(probs, t) for t in range(count + 1)]
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    expected = count * np.outer(probs, probs)
    assert float(((pairs - expected) ** 2 / expected).sum()) < 36  # chance: once in 50,000


def test_one_possible_token_is_that_token_and_ties_go_to_the_lowest_id() -> None:
    probs = np.zeros(9, np.float32)
    probs[6] = 1
    assert PositionRandom(seed=1).token(probs, 5) == 6


def test_a_seed_from_the_system_is_another_one_each_time() -> None:
    assert PositionRandom.seeded(-1) != PositionRandom.seeded(-1)
    assert PositionRandom.seeded(7) == PositionRandom(seed=7)
    assert PositionRandom.seeded(1 << 70).seed == 0


def test_the_smallest_and_largest_uniform_have_finite_waiting_times() -> None:
    assert 0 < -math.log((2**52 - 0.5) / 2**52) < -math.log(0.5 / 2**52) < 40
