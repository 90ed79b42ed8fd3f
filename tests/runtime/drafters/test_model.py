"""Compare the draft model with fresh states, and with the softmax spelled out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.drafters import model
from edgedec.runtime.drafters.model import TOP, create
from edgedec.runtime.protocols import F32, Draft, Limits, Outcome, Pass, Sparse, State, Target, TargetInfo, TokenTree
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import load_target, open_target, target_module
from edgedec.runtime.targets._footprint import ONCE
from edgedec.runtime.targets._results import FinishedTicket
from tests.runtime.drafters.support.bench_rounds import chain, run

VOCAB, SIZE, CONTEXT = 40, 37, 64  # the last three ids are padding
LIMITS = Limits(nodes=8, depth=5, positions=48)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
}


def sized(bundle: Bundle, size: int) -> Bundle:
    """Return the bundle with a tokenizer of ``size`` ids."""
    return replace(bundle, manifest=replace(bundle.manifest, tokens=replace(bundle.tokens, size=size)))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path: Path = tmp_path_factory.mktemp("draft") / "bundle"
    write_random_bundle(path, CONFIG, "int8")
    return sized(Bundle.open(path), SIZE)


def target_info(bundle: Bundle, vocab: int = VOCAB) -> TargetInfo:
    return TargetInfo(
        vocab=vocab,
        tokenizer_hash=bundle.tokenizer_hash,
        positions=4096,
        taps=(),
        masks="any",
        batch_invariant=True,
    )


def slow(bundle: Bundle, tokens: Sequence[int], size: int = SIZE) -> dict[int, float]:
    """Return the likeliest tokens after ``tokens``, in one pass of the reference."""
    limits = Limits(nodes=len(tokens), depth=1, positions=len(tokens))
    target = open_target(bundle, device="float_reference", limits=limits)
    ids = np.array(tokens, np.int32)
    work = Pass(ids=ids, positions=np.arange(len(ids), dtype=np.int32))
    (result,) = target.submit([(target.open(limits), work)]).result()
    logits = result.logits[0, :size].astype(np.float64)
    best = sorted(range(size), key=lambda token: -logits[token])[:TOP]
    weights = {token: np.exp(logits[token] - logits[best[0]]) for token in best}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def said(guess: Sparse) -> dict[int, float]:
    assert guess.ids.dtype == np.int32
    assert guess.probs.dtype == np.float32
    assert np.all(np.diff(guess.probs) <= 0)
    assert not len(guess.ids) or guess.probs.sum() == pytest.approx(1, abs=1e-6)
    return dict(zip(guess.ids.tolist(), guess.probs.tolist(), strict=True))


def branching(text: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> TokenTree:
    """Draw nodes after the root; ``parents`` has the form of a tree's."""
    return TokenTree(
        tokens=np.array([text[-1], *tokens], np.int32), parents=np.array([-1, *parents], np.int32), draft={}
    )


def expand(draft: Draft, text: Sequence[int], tree: TokenTree, *nodes: int) -> list[dict[int, float]]:
    return [said(guess) for guess in draft.expand(np.array(text, np.int32), tree, np.array(nodes, np.int32))]


def path_of(tree: TokenTree, node: int) -> list[int]:
    path = []
    while node:
        path.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path[::-1]


class Spy:
    """Wrap a target to count rows, to take its results back as soon as it may, and to fail on demand."""

    def __init__(self, target: Target) -> None:
        self.target, self.info = target, target.info
        self.rows: list[int] = []
        self.spoil: Callable[[F32], None] = lambda logits: None
        self.before: F32 | None = None

    def footprint(self, limits: Limits) -> Any:
        return self.target.footprint(limits)

    def open(self, limits: Limits) -> State:
        return self.target.open(limits)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
        (result,) = self.target.submit(work).result()
        if self.before is not None:
            self.before[...] = np.nan
        self.before = result.logits
        self.rows.append(len(work[0][1].ids))
        self.spoil(result.logits)
        return FinishedTicket([result])


