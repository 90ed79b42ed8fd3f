"""Run candidates with known guesses and costs in the loop, on a clock that only passes and guesses advance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice, permutations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto, copy, ngram, stand
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import Drafter, Limits, TokenTree
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.sampling.target_top import TOP_TAPS
from edgedec.runtime.session.session import Session
from tests.runtime.drafters.support.bench_rounds import info
from tests.runtime.support.bench_exactness import Insistent
from tests.runtime.support.bench_writer import Writer, open_writer
from tests.runtime.support.fake_world import VOCAB, Clock, ScriptedDraft, ScriptedTarget, Willing

END = 400
LIMITS = Limits(nodes=16, depth=4, positions=END)
TEXT = np.random.default_rng(2).integers(0, VOCAB, END + 1).tolist()
CHEAP, COSTLY = 1e-5, 0.1  # seconds of a guess; a pass takes one second and 8 % for each further node
Right = Callable[[int], bool | None]


class Candidates:
    """Run ``auto`` over scripted candidates by name: (seconds of a guess, whether it is right at a position; None:
    silent).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, overlaps: bool = False, **scripts: tuple[float, Right]) -> None:
        self.clock, self.overlaps = Clock(), overlaps
        self.clock.go(1.0)
        monkeypatch.setattr(autoregressive, "time", self.clock)
        monkeypatch.setattr(auto, "time", self.clock)
        monkeypatch.setattr(autoregressive, "Adaptive", Willing)
        self.drafts = {name: self._draft(*how) for name, how in scripts.items()}
        for name in ("copy", "ngram", "model"):
            draft = self.drafts.get(name) or self._draft(CHEAP, lambda at: None)
            monkeypatch.setattr(getattr(auto, name), "create", lambda *_, scripted=draft, **__: scripted)
        self.drafter = auto.create([object()] if "model" in scripts else ())  # type: ignore[list-item]
        self.rounds: list[tuple[int, int, int]] = []  # position, guesses, accepted
        self.ends: list[tuple[int, float]] = []  # position and clock

    def _draft(self, seconds: float, right: Right) -> ScriptedDraft:
        def guess(at: int) -> int | None:
            is_right = right(at)
            return None if is_right is None else (TEXT[min(at, END)] + (not is_right)) % VOCAB

        return ScriptedDraft(guess, clock=self.clock, seconds=seconds)

    def decoder(self, drafter: Any = None) -> Writer:
        target = ScriptedTarget(TEXT, self.clock, lambda rows: 1 + 0.08 * (rows - 1))
        processor = Sampler(SamplingConfig(temperature=0), VOCAB).distribution
        drafter = drafter or self.drafter
        return open_writer(target, target.open(LIMITS), processor, drafter=drafter, overlaps=self.overlaps)

    def play(self) -> None:
        """Write the whole text."""
        decoder = self.decoder()
        prompt = np.array(TEXT[:8], np.int32)
        before, length = (0, 0), 8
        for length, _ in enumerate(decoder.write(prompt, LIMITS), start=9):
            if not decoder.guessed:  # a round's last token
                now = decoder.rounds.drafted, sum(decoder.rounds.accepted)
                self.rounds.append((length, now[0] - before[0], now[1] - before[1]))
                self.ends.append((length, self.clock.now))
                before = now
        assert length == END + 1

    def calls(self, name: str, start: int = 0) -> int:
        return sum(length >= start for length in self.drafts[name].asked)

    def seconds_after(self, start: int) -> float:
        """Return the seconds per token."""
        (first, began), *_, (last, ended) = (end for end in self.ends if end[0] >= start)
        return (ended - began) / (last - first)

    def accepted_after(self, start: int) -> float:
        """Return the accepted guesses per round."""
        return float(np.mean([accepted for length, _, accepted in self.rounds if length >= start]))


def always(at: int) -> bool:
    return True


def never(at: int) -> bool:
    return False


