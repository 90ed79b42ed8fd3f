"""Grow the trees of several texts with one draft model: each is the tree that is grown alone, and passes are shared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.plugins import load, names
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.drafters import auto, model
from edgedec.runtime.drafters._releasing import ReleasingDrafter
from edgedec.runtime.drafting import alone, reading, together
from edgedec.runtime.protocols import (
    I32,
    Draft,
    Drafter,
    Drafting,
    Limits,
    Outcome,
    Pass,
    State,
    TargetInfo,
    Ticket,
    TokenTree,
)
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import load_target

VOCAB, TEXTS = 40, 5
LIMITS = Limits(nodes=8, depth=4, positions=96, cache_rows=TEXTS * 128, batch_rows=TEXTS * 8)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB,
    "max_position_embeddings": 96,
    "tie_word_embeddings": False,
}
POLICIES = "edgedec.runtime.trees"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path: Path = tmp_path_factory.mktemp("draft") / "bundle"
    write_random_bundle(path, CONFIG, "int8")
    return Bundle.open(path)


class Counted:
    """A target that counts its submissions, and the rows of each pass in them."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.rows: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        self.rows.append([len(item.ids) for _, item in work])
        ticket: Ticket = self._target.submit(work)
        return ticket


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """Return the list to which every draft model that is loaded from now on adds its target."""
    loaded: list[Counted] = []

    def counted(bundle: Bundle, request: TargetRequest) -> Counted:
        loaded.append(Counted(load_target(bundle, request)))
        return loaded[-1]

    monkeypatch.setattr(model, "load_target", counted)
    return loaded


def opened(drafter: Drafter, bundle: Bundle, count: int = TEXTS) -> list[Draft]:
    info = TargetInfo(
        vocab=VOCAB, tokenizer_hash=bundle.tokenizer_hash, positions=96, taps=(), masks="any", batch_invariant=True
    )
    return [drafter.open(info, LIMITS, ObservedCost()) for _ in range(count)]


