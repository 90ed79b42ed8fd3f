from __future__ import annotations

import math

import numpy as np
import pytest

from edgedec.runtime.protocols import F32, TokenTree
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.verifiers.typical import DELTA, EPSILON, create, threshold

RANDOM = PositionRandom(seed=3)

#        0
#      / | \
#     1  2  3      tokens 1, 2, 3
#     |  |
#     4  5         tokens 0, 1
TREE = TokenTree(
    tokens=np.array([0, 1, 2, 3, 0, 1], np.int32), parents=np.array([-1, 0, 0, 0, 1, 2], np.int32), draft={}
)


def row(*probs: float) -> F32:
    return np.array(probs, np.float32)


@pytest.mark.parametrize(
    ("probs", "value"),
    [
        (row(0, 1, 0, 0), EPSILON),  # entropy 0: DELTA is more than EPSILON
        (row(0.25, 0.25, 0.25, 0.25), DELTA / 4),  # exp(-entropy) is 1/4
        (row(0.5, 0.5, 0, 0), EPSILON),  # DELTA / 2 is more than EPSILON
        (row(0.5, 0.25, 0.125, 0.125), DELTA * 2**-1.75),
    ],
)
def test_the_threshold_falls_with_the_entropy(probs: F32, value: float) -> None:
    assert threshold(probs) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "path"),
    [
        # 1, 2 and 3 are likely enough, and so is 5 after 2: the longest path
        ({0: row(0.1, 0.3, 0.3, 0.3), 1: row(0.01, 0.33, 0.33, 0.33), 2: row(0, 0.9, 0.1, 0)}, [0, 2, 5]),
        # both paths have two guesses: the likelier one
        ({0: row(0.1, 0.2, 0.6, 0.1), 1: row(0.5, 0.5, 0, 0), 2: row(0.5, 0.5, 0, 0)}, [0, 2, 5]),
        # equally long and likely: the first one
        ({0: row(0.1, 0.4, 0.4, 0.1), 1: row(0.5, 0.5, 0, 0), 2: row(0.5, 0.5, 0, 0)}, [0, 1, 4]),
        # no guess is likely enough
        ({0: row(0.97, 0.01, 0.01, 0.01)}, [0]),
    ],
)
def test_the_longest_path_of_likely_guesses_is_accepted(rows: dict[int, F32], path: list[int]) -> None:
    default = row(0.1, 0.2, 0.3, 0.4)
    outcome = create().accept(TREE, lambda node: rows.get(node, default), RANDOM, 7)
    assert outcome.path.tolist() == path
    assert outcome.next_token == RANDOM.token(rows.get(path[-1], default), 7 + len(path) - 1)


def test_of_siblings_with_one_token_the_one_with_more_below_is_followed() -> None:
    tree = TokenTree(tokens=np.array([0, 1, 1, 2], np.int32), parents=np.array([-1, 0, 0, 2], np.int32), draft={})
    rows = {0: row(0, 1, 0, 0), 1: row(0, 0, 1, 0), 2: row(0, 0, 1, 0), 3: row(1, 0, 0, 0)}
    assert create().accept(tree, rows.__getitem__, RANDOM, 7).path.tolist() == [0, 2, 3]


def test_a_guess_is_accepted_only_above_the_threshold() -> None:
    tree = TokenTree(tokens=np.array([0, 1], np.int32), parents=np.array([-1, 0], np.int32), draft={})
    at = np.nextafter(np.float32(EPSILON), np.float32(0))  # at most EPSILON, as the float32 of EPSILON may be larger
    above = np.float32(0.0901)
    for prob, length in ((at, 1), (above, 2)):
        probs = row(1 - float(prob), float(prob))
        assert threshold(probs) == EPSILON
        assert len(create().accept(tree, {0: probs, 1: probs}.__getitem__, RANDOM, 7).path) == length


def test_the_target_is_asked_for_accepted_nodes_only() -> None:
    calls: list[int] = []

    def target(node: int) -> F32:
        calls.append(node)
        return row(0.01, 0.97, 0.01, 0.01)

    assert create().accept(TREE, target, RANDOM, 7).path.tolist() == [0, 1]
    assert set(calls) == {0, 1}
    assert math.isclose(float(target(0).sum()), 1, rel_tol=1e-6)