def silent(at: int) -> None:
    return None


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("right", ["copy", "ngram", "model"])
def test_a_candidate_that_is_right_drafts(monkeypatch: pytest.MonkeyPatch, right: str, overlaps: bool) -> None:
    costs = {"copy": CHEAP, "ngram": CHEAP, "model": COSTLY}
    played = Candidates(
        monkeypatch, overlaps, **{name: (costs[name], always if name == right else never) for name in costs}
    )
    played.play()
    assert played.accepted_after(60) > 3.8  # the maximum is 4
    assert played.seconds_after(60) < 0.4


def test_a_silent_candidate_leaves_drafting_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Candidates(monkeypatch, copy=(CHEAP, silent), ngram=(CHEAP, always))
    played.play()
    assert played.accepted_after(20) > 3.8


@pytest.mark.parametrize("overlaps", [False, True])
def test_drafting_moves_to_a_candidate_that_becomes_right(monkeypatch: pytest.MonkeyPatch, overlaps: bool) -> None:
    played = Candidates(monkeypatch, overlaps, copy=(CHEAP, lambda at: at < 200), ngram=(CHEAP, lambda at: at >= 200))
    played.play()
    assert np.mean([accepted for length, _, accepted in played.rounds if 40 < length < 195]) > 3.8
    assert played.accepted_after(232) > 3.8


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_costly_candidate_that_was_wrong_is_tried_again(monkeypatch: pytest.MonkeyPatch, overlaps: bool) -> None:
    model = (COSTLY, lambda at: at >= 100)
    played = Candidates(monkeypatch, overlaps, copy=(CHEAP, never), ngram=(CHEAP, silent), model=model)
    played.play()
    assert sum(guesses for length, guesses, _ in played.rounds if 60 < length < 100) == 0
    assert played.accepted_after(320) > 3.8


@pytest.mark.parametrize("overlaps", [False, True])
def test_no_candidate_drafts_if_none_is_right(monkeypatch: pytest.MonkeyPatch, overlaps: bool) -> None:
    played = Candidates(monkeypatch, overlaps, copy=(CHEAP, never), ngram=(CHEAP, never), model=(COSTLY, never))
    played.play()
    assert sum(guesses for length, guesses, _ in played.rounds if length > 48) == 0
    assert played.seconds_after(60) < 1.01  # the model is called now and then
    assert played.calls("model", 60) < 0.12 * END
    assert played.calls("copy", 60) > 0.9 * (END - 60)  # calling candidates that cost nothing is free


def test_a_model_that_costs_more_than_it_gains_does_not_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Candidates(monkeypatch, copy=(CHEAP, never), ngram=(CHEAP, silent), model=(1.5, always))
    played.play()
    assert sum(guesses for length, guesses, _ in played.rounds if length > 60) == 0
    assert played.calls("model", 60) < 0.12 * END


def test_the_cheap_one_of_two_that_are_right_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Candidates(monkeypatch, copy=(CHEAP, always), ngram=(CHEAP, silent), model=(COSTLY, always))
    played.play()
    assert played.accepted_after(20) > 3.8
    assert played.calls("copy", 60) > 8 * played.calls("model", 60)


def test_every_candidate_observes_every_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Candidates(monkeypatch, copy=(CHEAP, never), ngram=(CHEAP, always), model=(COSTLY, never))
    played.play()
    for draft in played.drafts.values():
        assert len(draft.outcomes) == len(played.rounds)


