from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgedec.runtime.protocols import F32, TokenTree
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.verifiers.match import create

#        0
#      / | \
#     1  2  3      tokens 5, 6, 5: two siblings with one token
#     |  |  |
#     4  5  6      tokens 7, 7, 8
TREE = TokenTree(
    tokens=np.array([0, 5, 6, 5, 7, 7, 8], np.int32), parents=np.array([-1, 0, 0, 0, 1, 2, 3], np.int32), draft={}
)


def certain(choices: dict[int, int], calls: list[int]) -> Callable[[int], F32]:
    def target(node: int) -> F32:
        calls.append(node)
        row = np.zeros(10, np.float32)
        row[choices[node]] = 1
        return row

    return target


@pytest.mark.parametrize(
    ("choices", "path", "next_token"),
    [
        ({0: 9}, [0], 9),
        ({0: 6, 2: 7, 5: 1}, [0, 2, 5], 1),
        ({0: 6, 2: 8}, [0, 2], 8),  # 8 is a token of the tree, but of another branch
        ({0: 7}, [0], 7),  # 7 is two levels down
        ({0: 5, 1: 8}, [0, 1], 8),  # the first of equal siblings, though the other one would continue
    ],
)
def test_the_walk_continues_while_the_drawn_token_has_a_node(
    choices: dict[int, int], path: list[int], next_token: int
) -> None:
    calls: list[int] = []
    outcome = create().accept(TREE, certain(choices, calls), PositionRandom(seed=0), 5)
    assert outcome.path.dtype == np.int32
    assert (outcome.path.tolist(), outcome.next_token) == (path, next_token)
    assert calls == path  # nothing off the path is computed


ROWS = np.random.default_rng(5).dirichlet(np.ones(6), size=6).astype(np.float32)
ROWS[2] = [0, 0.5, 0, 0.5, 0, 0]


def plain(random: PositionRandom, count: int) -> tuple[list[int], int]:
    root = np.array([-1], np.int32)
    text = [0]
    while len(text) <= count:
        tree = TokenTree(tokens=np.array(text[-1:], np.int32), parents=root, draft={})
        text.append(create().accept(tree, lambda _: ROWS[text[-1]], random, len(text)).next_token)
    return text[1:], count


def speculated(random: PositionRandom, count: int) -> tuple[list[int], int]:
    """Speculate with a bad deterministic drafter, which proposes 1 or 4, then 3 after either, then 1; count the
    passes.
    """
    parents = np.array([-1, 0, 0, 1, 2, 3], np.int32)
    text, passes = [0], 0
    while len(text) <= count:
        tokens = np.array([text[-1], 1, 4, 3, 3, 1], np.int32)
        tree = TokenTree(tokens=tokens, parents=parents, draft={})
        says = [ROWS[token] for token in tokens]
        outcome = create().accept(tree, says.__getitem__, random, len(text))
        text += [*tokens[outcome.path[1:]].tolist(), outcome.next_token]
        passes += 1
    return text[1 : count + 1], passes


@pytest.mark.thorough
def test_with_one_seed_the_speculative_text_is_the_plain_text() -> None:
    """Check that each token uses one number of the generator, for any tree: losslessness without statistics."""
    expected, slow_passes = plain(PositionRandom(seed=3), 20_000)
    text, passes = speculated(PositionRandom(seed=3), 20_000)
    assert text == expected
    assert set(text) == set(range(6))
    assert passes < 0.8 * slow_passes
