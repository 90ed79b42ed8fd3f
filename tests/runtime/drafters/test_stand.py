"""Compare stochastic n-grams with averages computed slowly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import UnsupportedError
from edgedec.plugins import load
from edgedec.runtime.drafters.stand import LONGEST
from edgedec.runtime.protocols import F32, Limits
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.sampling.target_top import TOP_IDS, TOP_K, TOP_PROBS, TOP_TAPS, top_taps
from tests.runtime.drafters.support.bench_rounds import LIMITS, VOCAB, ask, info, open_draft, play, tell


def said(*rows: dict[int, float]) -> Mapping[str, F32]:
    """Return taps for a path: the target's distribution after each of its nodes."""
    whole = np.zeros((len(rows), VOCAB), np.float32)
    for at, row in enumerate(rows):
        whole[at, list(row)] = list(row.values())
    return top_taps(list(whole), logits=False)


class Averages:
    """Keep every distribution after every context."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, ...], list[dict[int, float]]] = defaultdict(list)

    def note(self, tokens: list[int], row: dict[int, float]) -> None:
        for size in range(1, min(LONGEST, len(tokens)) + 1):
            self.seen[tuple(tokens[-size:])].append(row)

    def guess(self, tokens: list[int]) -> dict[int, float]:
        for size in range(min(LONGEST, len(tokens)), 0, -1):
            rows = self.seen.get(tuple(tokens[-size:]))
            if rows:
                mean = {token: sum(row.get(token, 0.0) for row in rows) for row in rows for token in row}
                return {token: total / sum(mean.values()) for token, total in mean.items()}
        return {}


def row_of(rng: np.random.Generator, tokens: int) -> dict[int, float]:
    """Draw a distribution over some of the first tokens, in round numbers, so that ties occur."""
    weights = rng.integers(0, 20, tokens) * (rng.random(tokens) < 0.7)
    weights[rng.integers(tokens)] += 1
    return {token: float(weight / weights.sum()) for token, weight in enumerate(weights) if weight}


@pytest.mark.thorough
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), vocab=st.integers(1, 4))
def test_a_guess_is_the_average_of_the_target_s_distributions(seed: int, vocab: int) -> None:
    rng, draft, slow = np.random.default_rng(seed), open_draft("stand"), Averages()
    text = rng.integers(0, vocab, rng.integers(1, 6)).tolist()
    for _ in range(8):
        for _ in range(3):  # calls change nothing
            path = rng.integers(0, vocab, rng.integers(0, LIMITS.depth)).tolist()
            assert ask(draft, text, path) == pytest.approx(slow.guess([*text, *path]), abs=1e-5)
        path = rng.integers(0, vocab, rng.integers(0, 5)).tolist()
        accepted = int(rng.integers(0, len(path) + 1))
        rows = [row_of(rng, TOP_K) for _ in range(accepted + 1)]
        for at, row in enumerate(rows):
            slow.note([*text, *path[:at]], row)
        text = tell(draft, text, path, accepted, int(rng.integers(vocab)), said(*rows))


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_heaviest_of_more_than_ten_tokens_stay(seed: int) -> None:
    rng, draft, mean = np.random.default_rng(seed), open_draft("stand"), dict[int, float]()
    rows = [row_of(rng, 2 * TOP_K) for _ in range(rng.integers(1, 9))]
    for count, row in enumerate(rows):
        heaviest = dict(sorted(row.items(), key=lambda item: (-item[1], item[0]))[:TOP_K])
        mean = {
            token: (mean.get(token, 0.0) * count + heaviest.get(token, 0.0)) / (count + 1)
            for token in mean.keys() | heaviest
        }
        mean = dict(sorted(mean.items(), key=lambda item: -item[1])[:TOP_K])
        ask(draft, [7])
        tell(draft, [7], [], 0, 7, said(row))
    # Rounding decides which of two equally heavy ones stays last: compare those heavier than the lightest.
    total, lightest = sum(mean.values()), min(mean.values())
    guess_row = ask(draft, [7])
    assert len(guess_row) == len(mean)
    assert min(guess_row.values()) == pytest.approx(lightest / total, abs=1e-4)
    heavy = {token: value / total for token, value in mean.items() if value > lightest + 1e-4}
    assert {token: value for token, value in guess_row.items() if token in heavy} == pytest.approx(heavy, abs=1e-4)


def test_the_longest_known_context_decides() -> None:
    draft = open_draft("stand")
    ask(draft, [1, 2, 3])
    tell(draft, [1, 2, 3], [], 0, 9, said({4: 1.0}))
    ask(draft, [5, 3])
    tell(draft, [5, 3], [], 0, 9, said({6: 0.75, 4: 0.25}))
    assert ask(draft, [2, 3]) == {4: 1.0}
    assert ask(draft, [5, 3]) == {6: 0.75, 4: 0.25}
    assert ask(draft, [8, 3]) == pytest.approx({6: 0.375, 4: 0.625})
    assert ask(draft, [8]) == {}


def test_without_the_targets_probabilities_it_counts_tokens() -> None:
    draft = open_draft("stand")
    for token in (4, 4, 5, 4):
        ask(draft, [9, 2])
        tell(draft, [9, 2], [], 0, token)
    assert ask(draft, [9, 2]) == pytest.approx({4: 0.75, 5: 0.25})


def test_a_second_answer_like_the_first_is_accepted_whole() -> None:
    draft, answer = open_draft("stand"), list(range(10, 40))
    assert play(draft, [1, 2], answer).accepted == 0
    assert play(draft, [3, 2], answer).rounds == -(-len(answer) // (LIMITS.depth + 1))


def test_the_prompt_and_assumed_text_teach_nothing() -> None:
    draft = open_draft("stand")
    assert ask(draft, [1, 2, 1, 2, 1]) == {}
    ask(draft, [1, 2, 1, 2, 1, 2, 1, 2])
    tell(draft, [1, 2, 1, 2, 1], [], 0, 3)
    assert ask(draft, [1, 2, 1, 2, 1]) == {3: 1.0}
    assert ask(draft, [1, 2]) == {}


@pytest.mark.parametrize("row", [{}, {VOCAB - 1: float("nan")}])
def test_an_empty_row_teaches_nothing(row: dict[int, float]) -> None:
    draft = open_draft("stand")
    ask(draft, [1])
    tell(draft, [1], [], 0, 2, said(row))
    assert ask(draft, [1]) == {}


def test_ids_outside_of_the_vocabulary_are_not_proposed() -> None:
    draft = open_draft("stand", vocab=5)
    ask(draft, [1])
    tell(draft, [1], [], 0, 2, said({3: 0.25, 5: 0.5, 4: 0.25}))
    assert ask(draft, [1]) == {3: 0.5, 4: 0.5}
    ask(draft, [1, 2])
    tell(draft, [1, 2], [], 0, 7)
    assert ask(draft, [1, 2]) == {}


def test_the_draft_requests_the_taps_that_it_learns_from() -> None:
    assert load("edgedec.runtime.drafters", "stand").create().taps == TOP_TAPS == (TOP_IDS, TOP_PROBS)


def test_a_vocabulary_whose_ids_float32_cannot_hold_is_refused() -> None:
    drafter = load("edgedec.runtime.drafters", "stand").create()
    drafter.open(info(1 << 24), LIMITS, ObservedCost())
    with pytest.raises(
        UnsupportedError, match=r"up to 16777216 tokens, and the model has 16777217; try --spec-type ngram"
    ):
        drafter.open(info((1 << 24) + 1), LIMITS, ObservedCost())


def test_contexts_that_were_not_used_for_long_are_replaced() -> None:
    limits = Limits(nodes=8, depth=4, positions=8)
    draft = open_draft("stand", limits, vocab=4000)
    text = [1]
    for token in range(2, 2000):
        ask(draft, text[-8:])
        text = tell(draft, text[-8:], [], 0, token)
    assert ask(draft, [1998]) == {1999: 1.0}
    assert ask(draft, [1]) == {}
