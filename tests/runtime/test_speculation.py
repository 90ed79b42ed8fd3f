"""Test sessions that speculate: answers that end in the middle of accepted guesses, and invalid requests.

The drafter knows what the model will write, so that all guesses are accepted, in runs of eight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.errors import BudgetError, DeviceError, EdgedecError, UsageError
from edgedec.plugins import names
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime import trees
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.planning.speculation import (
    POLICIES,
    VERIFIERS,
    SpecConfig,
    create_policy,
    create_verifier,
    verifier_traits,
)
from edgedec.runtime.protocols import I32, Pass, Request, State, Target
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.session import open_scheduler
from edgedec.runtime.session import session as session_module
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets._results import FinishedTicket
from tests.runtime.support.fake_world import Clock, ScriptedDraft, Willing

GREEDY = SamplingConfig(temperature=0)
CONTEXT = 160
RUN = 8  # accepted guesses of a round
PROMPT = "Once upon a time"
NEXT = " The next day"


@cache
def fresh(prompt: tuple[int, ...], tokens: int) -> list[int]:
    """Return what a session of its own writes without speculation."""
    with Session.open(demo.bundle_path(), threads=1, ctx_size=CONTEXT) as plain:
        answer = plain.generate(np.array(prompt, np.int32), n_predict=tokens, sampling=GREEDY, ignore_eos=True)
    assert len(answer.tokens) == tokens
    return answer.tokens


@dataclass
class KnownAnswer:
    """Hold a session and the text that its drafter copies."""

    session: Session
    text: list[int] = field(default_factory=list)

    def expect(self, prompt: I32, tokens: int = 48) -> list[int]:
        """Tell the drafter what follows ``prompt``, and return it."""
        expected = fresh(tuple(prompt.tolist()), tokens)
        self.text[:] = [*prompt.tolist(), *expected]
        return expected

    def check_next(self, prompt: I32, answer: Answer) -> None:
        """Continue the conversation from this answer, and compare with a session that does not know it."""
        added = self.session.tokenizer.encode(NEXT, add_special=False)
        longer = np.concatenate([prompt, np.array(answer.tokens, np.int32), added])
        expected = self.expect(longer, 20)
        shared = self.session.decoder.shared_prefix(longer)
        assert shared >= len(prompt) - 1
        assert self.session.generate(longer, n_predict=20, sampling=GREEDY, ignore_eos=True).tokens == expected


@pytest.fixture(scope="module")
def known() -> Iterator[KnownAnswer]:
    text: list[int] = []
    drafter = ScriptedDraft(lambda at: text[at] if at < len(text) else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoregressive, "Adaptive", Willing)
        patch.setattr(open_scheduler, "create_drafter", lambda *_, **__: drafter)
        spec = SpecConfig(drafter="ngram", draft_max=RUN)
        with Session.open(demo.bundle_path(), threads=1, ctx_size=CONTEXT, spec=spec) as session:
            yield KnownAnswer(session, text)


@pytest.fixture
def prompt(known: KnownAnswer) -> I32:
    return known.session.encode(PROMPT)


# Ends of an answer


@pytest.mark.thorough
@pytest.mark.parametrize("tokens", [*range(1, 2 * RUN + 4), 40])
def test_the_limit_may_end_an_answer_within_a_run(known: KnownAnswer, prompt: I32, tokens: int) -> None:
    expected = known.expect(prompt)
    printed: list[str] = []
    answer = known.session.generate(prompt, n_predict=tokens, sampling=GREEDY, on_text=printed.append)
    assert answer.tokens == expected[:tokens]
    assert answer.stop_reason == "limit"
    assert answer.text == "".join(printed)
    # A round is eight guesses and the token after them.
    assert answer.drafted == [at % (RUN + 1) < RUN for at in range(tokens)]
    assert answer.timings.rounds.count == -(-tokens // (RUN + 1))
    known.check_next(prompt, answer)


def first_places(tokens: Sequence[int], end: int) -> list[int]:
    return [at for at in range(end) if tokens.index(tokens[at]) == at]


@pytest.mark.thorough
@pytest.mark.parametrize("place", range(10))
def test_an_end_token_may_end_an_answer_within_a_run(
    known: KnownAnswer, prompt: I32, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = known.expect(prompt)
    at = first_places(expected, 2 * RUN)[place]
    bundle = known.session.bundle
    ends = replace(bundle.tokens, eos=(expected[at],))
    monkeypatch.setattr(known.session, "bundle", replace(bundle, manifest=replace(bundle.manifest, tokens=ends)))
    printed: list[str] = []
    answer = known.session.generate(prompt, n_predict=40, sampling=GREEDY, on_text=printed.append)
    assert answer.stop_reason == "eos"
    assert answer.tokens == expected[: at + 1]
    before = known.session.generate(prompt, n_predict=at, sampling=GREEDY, ignore_eos=True)
    assert "".join(printed) == answer.text == before.text  # an end token has no text
    monkeypatch.undo()
    known.check_next(prompt, answer)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(("first", "last"), [(1, 7), (8, 13), (15, 20), (23, 30), (24, 25), (27, 35)])
def test_a_stop_text_may_end_an_answer_within_a_run(known: KnownAnswer, prompt: I32, first: int, last: int) -> None:
    """The text is cut at the first place of its own characters ``first`` to ``last``, which are seldom whole tokens."""
    expected = known.expect(prompt)
    whole = known.session.generate(prompt, n_predict=40, sampling=GREEDY).text
    stop = whole[first:last]
    printed: list[str] = []
    answer = known.session.generate(prompt, n_predict=40, sampling=GREEDY, stop=[stop], on_text=printed.append)
    assert answer.stop_reason == "stop"
    assert answer.text == "".join(printed) == whole[: whole.index(stop)]
    assert answer.tokens == expected[: len(answer.tokens)]
    assert len(answer.tokens) < 24
    known.check_next(prompt, answer)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("tokens", [1, 4, RUN, RUN + 1, RUN + 3])
def test_an_interruption_may_end_an_answer_within_a_run(known: KnownAnswer, prompt: I32, tokens: int) -> None:
    expected = known.expect(prompt)
    pieces: list[str] = []

    def interrupted() -> bool:
        pieces.append("asked")
        return len(pieces) > tokens  # the first call is before the prompt

    answer = known.session.generate(prompt[:], n_predict=40, sampling=GREEDY, interrupted=interrupted)
    assert answer.stop_reason == "interrupted"
    assert answer.tokens == expected[: len(answer.tokens)]
    assert 1 <= len(answer.tokens) <= tokens + 1
    known.check_next(prompt, answer)


@pytest.mark.thorough
def test_the_context_may_end_an_answer_within_a_run(known: KnownAnswer) -> None:
    """Fill the last rows with guesses that are accepted; the very last token needs no row."""
    for length in (CONTEXT - 12, CONTEXT - 9, CONTEXT - 8, CONTEXT - 5, CONTEXT - 1):
        ids = np.array([0, *np.arange(length - 1) % 50 + 300], np.int32)
        expected = known.expect(ids, CONTEXT + 1 - length)
        answer = known.session.generate(ids, sampling=GREEDY, ignore_eos=True)
        assert (answer.tokens, answer.stop_reason) == (expected, "context")
        assert known.session.state.length == CONTEXT


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("tokens", range(1, RUN + 3))
def test_a_generator_may_be_closed_within_a_run(known: KnownAnswer, prompt: I32, tokens: int) -> None:
    expected, decoder = known.expect(prompt), known.session.decoder
    request = Request(
        prompt=prompt,
        limits=known.session.run.limits,
        processor=Sampler(GREEDY, known.session.bundle.tokens.size).distribution,
        policy=create_policy("chain"),
        verifier=create_verifier("match", 0),
        random=PositionRandom(seed=0),
    )
    generator: Any = decoder.generate(request)
    tokens_read = [next(generator).id for _ in range(tokens)]
    generator.close()
    assert tokens_read == expected[:tokens]
    assert len(decoder.cached) == known.session.state.length
    known.check_next(prompt, Answer(tokens=tokens_read))


# Failures


class Broken:
    """Return NaN logits in one row of one pass."""

    def __init__(self, target: Target, number: int, row: int) -> None:
        self.target, self.info, self.left, self.row = target, target.info, number, row

    def submit(self, work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
        (result,) = self.target.submit(work).result()
        self.left -= 1
        logits = result.logits.copy()
        if self.left == 0:
            logits[self.row, 7] = np.nan
        return FinishedTicket([replace(result, logits=logits)])


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("row", [0, 1, 5, RUN])
def test_nan_logits_are_an_error_and_the_next_answer_is_right(
    known: KnownAnswer, prompt: I32, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = known.session
    expected = known.expect(prompt)
    shorter = session.generate(prompt[:2], n_predict=1, sampling=GREEDY)  # one pass runs the prompt again
    assert len(shorter.tokens) == 1
    printed: list[str] = []
    monkeypatch.setattr(session.scheduler.engine, "target", Broken(session.target, 3, row))
    with pytest.raises(DeviceError, match=r"the logit of token 7 is nan: .*edgedec doctor.*--device"):
        session.generate(prompt, n_predict=40, sampling=GREEDY, on_text=printed.append)
    monkeypatch.undo()
    assert len(session.decoder.cached) == session.state.length
    assert session.generate(prompt, n_predict=40, sampling=GREEDY).text.startswith("".join(printed))
    answer = session.generate(prompt, n_predict=40, sampling=GREEDY)
    assert answer.tokens == expected[:40]
    known.check_next(prompt, answer)


def test_invalid_prompts_are_refused_and_change_nothing(known: KnownAnswer, prompt: I32) -> None:
    expected = known.expect(prompt)
    before = known.session.generate(prompt, n_predict=12, sampling=GREEDY)
    for length in (CONTEXT, CONTEXT + 1):
        message = (
            rf"the prompt has {length} tokens, the context holds {CONTEXT}, .* give --ctx-size {length + 1} or more"
        )
        with pytest.raises(EdgedecError, match=message):
            known.session.generate(np.ones(length, np.int32), sampling=GREEDY)
    with pytest.raises(EdgedecError, match="the prompt has no tokens"):
        known.session.generate(np.ones(0, np.int32), sampling=GREEDY)
    with pytest.raises(UsageError, match="the prompt is empty; give some text with -p"):
        known.session.encode("")
    assert before.tokens == expected[:12]
    known.check_next(prompt, before)


# Requirements of a draft model


def write_bundle(path: Path, **change: int) -> Path:
    write_random_bundle(path, {**SHAPES["demo"], "num_hidden_layers": 1, **change}, "int8", seed=len(change))
    return path


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 1000},  # ids of only one of the two are never guessed
        {"vocab_size": 3000},
        {"max_position_embeddings": 40},  # a shorter context: nothing is guessed past its end
    ],
    ids=["smaller vocabulary", "larger vocabulary", "shorter context"],
)
def test_a_draft_of_another_size_only_guesses_less(
    tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)
    target, draft = write_bundle(tmp_path / "target"), write_bundle(tmp_path / "draft", **change)
    ids = np.arange(5, 25, dtype=np.int32) * 80 + 3
    texts = []
    for spec in (SpecConfig(), SpecConfig(drafter="model", draft=draft)):
        with Session.open(target, threads=1, ctx_size=64, spec=spec) as session:
            answer = session.generate(ids, sampling=GREEDY)
            texts.append(answer.tokens)
    assert texts[0] == texts[1]
    assert answer.timings.rounds.drafted > 0
    assert answer.stop_reason == "context"


def test_a_draft_of_another_tokenizer_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("something was loaded")

    monkeypatch.setattr(session_module, "load_target", load)
    stranger, threads = write_bundle(tmp_path / "stranger"), threading.active_count()
    for drafter in ("model", "auto"):
        with pytest.raises(
            UsageError,
            match=rf"the draft model {stranger} has the tokenizer [0-9a-f]{{12}}, .* has [0-9a-f]{{12}}: .*-md",
        ):
            Session.open(demo.bundle_path(), spec=SpecConfig(drafter=drafter, draft=stranger))
    assert threading.active_count() == threads  # the meter's thread is gone


def test_a_budget_below_the_minimum_is_refused_with_the_bytes_of_speculation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("something was loaded")

    monkeypatch.setattr(session_module, "load_target", load)
    draft, threads = demo.bundle_path("demo-draft"), threading.active_count()
    with pytest.raises(
        BudgetError, match=r"(?s)the memory budget is 5.0 MiB:.* weights_pinned\n.*--memory-budget \d+MiB"
    ):
        Session.open(demo.bundle_path(), budget_bytes=5 << 20, spec=SpecConfig(drafter="model", draft=draft))
    assert threading.active_count() == threads


class NoDrafter:
    taps = ()

    def __repr__(self) -> str:
        return "a NoDrafter"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drafter": "guess"}, "--spec-type must be one of auto, copy, grammar, model, .*, not 'guess'"),
        ({"policy": "bush"}, "--spec-tree must be one of chain, .*, not 'bush'"),
        ({"draft_max": 0}, "--draft-max must be 1 to 63, not 0"),
        ({"draft_max": 64}, "--draft-max must be 1 to 63, not 64"),
        ({"tree_nodes": 1}, "--tree-nodes must be 2 to 64, or 0, not 1"),
        (
            {"tree_nodes": 65},
            "--tree-nodes must be 2 to 64, or 0, not 65: a tree is one pass, and a pass has at most 64 rows",
        ),
        ({"verifier": "yes"}, "--verifier must be one of block, greedy, match, .*, not 'yes'"),
        (
            {"drafter": "ngram", "policy": "static", "verifier": "block"},
            "--verifier block needs --spec-tree chain, not static: .* use --verifier traversal for trees",
        ),
        (
            {"drafter": "ngram", "policy": "dynamic", "verifier": "transport"},
            "--verifier transport needs --spec-tree chain or static or delayed, not dynamic: the number of children",
        ),
        ({"drafter": "ngram", "draft": Path("d")}, "-md is for --spec-type model or auto, not ngram"),
        (
            {"drafter": NoDrafter()},
            "the drafter a NoDrafter has no footprint and no open; a drafter is a name, one of auto",
        ),
        ({"drafter": "model"}, "--spec-type model needs a draft model: give its bundle with -md"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SpecConfig(**settings)


@pytest.mark.parametrize("drafter", ["none", "ngram"])
@pytest.mark.parametrize("verifier", names(VERIFIERS))
def test_the_default_tree_is_one_that_the_verifier_takes(drafter: str, verifier: str) -> None:
    spec, traits = SpecConfig(drafter=drafter, verifier=verifier), verifier_traits(verifier)
    assert spec.policy == ""
    for device, size in (("cpu", 32 << 20), ("cpu", (32 << 20) - 1), ("gpu", 0)):
        exact = verifier in ("match", "greedy") and (device, size) != ("cpu", (32 << 20) - 1)
        policy = trees.default_tree(traits.lossless, device, size)
        assert policy == ("dynamic" if exact else "chain")
        assert not traits.policies or policy in traits.policies
        assert replace(spec, policy=policy).policy == policy


def test_a_policy_of_one_path_has_no_more_nodes_than_a_path() -> None:
    sizes = {
        name: SpecConfig(drafter="ngram", policy=name, draft_max=5, tree_nodes=32).nodes for name in names(POLICIES)
    }
    assert sizes == {name: 6 if name == "chain" else 32 for name in names(POLICIES)}
    assert SpecConfig(drafter="ngram", policy="chain", draft_max=5, tree_nodes=4).nodes == 4


def test_the_default_tree_goes_with_every_decoder() -> None:
    for policy in ("", trees.DEFAULT):
        assert SpecConfig(drafter="model", draft="d", policy=policy, decoder="switch").policy == policy
    with pytest.raises(UsageError, match="--decoder switch makes no guesses, so --spec-tree chain has no use"):
        SpecConfig(drafter="model", draft="d", policy="chain", decoder="switch")


# Timings


class Ticking(Clock):
    """Advance by a millisecond at each read."""

    def perf_counter(self) -> float:
        self.go(1e-3)
        return self.now


def answers(
    monkeypatch: pytest.MonkeyPatch, guess: Callable[[list[int], int], int], seconds: float
) -> Iterator[dict[str, Any]]:
    """Return the timings of three answers, with a drafter whose guesses take ``seconds`` each."""
    clock, text = Ticking(), list[int]()
    drafter = ScriptedDraft(lambda at: guess(text, at) % 2048 if at < len(text) else None, clock=clock, seconds=seconds)
    monkeypatch.setattr(autoregressive, "time", clock)
    monkeypatch.setattr(autoregressive, "Adaptive", Adaptive)
    monkeypatch.setattr(ObservedCost, "seconds", lambda self, nodes, past: 1e-3 * (1 + 0.1 * (nodes - 1)))
    monkeypatch.setattr(open_scheduler, "create_drafter", lambda *_, **__: drafter)
    with Session.open(demo.bundle_path(), threads=1, ctx_size=CONTEXT, spec=SpecConfig(drafter="copy")) as session:
        prompt = session.encode(PROMPT)
        text += [*prompt.tolist(), *fresh(tuple(prompt.tolist()), 100)]
        for _ in range(3):
            answer = session.generate(prompt, n_predict=96, sampling=GREEDY, ignore_eos=True)
            assert answer.tokens == text[len(prompt) :][:96]
            timings = answer.timings.as_json()
            assert sum(answer.drafted) <= timings["draft_n_accepted"] == sum(timings["accepted_by_position"])
            assert timings["drafter"] == "copy"
            assert min(timings[key] for key in ("draft_ms", "verify_ms", "commit_ms")) > 0
            yield timings


@pytest.mark.thorough
def test_timings_show_that_speculation_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    for timings in answers(monkeypatch, lambda text, at: text[at] + 1, 0.01):
        assert timings["speculating"] is False
        assert timings["rounds"] == 96
        assert 0 < timings["draft_n"] < 32
        assert timings["draft_n_accepted"] == 0
        assert timings["accepted_by_position"] == []


@pytest.mark.thorough
def test_timings_show_that_speculation_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    for timings in answers(monkeypatch, lambda text, at: text[at], 0.0):
        assert timings["speculating"] is True
        assert timings["rounds"] < 20
        assert timings["draft_n_accepted"] == timings["draft_n"] > 10
        assert timings["accepted_by_position"] == sorted(timings["accepted_by_position"], reverse=True)
