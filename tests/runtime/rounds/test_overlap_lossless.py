"""Test that growing the next tree during a pass changes no greedy text, and no distribution of sampled ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.plugins import load, names
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto
from edgedec.runtime.planning.speculation import DRAFTERS, POLICIES
from edgedec.runtime.protocols import (
    F32,
    I32,
    CostModel,
    Limits,
    Outcome,
    Pass,
    PassResult,
    Sparse,
    State,
    Target,
    TargetInfo,
    Ticket,
    TokenTree,
)
from edgedec.runtime.rounds.ahead import Ahead
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._results import FinishedTicket
from tests.runtime.support.bench_writer import Writer, open_writer
from tests.runtime.support.fake_world import VOCAB, Clock, ScriptedTarget, Willing
from tests.runtime.verifiers import test_distribution as distribution

END = 300
LIMITS = Limits(nodes=8, depth=3, positions=END)


def greedy() -> Any:
    return Sampler(SamplingConfig(temperature=0), VOCAB).distribution


TRIALS = 8000  # tokens of a sampled text
_FOLDER = TemporaryDirectory()  # lives as long as this module
_PHRASES = [np.random.default_rng(seed).integers(0, VOCAB, 9).tolist() for seed in range(3)]
REPEATING = [
    token + (at % 23 == 0) if token < VOCAB - 1 else token
    for at, token in enumerate(sum((_PHRASES[turn % 3 if turn % 4 else 0] for turn in range(40)), list[int]()))
][: END + 1]


@cache
def tiny_bundle() -> Bundle:
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    path = Path(_FOLDER.name, "draft")
    write_random_bundle(path, config, "int8")
    return Bundle.open(path)


class Recording:
    """Wrap any target, and record the trees that it gets."""

    free_rows: int | None = None

    def __init__(self, inner: Target) -> None:
        self.inner, self.info, self.submitted = inner, inner.info, list[list[int]]()
        self.open, self.footprint, self.cost_model = inner.open, inner.footprint, inner.cost_model
        self.free_rows = inner.free_rows

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        self.submitted += [item.ids.tolist() for _, item in work if item.logits is not None]
        return self.inner.submit(work)


def stubborn(logits: F32, history: I32) -> F32:
    """Choose the likeliest token, but the second likeliest in every fifth place, which no model predicts."""
    if len(history) % 5 == 0:
        logits = logits.copy()
        logits[logits.argmax()] = -np.inf
    probs = np.zeros_like(logits)
    probs[logits.argmax()] = 1
    return probs


def write_with(drafter: str, policy: str, *, overlaps: bool) -> tuple[list[int], Writer, list[list[int]]]:
    """Write a text that repeats itself with changes; with a draft model, what that model would write with changes."""
    create: Any = load(DRAFTERS, drafter).create
    if drafter == "model":
        limits = replace(LIMITS, positions=100)  # passes must take some time
        target = Recording(open_target(tiny_bundle(), device="float_reference", limits=limits))
        made, processor = create(tiny_bundle(), device="float_reference"), stubborn
    else:
        limits, scripted = LIMITS, ScriptedTarget(REPEATING, Clock(), lambda rows: 1.0)
        target, made, processor = Recording(scripted), create(), greedy()
    decoder = open_writer(target, target.open(limits), processor, drafter=made, policy=policy, overlaps=overlaps)
    decoder.open_draft(limits)
    target.submitted.clear()
    tokens = decoder.write(np.array(REPEATING[:20], np.int32), limits)
    return list(tokens), decoder, target.submitted


@pytest.mark.thorough(sample=5)
@pytest.mark.parametrize("policy", names(POLICIES))
@pytest.mark.parametrize("drafter", names(DRAFTERS))
def test_greedy_text_is_the_same_with_overlap(monkeypatch: pytest.MonkeyPatch, drafter: str, policy: str) -> None:
    """Write to the end of the context; where nothing is learned from outcomes, even every tree is the same."""
    monkeypatch.setattr(autoregressive, "time", Clock())
    monkeypatch.setattr(auto, "time", Clock())
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)
    alone, without, trees = write_with(drafter, policy, overlaps=False)
    beside, decoder, others = write_with(drafter, policy, overlaps=True)
    assert alone == beside
    assert len(alone) == (100 if drafter == "model" else END) + 1 - 20
    assert without.rounds.ahead == 0
    rounds = decoder.rounds
    if drafter in ("none", "grammar"):  # without a grammar, neither guesses
        assert rounds.ahead == 0
    elif policy != "hardware":  # it depends on the clock
        assert rounds.ahead > rounds.ahead_used > 4
    if drafter in ("ngram", "copy", "model") and policy in ("chain", "dynamic"):
        assert trees == others


class _Table:
    """Draw by the last token, from the tables of test_distribution; it is its own drafter.

    ``came`` counts, in rounds with a waiting tree, how often each token followed each token.
    """

    taps: tuple[str, ...] = ()

    def __init__(self, waiting: list[TokenTree]) -> None:
        self.waiting, self.came = waiting, np.zeros((distribution.VOCAB,) * 2)

    def footprint(self, limits: Limits) -> dict[str, int]:
        return {}

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _Table:
        return self

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        return [distribution.GUESS[tree.tokens[node]] for node in nodes]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        if self.waiting and tree is self.waiting.pop():
            first = tree.tokens[outcome.path[1]] if len(outcome.path) > 1 else outcome.next_token
            self.came[tree.tokens[0], first] += 1


class _Chance(ScriptedTarget):
    """Return how likely each token is after the last one."""

    def __init__(self, positions: int) -> None:
        super().__init__([0] * positions, Clock(), lambda rows: 1.0)
        self.info = replace(self.info, vocab=distribution.VOCAB)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
        return FinishedTicket(
            [
                PassResult(logits=distribution.TARGET[item.ids[item.logits]], top=None, taps={}, seconds=1.0)
                for _, item in work
            ]
        )


def surprise(monkeypatch: pytest.MonkeyPatch, policy: str, keep: Callable[[TokenTree], bool]) -> float:
    """Return by how many standard deviations tokens of rounds with a waiting tree differ from the target.

    ``keep`` inspects a waiting tree before it is used.
    """
    waiting: list[TokenTree] = []

    class Kept(Ahead):
        def take(self, text: I32) -> TokenTree | None:
            tree = super().take(text)
            if tree is None or not keep(tree):
                return None
            waiting.append(tree)
            return tree

    monkeypatch.setattr(autoregressive, "Ahead", Kept)
    monkeypatch.setattr(autoregressive, "time", Clock())
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)
    limits = Limits(nodes=3, depth=1, positions=TRIALS)
    target, draft = _Chance(TRIALS), _Table(waiting)
    decoder = open_writer(
        target, target.open(limits), lambda row, history: row, drafter=draft, verifier="rejection", overlaps=True
    )
    decoder.policy = distribution.made(policy, np.random.default_rng(1))
    assert len(list(decoder.write(np.array([0], np.int32), limits, PositionRandom(seed=6)))) == TRIALS
    chances = distribution.TARGET.astype(np.float64)
    expected = draft.came.sum(axis=1)[:, None] * chances / chances.sum(axis=1, keepdims=True)
    assert draft.came.sum() > TRIALS / 30
    if draft.came[expected == 0].any():
        return math.inf
    cells = expected > 0
    freedom = int(cells.sum()) - distribution.VOCAB
    chi2 = float((((draft.came - expected) ** 2)[cells] / expected[cells]).sum())
    return (math.cbrt(chi2 / freedom) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["chain", "dynamic"])
def test_sampled_text_after_a_waiting_tree_has_the_targets_distribution(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    assert surprise(monkeypatch, policy, lambda tree: True) < distribution.SOUND


@pytest.mark.thorough
def test_a_choice_among_waiting_trees_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a waiting tree is used only if it holds the draft's likeliest token."""

    def looks_good(tree: TokenTree) -> bool:
        guess = tree.draft.get(0)  # None: the context has no room for a guess
        return guess is None or bool(tree.tokens[1] == guess.ids[guess.probs.argmax()])

    assert surprise(monkeypatch, "chain", looks_good) > distribution.CAUGHT


@pytest.mark.thorough
def test_sampled_text_with_one_seed_is_the_same_with_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that under ``match``, with a separate generator for the policy, the text draws like plain decoding."""
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)
    texts = []
    for overlaps in (False, True):
        target = _Chance(600)
        limits = replace(distribution.LIMITS, positions=600)
        decoder = open_writer(
            target, target.open(limits), lambda row, history: row, drafter=_Table([]), overlaps=overlaps
        )
        decoder.policy = distribution.made("chain", np.random.default_rng(7))
        texts.append(list(decoder.write(np.array([0], np.int32), limits, PositionRandom(seed=6))))
    assert texts[0] == texts[1]