@pytest.fixture
def spies(monkeypatch: pytest.MonkeyPatch) -> list[Spy]:
    """Return the list to which every target that is loaded from now on adds its spy."""
    spies_: list[Spy] = []

    def spied(bundle: Bundle, request: TargetRequest) -> Spy:
        spies_.append(Spy(load_target(bundle, request)))
        return spies_[-1]

    monkeypatch.setattr(model, "load_target", spied)
    return spies_


def ran(spy: Spy) -> list[int]:
    """Return the rows of the passes since the last call."""
    rows = spy.rows[:]
    spy.rows.clear()
    return rows


@pytest.fixture
def draft(bundle: Bundle, spies: list[Spy]) -> Draft:
    return create(bundle, device="float_reference").open(target_info(bundle), LIMITS, ObservedCost())


def test_guesses_follow_the_softmax(bundle: Bundle, draft: Draft) -> None:
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    tree = branching(text, [7, 9, 3, 2], [0, 0, 1, 2])
    for nodes in ([0], [1, 2], [4, 3], [2]):
        for node, guess in zip(nodes, expand(draft, text, tree, *nodes), strict=True):
            assert guess == pytest.approx(slow(bundle, [*text, *path_of(tree, node)]), rel=1e-4)
            assert len(guess) == TOP


TOKENS = st.integers(0, 5)