def test_the_text_does_not_depend_on_the_order_of_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check also that candidates which are wrong at times change nothing except for which one drafts."""
    played = Candidates(
        monkeypatch,
        copy=(CHEAP, lambda at: at % 3 > 0),
        ngram=(CHEAP, lambda at: at % 4 > 0),
        model=(COSTLY, lambda at: at % 7 > 0),
    )
    for names in permutations(played.drafts):
        drafter = auto._AutoDrafter({name: played.drafts[name] for name in names})
        decoder = played.decoder(drafter)
        tokens = decoder.write(np.array(TEXT[:8], np.int32), LIMITS)
        assert list(islice(tokens, 200)) == TEXT[8:208]
        assert sum(decoder.rounds.accepted) > 40


def test_choices_after_an_assumed_text_are_judged_when_it_comes_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a round with a waiting tree, which calls no candidate, still compares all guesses with the outcome."""
    played = Candidates(monkeypatch, overlaps=True, copy=(CHEAP, always), ngram=(CHEAP, lambda at: at % 2 > 0))
    played.play()
    decoder = played.decoder()
    list(islice(decoder.write(np.array(TEXT[:8], np.int32), LIMITS), 200))
    assert decoder.rounds.ahead_used > 30
    draft: Any = decoder.open_draft(LIMITS)
    by_name = {candidate.name: candidate for candidate in draft._candidates}
    assert {candidate.observed.judged for candidate in by_name.values()} == {auto._MEMORY}
    assert by_name["copy"].observed.right > 0.95
    assert 0.3 < by_name["ngram"].observed.right < 0.7


def test_the_footprint_is_the_sum_over_all_candidates() -> None:
    parts = [{"draft_text": 5, "draft_index": 7}, {"draft_text": 11}, {}]
    drafters: dict[str, Drafter] = {str(at): ScriptedDraft(silent, bytes=part) for at, part in enumerate(parts)}
    assert auto._AutoDrafter(drafters).footprint(LIMITS) == {
        "draft_objects": auto._OBJECT_BYTES,
        "draft_text": 16,
        "draft_index": 7,
    }
    real = auto.create().footprint(LIMITS)
    apart = [copy.create().footprint(LIMITS), ngram.create().footprint(LIMITS)]
    candidates = sum(sum(items.values()) for items in apart)
    assert sum(real.values()) - auto._OBJECT_BYTES == candidates > 0


def test_stand_competes_where_several_texts_of_a_prompt_are_written() -> None:
    single, several = auto.create(), auto.create(samples=2)
    assert single.taps == ()
    assert several.taps == TOP_TAPS
    table = sum(stand.create().footprint(LIMITS).values())
    assert sum(several.footprint(LIMITS).values()) - sum(single.footprint(LIMITS).values()) == table


@pytest.mark.thorough
def test_later_texts_of_a_prompt_gain_from_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that ``stand`` drafts from the second text on, and that no text depends on it; no clock decides.

    The later texts of both prompts took 0.77 of the rounds (0.83 and 0.70).
    """
    monkeypatch.setattr(autoregressive, "Adaptive", Insistent)
    monkeypatch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr(ObservedCost, "seconds", lambda self, nodes, past: 1 + 0.01 * nodes)
    sampling, texts, rounds = SamplingConfig(temperature=0.6, seed=0), dict[int, list[str]](), Counter[int]()
    for samples, prompt in product((1, 4), ("Once upon a time", "Tell me a story about a fox.")):
        spec = SpecConfig(drafter="auto", samples=samples)
        with Session.open(demo.bundle_path("demo"), ctx_size=256, spec=spec, threads=1) as session:
            ids = session.encode(prompt)
            answers = [session.generate(ids, n_predict=60, sampling=sampling, sample=at) for at in range(4)]
        texts[samples] = [*texts.get(samples, []), *(answer.text for answer in answers)]
        rounds[samples] += sum(answer.timings.rounds.count for answer in answers[1:])
    assert texts[1] == texts[4]
    assert rounds[4] < 0.8 * rounds[1]


def test_no_nodes_give_no_guesses() -> None:
    draft = auto.create().open(info(), LIMITS, ObservedCost())
    root = TokenTree(tokens=np.array([3], np.int32), parents=np.array([-1], np.int32), draft={})
    assert draft.expand(np.array([1, 2, 3], np.int32), root, np.zeros(0, np.int32)) == []