def texts(seed: int) -> list[I32]:
    """Return texts of different lengths; two begin alike."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, VOCAB, length).astype(np.int32) for length in (3, 30, 17, 9, 30)]
    made[4][:20] = made[1][:20]
    return made


def growing(policy: str, number: int, draft: Draft, text: I32, *, drawn: bool) -> Drafting[TokenTree]:
    """Grow the tree of a text, whose depth is another one for each."""
    limits = Limits(nodes=8 - number, depth=4 - number % 3, positions=96)
    rng = np.random.default_rng(number) if drawn else None
    accept = np.tile(np.array([0.6, 0.3, 0.1, 0.05], np.float32), (limits.depth, 1))
    tree: Drafting[TokenTree] = load(POLICIES, policy).create(rng).grow(draft, text, limits, ObservedCost(), accept)
    return tree


def described(tree: TokenTree) -> Any:
    draft = {node: (guess.ids.tolist(), guess.probs.tolist()) for node, guess in tree.draft.items()}
    return tree.tokens.tolist(), tree.parents.tolist(), draft


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("policy", names(POLICIES))
def test_trees_together_are_those_alone(policy: str, drawn: bool, bundle: Bundle, targets: list[Counted]) -> None:
    drafts, singles = (opened(model.create(bundle, threads=1), bundle) for _ in range(2))
    rng, all_texts = np.random.default_rng(5), texts(1)
    for _ in range(4):  # later rounds go on from the caches of earlier ones
        pairs = list(zip(drafts, all_texts, strict=True))
        trees = together([growing(policy, at, draft, text, drawn=drawn) for at, (draft, text) in enumerate(pairs)])
        shared, targets[0].rows = targets[0].rows, []
        calls = []
        for at, (draft, text) in enumerate(zip(singles, all_texts, strict=True)):
            tree = alone(growing(policy, at, draft, text, drawn=drawn))
            shared_tree = trees[at]
            assert isinstance(shared_tree, TokenTree)
            assert described(shared_tree) == described(tree)
            calls.append(len(targets[1].rows))
            targets[1].rows.clear()
            path = [0]
            while len(path) < 3 and (children := np.flatnonzero(tree.parents == path[-1])).size and rng.random() < 0.7:
                path.append(int(rng.choice(children)))
            outcome = Outcome(path=np.array(path, np.int32), next_token=int(rng.integers(0, VOCAB)))
            for observer in (drafts[at], draft):
                observer.observe(tree, outcome)
            all_texts[at] = np.concatenate([text, tree.tokens[path[1:]], [outcome.next_token]]).astype(np.int32)
        assert len(shared) == max(calls)  # not their sum
        assert [len(rows) for rows in shared] == [sum(call > at for call in calls) for at in range(len(shared))]
    assert len(targets) == 2  # one for all drafts of a drafter


def test_a_prompt_is_read_in_passes_of_bounded_size(bundle: Bundle, targets: list[Counted]) -> None:
    text = np.random.default_rng(2).integers(0, VOCAB, 41).astype(np.int32)
    (draft, unread) = opened(model.create(bundle, threads=1), bundle, 2)
    steps = 1
    while not alone(reading(draft, text, 6)):
        steps += 1
    assert targets[0].rows == [[6]] * steps
    assert steps * 6 <= 40 < steps * 6 + 6  # the rest fits into the pass that guesses
    (read,), (fresh,) = (one.expand(text, _root(text), np.zeros(1, np.int32)) for one in (draft, unread))
    assert (read.ids.tolist(), read.probs.tolist()) == (fresh.ids.tolist(), fresh.probs.tolist())
    targets[0].rows.clear()
    assert alone(reading(draft, text, 6))
    assert alone(reading(draft, text[:5], 6))
    assert alone(reading(draft, np.append(text, VOCAB).astype(np.int32), 6))  # an id that the draft does not have
    assert alone(reading(draft, np.zeros(97, np.int32), 6))  # longer than its context
    assert targets[0].rows == []


def test_a_prompt_is_read_beside_the_trees_of_other_texts(bundle: Bundle, targets: list[Counted]) -> None:
    long, short, *_ = texts(3)[::-1]
    reader, writer = opened(model.create(bundle, threads=1), bundle, 2)
    alone(growing("chain", 0, writer, short, drawn=False))
    targets[0].rows.clear()
    _, tree = together([reading(reader, long, 8), growing("chain", 0, writer, short, drawn=False)])
    assert isinstance(tree, TokenTree)
    assert targets[0].rows == [[8, 1], [1], [1], [1]]


def test_auto_shares_passes_and_reads_with_its_draft_model(bundle: Bundle, targets: list[Counted]) -> None:
    one, other = opened(auto.create([bundle], threads=1), bundle, 2)
    first, second = texts(4)[:2]
    assert not alone(reading(one, second, 8))
    assert targets[0].rows == [[8]]
    targets[0].rows.clear()
    both = together([growing("chain", 0, draft, text, drawn=False) for draft, text in ((one, second), (other, first))])
    assert all(isinstance(tree, TokenTree) for tree in both)
    assert len(targets[0].rows[0]) == 2
    assert len(targets) == 1


def test_a_drafter_that_gives_its_memory_back_shares_passes(bundle: Bundle, targets: list[Counted]) -> None:
    drafter = ReleasingDrafter(partial(model.create, bundle, threads=1))
    drafts = opened(drafter, bundle, 2)
    first, second = texts(4)[:2]
    assert not alone(reading(drafts[0], second, 8))
    together([growing("chain", 0, draft, first, drawn=False) for draft in drafts])
    assert [len(rows) for rows in targets[0].rows] == [1, 2, 2, 2, 2]
    drafter.release()
    assert alone(reading(drafts[0], second, 8))
    trees = together([growing("chain", 0, draft, first, drawn=False) for draft in drafts])
    assert [len(tree.tokens) for tree in trees if isinstance(tree, TokenTree)] == [1, 1]


def _root(text: I32) -> TokenTree:
    return TokenTree(tokens=text[-1:], parents=np.array([-1], np.int32), draft={})
