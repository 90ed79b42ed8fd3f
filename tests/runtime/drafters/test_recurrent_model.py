"""Test draft models with recurrent states, which cannot go back over a refused guess without a snapshot."""

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
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.drafters import model
from edgedec.runtime.drafters.model import create
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import Draft, Drafter, Limits, Pass, State, Target, TargetInfo, Ticket, TokenTree
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import load_target
from tests.runtime.drafters.support.bench_rounds import ask, run

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

Fresh = Callable[..., dict[int, float]]
VOCAB = 40
LIMITS = Limits(nodes=8, depth=5, positions=96)
MODELS: dict[str, dict[str, Any]] = {
    "mamba2": {
        **{"model_type": "mamba2", "hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2},
        **{"num_hidden_layers": 2, "expand": 2, "vocab_size": VOCAB, "max_position_embeddings": 128},
    },
    "hybrid": {
        **{"model_type": "qwen3_5_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "full_attention_interval": 2},
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8},
        **{"linear_value_head_dim": 8, "vocab_size": VOCAB, "max_position_embeddings": 128},
    },
}


@pytest.fixture(scope="module", params=MODELS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path: Path = tmp_path_factory.mktemp("draft") / str(request.param)
    write_random_bundle(path, MODELS[request.param], "int8")
    return Bundle.open(path)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list to which every pass of a draft adds its rows."""
    counts: list[int] = []

    def spied(bundle: Bundle, request: TargetRequest) -> Target:
        target = load_target(bundle, request)
        submit = target.submit

        def counting(work: Sequence[tuple[State, Pass]]) -> Ticket:
            counts.extend(len(item.ids) for _, item in work)
            return submit(work)

        target.submit = counting  # type: ignore[method-assign]
        return target

    monkeypatch.setattr(model, "load_target", spied)
    return counts


def open_draft(drafter: Drafter, bundle: Bundle, limits: Limits = LIMITS) -> Draft:
    info = TargetInfo(
        vocab=VOCAB,
        tokenizer_hash=bundle.tokenizer_hash,
        positions=4096,
        taps=(),
        masks="any",
        batch_invariant=True,
    )
    return drafter.open(info, limits, ObservedCost())


@pytest.fixture(scope="module")
def fresh(bundle: Bundle) -> Fresh:
    """Return a function from a text and a path to the guess of a draft that has seen nothing else."""
    drafter = create(bundle, threads=1)
    return lambda text, path=None: ask(open_draft(drafter, bundle), text, path)


def ran(rows: list[int]) -> list[int]:
    """Return the rows of the passes since the last call."""
    count = rows[:]
    rows.clear()
    return count


@pytest.mark.parametrize(("accepted", "again"), [(0, 1), (2, 3), (4, 1), (5, 2)])
def test_after_a_refusal_only_the_rows_after_the_text_run_again(
    bundle: Bundle, rows: list[int], fresh: Fresh, accepted: int, again: int
) -> None:
    """Count the accepted guesses and the token after them; if all committed guesses were right, nothing is undone."""
    draft = open_draft(create(bundle, threads=1), bundle)
    text = [token % 7 for token in range(40)]
    path = run(draft, text, LIMITS)
    assert ran(rows) == [8, 8, 8, 8, 8, 1, 1, 1, 1]
    wrong = next(token for token in range(VOCAB) if token not in path)
    text = [*text, *path[:accepted], wrong]
    guess = ask(draft, text)
    assert ran(rows) == [again]
    assert guess == fresh(text)


def test_no_guess_is_committed_before_there_is_a_snapshot_of_the_text(
    bundle: Bundle, rows: list[int], fresh: Fresh
) -> None:
    """Ask for a node below a guess first, so that a pass has the last rows of the text and guesses."""
    draft = open_draft(create(bundle, threads=1), bundle)
    text = [token % 7 for token in range(45)]
    for path in ([1, 2], [1, 2, 3]):
        assert ask(draft, text, path) == fresh(text, path)
    ran(rows)
    assert ask(draft, [*text, 9]) == fresh([*text, 9])
    assert ran(rows)[0] == 1


def test_refusals_in_round_after_round_never_run_the_text_again(bundle: Bundle, rows: list[int], fresh: Fresh) -> None:
    draft = open_draft(create(bundle, threads=1), bundle)
    text = [token % 7 for token in range(40)]
    ask(draft, text)
    ran(rows)
    for accepted in (0, 1, 3, 0, 2, 0, 0, 1):
        path = run(draft, text, LIMITS)
        wrong = next(token for token in range(VOCAB) if token not in path)
        text = [*text, *path[:accepted], wrong]
        assert sum(ran(rows)) <= 2 * LIMITS.depth
    assert ask(draft, text) == fresh(text)


def test_a_text_that_is_begun_again_goes_back_to_the_last_chunk_of_the_prompt(
    bundle: Bundle, rows: list[int], fresh: Fresh
) -> None:
    draft = open_draft(create(bundle, threads=1), bundle)
    prompt = text = [token % 7 for token in range(42)]
    for _ in range(6):  # the snapshots of rounds take no other's place
        path = run(draft, text, LIMITS)
        text = [*text, path[0], (path[1] + 1) % VOCAB]
    ran(rows)
    other = [*prompt[:-1], 9]
    assert ask(draft, other) == fresh(other)
    assert ran(rows)[0] == len(other) - 40  # rows after five chunks of 8


def test_texts_side_by_side_keep_their_own_snapshots(bundle: Bundle, rows: list[int], fresh: Fresh) -> None:
    limits = replace(LIMITS, cache_rows=3 * LIMITS.positions)
    drafter = create(bundle, threads=1)
    drafts = [open_draft(drafter, bundle, limits) for _ in range(3)]
    texts = [[(token * step) % 7 for token in range(40)] for step in (1, 2, 3)]
    for draft, text in zip(drafts, texts, strict=True):
        ask(draft, text)
    ran(rows)
    for _ in range(4):
        paths = [run(draft, text, limits) for draft, text in zip(drafts, texts, strict=True)]
        texts = [[*text, path[0], (path[1] + 1) % VOCAB] for text, path in zip(texts, paths, strict=True)]
        assert sum(ran(rows)) <= 3 * 2 * LIMITS.depth
    assert [ask(draft, text) for draft, text in zip(drafts, texts, strict=True)] == [fresh(text) for text in texts]


TOKENS = st.integers(0, 5)


@pytest.fixture(scope="module")
def draft(bundle: Bundle) -> Draft:
    return open_draft(create(bundle, threads=1), bundle)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_guess_depends_on_text_and_path_alone(draft: Draft, fresh: Fresh, data: Any) -> None:
    """Draw texts, trees and nodes of earlier calls, of one draft that sees the texts of all examples."""
    text = data.draw(st.lists(TOKENS, min_size=1, max_size=30))
    for _ in range(4):
        above = [data.draw(st.integers(0, node)) for node in range(data.draw(st.integers(0, LIMITS.nodes - 1)))]
        tokens = np.array([text[-1], *(data.draw(TOKENS) for _ in above)], np.int32)
        tree = TokenTree(tokens=tokens, parents=np.array([-1, *above], np.int32), draft={})
        for _ in range(data.draw(st.integers(1, 3))):
            nodes = data.draw(st.lists(st.integers(0, len(above)), min_size=1, max_size=4, unique=True))
            for node, guess in zip(
                nodes, draft.expand(np.array(text, np.int32), tree, np.array(nodes, np.int32)), strict=True
            ):
                path, at = list[int](), node
                while at:
                    path.insert(0, int(tokens[at]))
                    at = int(tree.parents[at])
                assert dict(zip(guess.ids.tolist(), guess.probs.tolist(), strict=True)) == fresh(text, path)
        cut = data.draw(st.sampled_from([len(text), len(text), len(text) // 2]))
        text = [*text[:cut], *tokens[1 : data.draw(st.integers(1, 4))].tolist(), data.draw(TOKENS)][:40]


def test_all_states_and_snapshots_are_planned(bundle: Bundle, rows: list[int]) -> None:
    drafter = create(bundle, threads=1)
    open_draft(drafter, bundle)
    assert drafter._loaded is not None
    slots = drafter._loaded[1]._arena.slots  # type: ignore[attr-defined]
    held = slots.buffer.memory.nbytes + slots.snapshots._memory.nbytes
    assert drafter.footprint(LIMITS)["draft_recurrent"] == held
