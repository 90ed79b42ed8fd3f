"""Test the acceptance by depth and rank: against frequencies, and where little or nothing was observed."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.runtime.protocols import Outcome, TokenTree
from edgedec.runtime.rounds.acceptance import RANKS, RankAcceptance


def tree_of(parents: list[int]) -> TokenTree:
    return TokenTree(tokens=np.zeros(len(parents), np.int32), parents=np.array(parents, np.int32), draft={})


def observe(acceptance: RankAcceptance, parents: list[int], path: list[int]) -> None:
    acceptance.observe(tree_of(parents), Outcome(path=np.array(path, np.int32), next_token=0))


WIDE = [-1, 0, 0, 0, 1, 1, 2, 2]  # three guesses, and two after each of the first two


def test_the_table_approaches_the_frequencies_of_each_depth_and_rank() -> None:
    rng, acceptance = np.random.default_rng(0), RankAcceptance(2)
    rates = {0: (0.5, 0.4, 0.3), 1: (0.7, 0.2), 2: (0.3, 0.1)}
    children = {node: [child for child, parent in enumerate(WIDE) if parent == node] for node in rates}
    history = []
    for _ in range(3000):
        path = [0]
        while path[-1] in rates:
            node = path[-1]
            right = [child for child, rate in zip(children[node], rates[node], strict=True) if rng.random() < rate]
            if not right:
                break
            path.append(right[0])
        observe(acceptance, WIDE, path)
        history.append(acceptance.table.copy())
    means = np.mean(history[500:], axis=0)
    assert means[0, :3] == pytest.approx([0.5, 0.4, 0.3], abs=0.03)
    # After a first or a second guess, in the shares in which they come: 0.5 / 0.7 and 0.2 / 0.7.
    assert means[1, :2] == pytest.approx([0.5 / 0.7 * 0.7 + 0.2 / 0.7 * 0.3, 0.17], abs=0.04)


def test_only_siblings_up_to_the_right_one_were_tried() -> None:
    acceptance, untouched = RankAcceptance(3), RankAcceptance(3).table
    observe(acceptance, WIDE, [0, 1])
    assert acceptance.table[0, 0] > untouched[0, 0]
    assert acceptance.table[0, 1:].tolist() == untouched[0, 1:].tolist()
    assert acceptance.table[1, 0] < untouched[1, 0]
    assert acceptance.table[1, 1] < untouched[1, 1]
    second = RankAcceptance(3)
    observe(second, WIDE, [0, 2])
    assert second.table[0, 0] < untouched[0, 0]
    assert second.table[0, 1] > untouched[0, 1]
    assert second.table[0, 2] == untouched[0, 2]


def test_a_place_without_trials_has_the_value_of_the_depth_above() -> None:
    acceptance = RankAcceptance(5)
    for _ in range(50):
        observe(acceptance, WIDE, [0, 2, 7])
    table = acceptance.table
    assert table[0, 0] < 0.1
    assert table[1, 1] > 0.8
    np.testing.assert_array_equal(table[2:], np.tile(table[1], (3, 1)))
    assert table[0, 2] == table[1, 2] == RankAcceptance(1).table[0, 2]


def test_more_siblings_and_deeper_nodes_than_the_table_has_count_where_they_fit() -> None:
    acceptance = RankAcceptance(1)
    parents = [-1] + [0] * (RANKS + 3) + [1, RANKS + 2]
    for _ in range(100):
        observe(acceptance, parents, [0, RANKS + 2, len(parents) - 1])
    assert acceptance.table.shape == (1, RANKS)
    assert acceptance.table[0, RANKS - 1] > 0.2
    assert acceptance.table[0, : RANKS - 1].max() < 0.1
    empty = RankAcceptance(0)
    observe(empty, [-1, 0], [0, 1])
    empty.doubt()
    assert empty.table.shape == (0, RANKS)


def test_a_guess_that_failed_and_is_no_longer_made_gets_another_chance() -> None:
    acceptance = RankAcceptance(2)
    prior = acceptance.table[0].copy()
    for _ in range(200):
        observe(acceptance, WIDE, [0])
    low = acceptance.table[0].copy()
    assert (low[:3] < 0.3 * prior[:3]).all()
    for _ in range(2000):  # the tree is a chain now
        observe(acceptance, [-1, 0, 1], [0])
    assert acceptance.table[0, 1] > 0.9 * prior[1]
    assert acceptance.table[0, 0] < 0.1
    acceptance.doubt()
    assert acceptance.table[0, 0] == prior[0]


def test_doubt_keeps_a_high_first_guess_and_all_further_ones() -> None:
    acceptance = RankAcceptance(2)
    for _ in range(60):
        observe(acceptance, WIDE, [0, 1, 5])
    before = acceptance.table.copy()
    acceptance.doubt()
    assert before[0, 0] > 0.9
    assert acceptance.table[0, 0] == pytest.approx(before[0, 0])
    np.testing.assert_array_equal(acceptance.table[:, 1:], before[:, 1:])