@pytest.mark.thorough
@settings(max_examples=25)
@pytest.mark.parametrize("device", ["float_reference", "cpu"])
@given(data=st.data())
def test_a_guess_depends_on_text_and_path_alone(device: str, data: Any, opened: dict[str, Any]) -> None:
    """Draw texts, trees and nodes of earlier calls."""
    drafter, info, exact = opened[device]
    draft = drafter.open(info, LIMITS, ObservedCost())
    text = data.draw(st.lists(TOKENS, min_size=1, max_size=20))
    for _ in range(4):
        above = [data.draw(st.integers(0, node)) for node in range(data.draw(st.integers(0, LIMITS.nodes - 1)))]
        tree = branching(text, [data.draw(TOKENS) for _ in above], above)
        for _ in range(data.draw(st.integers(1, 3))):  # calls of a round see a growing tree
            count = data.draw(st.integers(1, len(tree.tokens)))
            part = TokenTree(tokens=tree.tokens[:count], parents=tree.parents[:count], draft={})
            nodes = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4, unique=True))
            for node, guess in zip(nodes, expand(draft, text, part, *nodes), strict=True):
                path = path_of(tree, node)
                (fresh,) = expand(drafter.open(info, LIMITS, ObservedCost()), text, chain(text, path), len(path))
                if exact:
                    assert guess == fresh
                else:
                    assert all(abs(guess.get(token, 0) - fresh.get(token, 0)) < 0.02 for token in guess | fresh)
        draft.observe(tree, Outcome(path=np.zeros(1, np.int32), next_token=0))
        # The next round's text: some node was accepted, or it is a different text.
        path = path_of(tree, data.draw(st.integers(0, len(tree.tokens) - 1)))
        cut = data.draw(st.sampled_from([len(text), len(text), len(text) // 2]))
        text = [*text[:cut], *path, data.draw(TOKENS)][:40]


@pytest.fixture(scope="module")
def opened(bundle: Bundle) -> dict[str, Any]:
    """Return by device: a drafter, the target's facts, and whether equal texts must give equal bits."""
    by_device = {}
    for device in ("float_reference", "cpu"):
        exact = open_target(bundle, device=device, limits=LIMITS, threads=1).info.batch_invariant
        by_device[device] = create(bundle, device=device, threads=1), target_info(bundle), exact
    return by_device


def test_a_prompt_runs_in_chunks_and_a_chain_row_by_row(draft: Draft, spies: list[Spy]) -> None:
    text = [token % SIZE for token in range(30)]
    path = run(draft, text, LIMITS)
    assert len(path) == LIMITS.depth
    assert ran(spies[0]) == [8, 8, 8, 6, *[1] * (LIMITS.depth - 1)]


@pytest.mark.parametrize(("accepted", "rows"), [(0, 1), (3, 1), (5, 2)])
def test_accepted_rows_of_a_chain_stay_and_rejected_ones_are_dropped(
    bundle: Bundle, draft: Draft, spies: list[Spy], accepted: int, rows: int
) -> None:
    text = [1, 2, 3]
    path = run(draft, text, LIMITS)
    ran(spies[0])
    text = [*text, *path[:accepted], 11]
    (guess,) = expand(draft, text, chain(text, []), 0)
    assert ran(spies[0]) == [rows]  # the last token of a path that was accepted whole never ran
    assert guess == pytest.approx(slow(bundle, text), rel=1e-4)


def test_only_requested_nodes_of_a_tree_run_and_the_accepted_path_stays(
    bundle: Bundle, draft: Draft, spies: list[Spy]
) -> None:
    text = [1, 2, 3]
    tree = branching(text, [7, 9, 3, 2, 4, 6, 5], [0, 0, 1, 2, 2, 4, 4])
    expand(draft, text, tree, 0)
    expand(draft, text, tree, 1, 2)
    expand(draft, text, tree, 3, 4)
    assert ran(spies[0]) == [3, 2, 4]
    text = [*text, 9, 2, 6, 8]  # nodes 2, 4 and 6 were accepted; 6 never ran
    (guess,) = expand(draft, text, chain(text, []), 0)
    assert ran(spies[0]) == [2]
    assert guess == pytest.approx(slow(bundle, text), rel=1e-4)


def test_rows_are_taken_from_a_call_once(bundle: Bundle, draft: Draft) -> None:
    """Check it also if the next call fails."""
    text, tree = [1, 2, 3], branching([3], [7, 7, 9], [0, 1, 1])
    expand(draft, text, tree, 0)
    expand(draft, text, tree, 2, 3)
    assert expand(draft, [*text, 7, -1], chain([-1], []), 0) == [{}]
    (guess,) = expand(draft, [*text, 7, 7, 9, 8], chain([8], []), 0)
    assert guess == pytest.approx(slow(bundle, [*text, 7, 7, 9, 8]), rel=1e-4)


def test_a_stem_runs_once_below_branches(draft: Draft, spies: list[Spy]) -> None:
    text = [1, 2, 3]
    tree = branching(text, [4, 5, 6, 7, 8, 9], [0, 1, 2, 2, 3, 4])
    for nodes in ([0], [1], [2], [3, 4], [5, 6]):
        expand(draft, text, tree, *nodes)
    assert ran(spies[0]) == [3, 1, 1, 2, 4]


def test_a_shorter_text_keeps_its_shared_rows(bundle: Bundle, draft: Draft, spies: list[Spy]) -> None:
    long = [1, 2, 3, 4, 5, 6, 7]
    expand(draft, long, chain(long, []), 0)
    ran(spies[0])
    for text, rows in (([1, 2, 3], 1), ([1, 2, 3, 9, 5, 6], 3), ([1, 2], 1), ([8], 1), ([8], 1)):
        (guess,) = expand(draft, text, chain(text, []), 0)
        assert guess == pytest.approx(slow(bundle, text), rel=1e-4)
        assert ran(spies[0]) == [rows]


def test_nothing_runs_if_no_node_is_requested(draft: Draft, spies: list[Spy]) -> None:
    assert expand(draft, [1, 2], chain([1, 2], [])) == []
    assert expand(draft, [1, 2], chain([1, 2], [0] * 7), 6, 7) == [{}, {}]  # beyond the depth limit
    assert ran(spies[0]) == []


@pytest.mark.parametrize("invalid_id", [-1, SIZE, VOCAB, 2**31 - 1])
def test_an_id_outside_of_the_tokenizer_gets_no_guess(
    bundle: Bundle, draft: Draft, spies: list[Spy], invalid_id: int
) -> None:
    for text in ([1, invalid_id], [invalid_id, 1], [1, 2, 3, invalid_id, 4]):
        assert expand(draft, text, chain(text, [2]), 0, 1) == [{}, {}]
    assert ran(spies[0]) == []
    tree = branching([1, 2], [invalid_id, 4, 5, 6], [0, 0, 1, 2])
    guesses = expand(draft, [1, 2], tree, 0, 1, 2, 3, 4)
    assert [len(guess) for guess in guesses] == [TOP, 0, TOP, 0, TOP]
    assert guesses[4] == pytest.approx(slow(bundle, [1, 2, 4, 6]), rel=1e-4)


@pytest.mark.parametrize(("target_vocab", "ids"), [(VOCAB + 20, SIZE), (SIZE, SIZE), (SIZE - 5, SIZE - 5), (10, 10)])
def test_vocabularies_may_be_padded_differently(bundle: Bundle, target_vocab: int, ids: int) -> None:
    draft = create(bundle, device="float_reference").open(target_info(bundle, target_vocab), LIMITS, ObservedCost())
    for token in range(6):
        (guess,) = expand(draft, [token], chain([token], []), 0)
        assert guess == pytest.approx(slow(bundle, [token], ids), rel=1e-4)
        assert max(guess) < ids
    assert expand(draft, [ids], chain([ids], []), 0) == [{}]


@pytest.mark.parametrize(("positions", "end"), [(48, 48), (CONTEXT, CONTEXT), (200, CONTEXT)])
def test_the_shorter_context_ends_the_guesses(bundle: Bundle, positions: int, end: int) -> None:
    limits = replace(LIMITS, positions=positions)
    draft = create(bundle, device="float_reference").open(target_info(bundle), limits, ObservedCost())
    text = [token % 7 for token in range(end - 2)]
    tree = branching(text, [1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 1, 1, 2, 4])
    guesses = expand(draft, text, tree, *range(8))
    assert [len(guess) for guess in guesses] == [TOP] * 7 + [0]  # the last one stands at ``end``
    assert guesses[6] == pytest.approx(slow(bundle, [*text, 2, 6]), rel=1e-4)
    for addition in ([1, 2, 3], [1] * 100):
        assert expand(draft, [*text, *addition], chain([*text, *addition], [1]), 0, 1) == [{}, {}]
    assert expand(draft, text[:9], chain(text[:9], []), 0)[0] == pytest.approx(slow(bundle, text[:9]), rel=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error(bundle: Bundle, draft: Draft, spies: list[Spy], value: float) -> None:
    def spoil(logits: F32) -> None:
        logits[0, 5] = value

    spies[0].spoil = spoil
    with pytest.raises(DeviceError, match=rf"{bundle.path.name} computed a logit that is {value}; .*--spec-type"):
        expand(draft, [1, 2], chain([1, 2], []), 0)
    spies[0].spoil = lambda logits: None
    assert expand(draft, [1, 2], chain([1, 2], []), 0)[0] == pytest.approx(slow(bundle, [1, 2]), rel=1e-4)


def test_an_impossible_token_is_not_proposed(draft: Draft, spies: list[Spy]) -> None:
    def spoil(logits: F32) -> None:
        logits[:, 4:] = -np.inf

    spies[0].spoil = spoil
    (guess,) = expand(draft, [1, 2], chain([1, 2], []), 0)
    assert sorted(guess) == [0, 1, 2, 3]


def test_without_a_bundle_the_option_is_named() -> None:
    with pytest.raises(UsageError, match=r"-md/--model-draft"):
        create()


def test_another_tokenizer_is_refused_before_anything_is_loaded(bundle: Bundle, spies: list[Spy]) -> None:
    info = replace(target_info(bundle), tokenizer_hash="0123456789abcdef" * 4)
    with pytest.raises(UsageError, match=rf"{bundle.path}.*{bundle.tokenizer_hash[:12]}, .*0123456789ab, .*-md"):
        create(bundle, device="float_reference").open(info, LIMITS, ObservedCost())
    assert spies == []


def test_weights_are_loaded_once_for_drafts_with_separate_caches(bundle: Bundle, spies: list[Spy]) -> None:
    drafter = create(bundle, device="float_reference")
    first, second = (drafter.open(target_info(bundle), LIMITS, ObservedCost()) for _ in range(2))
    assert len(spies) == 1
    for text in ([1, 2], [1, 2, 3]):
        for draft, last in ((first, 5), (second, 6)):
            (guess,) = expand(draft, [*text, last], chain([*text, last], []), 0)
            assert guess == pytest.approx(slow(bundle, [*text, last]), rel=1e-4)
    drafter.open(target_info(bundle), replace(LIMITS, nodes=16), ObservedCost())
    assert len(spies) == 2


@pytest.mark.parametrize("device", ["float_reference", "cpu"])
def test_the_footprint_is_that_of_the_draft_itemized_from_the_manifest(
    bundle: Bundle, spies: list[Spy], device: str
) -> None:
    items = create(bundle, device=device).footprint(LIMITS)
    assert all(name.startswith("draft_") for name in items)
    assert all(isinstance(size, int) and size > 0 for name, size in items.items() if name != "draft_load_transient")
    assert not {"draft_onnx_runtime", "draft_self_test"} & set(items)  # the target's serve both
    # A draft of a few MiB runs on one thread.
    limits = replace(LIMITS, positions=LIMITS.positions + LIMITS.nodes)
    own = target_module(device).footprint(
        bundle, TargetRequest(limits=limits, device=device, threads=int(device == "cpu"))
    )
    own = {name: size for name, size in own.items() if name not in ONCE}
    assert {name: items[f"draft_{name}"] for name in own} == own
    longer = create(bundle, device=device).footprint(replace(LIMITS, positions=10_000))
    whole = target_module(device).footprint(
        bundle, TargetRequest(limits=replace(LIMITS, positions=CONTEXT + LIMITS.nodes), device=device)
    )
    assert longer["draft_kv"] == whole["kv"] > items["draft_kv"]
    assert spies == []


@pytest.mark.parametrize("device", ["float_reference", "cpu"])
@pytest.mark.parametrize(("bits", "own"), [(None, None), (64, None), (32, None), (16, 16), (8, 8), (4, 8)])
def test_keys_and_values_have_the_target_s_bits_if_those_are_fewer_but_at_least_8(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, device: str, bits: int | None, own: int | None
) -> None:
    module, opened = target_module(device), []
    if own == module.kv_choices(device, bundle)[0]:
        own = None  # the default

    def spied(bundle: Bundle, request: TargetRequest) -> Target:
        opened.append(request.kv_bits)
        return load_target(bundle, request)

    monkeypatch.setattr(model, "load_target", spied)
    drafter = create(bundle, device=device, kv_bits=bits)
    limits = replace(LIMITS, positions=LIMITS.positions + LIMITS.nodes)
    planned = module.footprint(bundle, TargetRequest(limits=limits, device=device, threads=1, kv_bits=own))["kv"]
    assert drafter.footprint(LIMITS)["draft_kv"] == planned
    draft = drafter.open(target_info(bundle), LIMITS, ObservedCost())
    assert opened == [own]
    assert expand(draft, [1, 2, 3], chain([1, 2, 3], []), 0)[0]


@settings(max_examples=50)
@given(width=st.integers(1, 20_000), seed=st.integers(0, 2**32 - 1), nan=st.booleans())
def test_the_largest_values_of_any_row_are_found(width: int, seed: int, nan: bool) -> None:
    rng = np.random.default_rng(seed)
    row = rng.standard_normal(width).astype(np.float32)
    if rng.random() < 0.5:
        row[rng.integers(0, width, 8)] += 9  # at any place
        row[-1] += 9
    if nan:
        row[rng.integers(0, width)] = np.nan
    count = min(TOP, width)
    largest = model._largest(row, count)
    assert len(set(largest.tolist())) == count
    assert np.array_equal(np.sort(row[largest]), np.sort(row)[-count:], equal_nan=True)
