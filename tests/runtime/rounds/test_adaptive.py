"""Test when to speculate: with given figures, and in the loop, on a clock that only passes and guesses advance."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from weakref import ref

import numpy as np
import pytest

from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.protocols import I32, Limits, Outcome, TokenTree
from edgedec.runtime.rounds.acceptance import RankAcceptance
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.trees import chain as chain_policy
from edgedec.runtime.trees import delayed, dynamic, static
from tests.runtime.support.bench_writer import Writer, open_writer
from tests.runtime.support.fake_world import VOCAB, Clock, ScriptedDraft, ScriptedTarget
from tests.runtime.trees.support.fake_draft import FakeCost

DEPTH = 8
FREE = FakeCost([1.0] * (DEPTH + 1))
STEEP = FakeCost([1 + 0.3 * node for node in range(DEPTH + 1)])


def chain(guesses: int) -> TokenTree:
    return TokenTree(tokens=np.zeros(1 + guesses, np.int32), parents=np.arange(-1, guesses, dtype=np.int32), draft={})


def feed(adaptive: Adaptive, guesses: int, accepted: int, seconds: float, draft_seconds: float = 0.0) -> None:
    """Observe a round with a chain."""
    outcome = Outcome(path=np.arange(1 + accepted, dtype=np.int32), next_token=0)
    adaptive.observe(
        chain(guesses), outcome, seconds=seconds, draft_seconds=draft_seconds, pass_seconds=seconds - draft_seconds
    )


def guesses_of(adaptive: Adaptive) -> int:
    """Return the guesses of the next round's chain."""
    depth = len(adaptive.accept)
    return adaptive.size(chain_policy.create(), Limits(nodes=1 + depth, depth=depth, positions=END), 0).depth


def started(depth: int = DEPTH, cost: FakeCost | None = None) -> Adaptive:
    """Return an instance that has observed rounds without guesses of a second."""
    return Adaptive(depth, cost or FREE)


def rounds_until(adaptive: Adaptive, on: bool, seconds: float, *, guesses: int = 4, accepted: int = 0) -> int:
    """Return the rounds until it is switched; plain ones take a second."""
    for count in range(200):
        if adaptive.on == on:
            return count
        if guesses_of(adaptive):
            feed(adaptive, guesses, accepted, seconds)
        else:
            feed(adaptive, 0, 0, 1.0)
    raise AssertionError(f"it is still {'off' if on else 'on'}")


# Given figures


def test_speculation_is_on_at_first() -> None:
    assert guesses_of(Adaptive(DEPTH, FREE)) > 0


def test_without_room_for_guesses_there_are_none() -> None:
    adaptive = Adaptive(0, FREE)
    for _ in range(40):
        assert guesses_of(adaptive) == 0
        feed(adaptive, 0, 0, 1.0)


def test_the_policy_of_an_answer_is_not_kept_alive() -> None:
    class Policy:
        """A policy that holds much, such as the grammar of an answer."""

        def sizes(self, limits: Limits, accept: object) -> list[object]:
            return list(chain_policy.create().sizes(limits, adaptive.accept))

    adaptive, policy = started(), Policy()
    adaptive.size(policy, Limits(nodes=4, depth=3, positions=END), 0)  # type: ignore[arg-type]
    held = ref(policy)
    del policy
    assert held() is None


def test_rounds_that_lose_end_speculation_and_rounds_that_gain_do_not() -> None:
    assert rounds_until(started(), False, 1.1) <= 8  # one token per round: as many tokens
    assert rounds_until(started(), False, 3.3, accepted=2) <= 8
    gaining = started()
    for _ in range(100):
        feed(gaining, 4, 2, 2.9)
        assert gaining.on


def test_the_log_says_why_speculation_stops_and_when_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    adaptive = started()
    with caplog.at_level(logging.INFO):
        rounds_until(adaptive, False, 1.1)
        rounds_until(adaptive, True, 1.1)
    off, on = (message for message in caplog.messages if message.startswith("speculation"))
    assert caplog.messages[0].startswith(
        "8 guesses a round: 60 % of the first are accepted; a pass of 1 takes 1000.00 ms"
    )
    assert off == (
        "speculation is off: 6 rounds of 1100.00 ms gave 6 tokens, and plain decoding takes 1000.00 ms per token"
    )
    assert on == "speculation is tried again, after 16 tokens without guesses"


def test_a_new_answer_tries_again_although_the_last_one_stopped() -> None:
    adaptive = started()
    rounds_until(adaptive, False, 1.1)
    adaptive.begin()
    assert adaptive.on
    assert rounds_until(adaptive, False, 1.1) <= 4, "a trial, no new beginning"
    gaining = started()
    for _ in range(3):
        feed(gaining, 4, 0, 1.1)
    before = gaining.accept.copy()
    gaining.begin()
    np.testing.assert_array_equal(gaining.accept, before)  # it keeps the estimates of the rounds in which it was on


def test_bad_rounds_after_good_ones_end_speculation_within_32_tokens() -> None:
    adaptive = started()
    for _ in range(50):
        feed(adaptive, DEPTH, DEPTH, 1.6)
    assert rounds_until(adaptive, False, 1.6, guesses=DEPTH) < 32


def test_one_slow_round_does_not_end_speculation() -> None:
    """Model a machine that was busy, or a draft with a new prompt to read."""
    for before in (0, 1, 5, 30):
        adaptive = started()
        for _ in range(before):
            feed(adaptive, 4, 3, 1.5)
        feed(adaptive, 4, 3, 60.0)
        for _ in range(30):
            feed(adaptive, 4, 3, 1.5)
            assert adaptive.on


def test_time_beside_pass_and_draft_counts_for_plain_rounds_too() -> None:
    """Check that a second of printing does not end speculation, because plain rounds print as well."""
    for printing, on in ((0.0, False), (1.0, True)):
        adaptive = started()
        outcome = Outcome(path=np.arange(2, dtype=np.int32), next_token=0)
        for _ in range(20):  # two tokens in 2.5 seconds and the printing
            adaptive.observe(chain(1), outcome, seconds=2.5 + printing, draft_seconds=0.0, pass_seconds=2.5)
        assert adaptive.on == on


def test_rounds_are_compared_with_plain_ones_over_the_same_past() -> None:
    """Check that guesses that lose on an empty cache pay if passes are expensive because of their past."""

    class ByPast(FakeCost):
        def seconds(self, nodes: int, past: int) -> float:
            return 1.0 + 0.01 * past

    for past, on in ((0, False), (200, True)):
        adaptive = started(cost=ByPast([]))
        outcome = Outcome(path=np.arange(2, dtype=np.int32), next_token=0)
        for _ in range(20):  # two tokens in 3.5 seconds
            adaptive.observe(chain(1), outcome, seconds=3.5, draft_seconds=0.0, pass_seconds=3.5, past=past)
        assert adaptive.on == on


def test_the_estimate_recovers_while_a_policy_guesses_nothing() -> None:
    """Check this for policies that size trees themselves: they stop at a low acceptance, which nothing else would
    raise.
    """
    adaptive = started()
    for _ in range(5):
        feed(adaptive, 2, 0, 1.0)
    assert adaptive.accept[0, 0] < 0.3
    for _ in range(20):
        feed(adaptive, 0, 0, 1.0)
    assert adaptive.accept[0, 0] >= 0.5


def test_speculation_is_tried_again_and_stays_on_if_it_pays() -> None:
    adaptive = started()
    rounds_until(adaptive, False, 2.0)
    assert 8 <= rounds_until(adaptive, True, 2.0) <= 32  # a pause
    assert guesses_of(adaptive) > 0
    for _ in range(30):
        feed(adaptive, 4, 3, 2.0)
        assert adaptive.on


def test_pauses_grow_while_it_does_not_pay_and_are_reset_once_it_does() -> None:
    adaptive = started()
    pauses, trials = [], []
    for _ in range(8):
        trials.append(rounds_until(adaptive, False, 2.0))
        pauses.append(rounds_until(adaptive, True, 2.0))
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] >= 8 * pauses[0]
    assert max(trials[1:]) < trials[0]  # a trial is shorter than the first attempt
    assert sum(trials[-3:]) / sum(pauses[-3:]) < 0.03
    for _ in range(10):
        feed(adaptive, 4, 3, 1.0)
    rounds_until(adaptive, False, 2.0)
    assert rounds_until(adaptive, True, 2.0) == pauses[0]


def test_the_estimate_follows_the_acceptance() -> None:
    rng, adaptive = np.random.default_rng(0), started()
    rates = [0.9, 0.5, 0.2]
    history = []
    for _ in range(600):
        accepted = 0
        while accepted < 3 and rng.random() < rates[accepted]:
            accepted += 1
        feed(adaptive, 3, accepted, 1.0)
        history.append(adaptive.accept[:, 0].tolist())
    means = np.mean(history[100:], axis=0)
    assert means[:3] == pytest.approx(rates, abs=0.06)
    # never reached, and so equal to the depth above
    assert means[3:].tolist() == pytest.approx([means[2]] * (DEPTH - 3))
    for _ in range(60):
        feed(adaptive, 3, 3, 1.0)
    assert adaptive.accept[:3, 0].min() > 0.95  # it follows a change


def test_the_end_of_a_tree_does_not_count_as_a_rejection() -> None:
    adaptive = started()
    before = adaptive.accept[2, 0]
    feed(adaptive, 2, 2, 1.0)
    assert adaptive.accept[2, 0] == adaptive.accept[1, 0] > before
    branched = TokenTree(
        tokens=np.zeros(4, np.int32), parents=np.array([-1, 0, 0, 1], np.int32), draft={}
    )  # node 2 is a leaf, node 1 is not
    leaf, inner = started(), started()
    for adaptive, node in ((leaf, 2), (inner, 1)):
        outcome = Outcome(path=np.array([0, node], np.int32), next_token=0)
        adaptive.observe(branched, outcome, seconds=1.0, draft_seconds=0.0, pass_seconds=1.0)
    prior = Adaptive(DEPTH, FREE).accept[0]
    assert leaf.accept[1].tolist() == leaf.accept[0].tolist()  # presumed to equal the one above
    assert leaf.accept[0, 0] < prior[0]
    assert leaf.accept[0, 1] > prior[1]
    assert inner.accept[1, 0] < prior[0] < inner.accept[0, 0]


@pytest.mark.parametrize("cost", [FREE, STEEP], ids=["free", "steep"])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6, 0.8, 0.99])
@pytest.mark.parametrize("draft_seconds", [0.0, 0.2])
def test_the_depth_has_the_most_tokens_per_second(cost: FakeCost, rate: float, draft_seconds: float) -> None:
    adaptive = started(cost=cost)
    for _ in range(100):
        feed(adaptive, 1, 1, 1.0, draft_seconds)
    adaptive.accept[:] = rate
    expected = [sum(rate**at for at in range(depth + 1)) for depth in range(DEPTH + 1)]
    speeds = [expected[depth] / (cost.seconds(1 + depth, 0) + draft_seconds * depth) for depth in range(DEPTH + 1)]
    assert guesses_of(adaptive) == max(1, int(np.argmax(speeds)))  # the clock decides whether even one guess pays


@pytest.mark.parametrize("policy", [static, delayed, dynamic])
def test_the_size_of_a_tree_has_the_most_tokens_per_second(policy: ModuleType) -> None:
    """Check that a pass is paid by its nodes and drafting by its calls, and not as if the tree were a chain."""
    limits, chosen = Limits(nodes=24, depth=DEPTH, positions=END), dict[tuple[float, float], Limits]()
    for slope, call in itertools.product((0.0, 0.05, 0.3), (0.0, 0.4)):
        cost = FakeCost([1 + slope * node for node in range(limits.nodes)])
        adaptive = started(cost=cost)
        for _ in range(100):
            feed(adaptive, 1, 1, 1.0, call)
        adaptive.acceptance = RankAcceptance(DEPTH)  # the prior: guesses are right in 60 % of the trials
        sizes = policy.create().sizes(limits, adaptive.accept)
        speeds = [size.tokens / (1 + slope * (size.nodes - 1) + call * size.depth) for size in sizes]
        size = chosen[slope, call] = adaptive.size(policy.create(), limits, 0)
        best = sizes[int(np.argmax(speeds))]
        assert (size.nodes, size.depth) == (best.nodes, best.depth)
    assert chosen[0.0, 0.0].nodes == limits.nodes
    assert chosen[0.3, 0.0].nodes < chosen[0.05, 0.0].nodes
    assert chosen[0.0, 0.4].depth < chosen[0.0, 0.0].depth


# In the loop


@dataclass
class World:
    """Simulate text positions [0, 300), [300, 700), [700, 1400), where the drafter is right, wrong, right."""

    clock: Clock
    decoder: Writer
    prompt: I32
    limits: Limits

    def play(self) -> Iterator[tuple[int, float, bool, int]]:
        """Return (position of the token, clock, speculating, guesses so far) for each token."""
        tokens = self.decoder.write(self.prompt, self.limits)
        for at, token in enumerate(tokens, start=len(self.prompt)):
            assert token == self.decoder.target.text[at]  # type: ignore[attr-defined]
            yield at, self.clock.now, self.decoder.speculating, self.decoder.rounds.drafted


BAD, GOOD, END = 300, 700, 1400


def world(
    monkeypatch: pytest.MonkeyPatch,
    right: Callable[[int], bool] = lambda at: not BAD <= at < GOOD,
    *,
    slope: float = 0.1,
    draft_seconds: float = 0.05,
    policy: str = "chain",
) -> World:
    """Return a world where a pass of n nodes takes 1 + slope * (n - 1) seconds and a guess ``draft_seconds``."""
    clock, text = Clock(), np.random.default_rng(1).integers(0, VOCAB, END + 1).tolist()
    monkeypatch.setattr(autoregressive, "time", clock)
    target = ScriptedTarget(text, clock, lambda rows: 1 + slope * (rows - 1))
    drafter = ScriptedDraft(
        lambda at: (text[min(at, END)] + (not right(at))) % VOCAB, clock=clock, seconds=draft_seconds
    )
    limits = Limits(nodes=16, depth=DEPTH, positions=END)
    sampler = Sampler(SamplingConfig(temperature=0), VOCAB)
    decoder = open_writer(target, target.open(limits), sampler.distribution, drafter=drafter, policy=policy)
    return World(clock, decoder, np.array(text[:8], np.int32), limits)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("policy", ["chain", "static", "delayed"])
@pytest.mark.parametrize("slope", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("draft_seconds", [0.0, 0.05, 0.3])
def test_speculation_stops_within_32_tokens_of_a_change_and_returns(
    monkeypatch: pytest.MonkeyPatch, draft_seconds: float, slope: float, policy: str
) -> None:
    played = world(monkeypatch, slope=slope, draft_seconds=draft_seconds, policy=policy)
    states = {at: state for at, *state in played.play()}
    assert len(states) == END + 1 - 8
    on = [at for at, (_, speculating, _) in states.items() if speculating]

    def seconds(start: int, end: int) -> float:
        return states[end - 1][0] - states[start - 1][0]

    assert all(at in on for at in range(20, BAD))
    assert seconds(BAD // 2, BAD) < 0.8 * (BAD - BAD // 2)
    stop = min(at for at in range(BAD, GOOD) if at not in on)
    assert stop < BAD + 32
    assert seconds(BAD + 32, GOOD) < 1.03 * (GOOD - BAD - 32)  # trials included
    back = next(at for at in range(GOOD, END) if all(later in on for later in range(at, END + 1)))
    assert back < GOOD + 140
    assert seconds(END - 100, END) < 0.8 * 100


def test_rounds_and_speculating_report_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    played = world(monkeypatch)
    decoder, rounds = played.decoder, []
    text = list(decoder.target.text)  # type: ignore[attr-defined]
    for start, end in ((8, BAD), (BAD, GOOD), (GOOD, END)):  # one answer for each regime, on one state
        tokens = decoder.write(np.array(text[:start], np.int32), played.limits)
        assert list(islice(tokens, end - start)) == text[start:end]
        rounds.append((decoder.speculating, decoder.rounds.count, decoder.rounds.drafted, sum(decoder.rounds.accepted)))
    assert [speculating for speculating, *_ in rounds] == [True, False, True]
    good, bad, again = rounds
    assert good[1] < (BAD - 8) / 4
    assert good[3] > 0.9 * good[2]
    assert bad[1] >= GOOD - BAD - 8  # one round per token; a few guesses began before
    assert bad[2] < 0.5 * (GOOD - BAD)
    assert bad[3] <= 8
    assert again[3] > 0.8 * again[2] > 200


@pytest.mark.parametrize("overlaps", [False, True])
def test_guesses_hidden_by_a_pass_pay_where_others_do_not(monkeypatch: pytest.MonkeyPatch, overlaps: bool) -> None:
    """Compare two tokens in 2.05 seconds one after the other, and in 1.6 with drafting hidden."""
    played = world(monkeypatch, lambda at: True, slope=0.6, draft_seconds=0.45)
    played.decoder.overlaps = overlaps
    states = [speculating for _, _, speculating, _ in played.play()]
    share = sum(states) / len(states)
    assert share > 0.99 if overlaps else share < 0.2
    assert played.decoder.rounds.seconds < (0.9 if overlaps else 1.02) * len(states)


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.3])
def test_a_drafter_that_is_never_right_costs_almost_nothing(monkeypatch: pytest.MonkeyPatch, slope: float) -> None:
    first, *_, (at, seconds, speculating, _) = world(
        monkeypatch, lambda at: False, slope=slope, draft_seconds=0.1
    ).play()
    assert at == END
    assert not speculating
    assert seconds - first[1] < 1.03 * (END - 8)


def feed_shared(adaptive: Adaptive, *, others: int, tokens: int, seconds: float, draft_seconds: float) -> None:
    """Observe twelve rounds of four guesses, all accepted, beside other texts."""
    for _ in range(12):
        adaptive.share(others, tokens, tokens, 1.0)
        feed(adaptive, 4, 4, seconds, draft_seconds)


def test_a_tree_is_smaller_if_other_texts_wait_for_its_pass() -> None:
    """A row takes 0.3 of a pass: a text alone gains by many guesses, and eight texts lose more than one of them gains."""
    alone, beside = started(cost=STEEP), started(cost=STEEP)
    feed_shared(alone, others=0, tokens=0, seconds=1.4, draft_seconds=0.0)
    feed_shared(beside, others=7, tokens=7, seconds=1.4, draft_seconds=0.0)
    rates = alone.accept[:, 0].tolist()
    expected = [1 + sum(np.prod(rates[: depth + 1]) for depth in range(count)) for count in range(DEPTH + 1)]

    def best(shared: float) -> int:
        return max(range(1, DEPTH + 1), key=lambda count: (expected[count] + shared) / STEEP.seconds(count + 1, 0))

    assert (guesses_of(alone), guesses_of(beside)) == (best(0.0), best(7.0))
    assert best(7.0) < best(0.0)


@pytest.mark.parametrize(("draft_seconds", "on"), [(0.9, True), (1.1, False)])
def test_texts_that_draft_together_stop_if_all_of_them_lose(draft_seconds: float, on: bool) -> None:
    """Four texts get two tokens each from a pass of a second, and share the drafting; without guesses one token each."""
    adaptive = started()
    for _ in range(12):
        adaptive.share(3, 6, 6, 1.0)
        feed(adaptive, 4, 1, 1.0 + draft_seconds, draft_seconds)
    assert adaptive.on == on


@dataclass
class Beside:
    """A cost in which each row beside those of a text takes as long as its own."""

    rows: int = 0

    def seconds(self, nodes: int, past: int) -> float:
        return 1 + 0.2 * (nodes + self.rows - 1)


def beside_many(rounds: int) -> tuple[Adaptive, Beside]:
    """Return the result of rounds in which three other texts have eight rows each, all of them right, and this one five."""
    cost = Beside()
    adaptive = Adaptive(DEPTH, cost)
    for _ in range(rounds):
        cost.rows = 24
        adaptive.share(3, 24, 24, 1.6)
        feed(adaptive, 4, 4, cost.seconds(5, 0))
    return adaptive, cost


def test_rounds_are_judged_beside_the_rows_that_the_others_had_in_them() -> None:
    """The others stop guessing. The passes of before were long because of them, not because of this text's guesses."""
    adaptive, cost = beside_many(8)
    for rows in (24, 3, 3, 3, 3, 3, 3):  # the others' rows in the round before
        cost.rows = rows
        adaptive.share(3, rows, rows, 1.6)
        feed(adaptive, 4, 4, 1 + 0.2 * (5 + 3 - 1))
        assert adaptive.on


def test_the_last_round_has_the_rows_and_tokens_that_the_others_really_had() -> None:
    """They were expected to have eight rows each in all rounds, and had one: so four guesses for two tokens do not pay."""
    cost = Beside()
    adaptive = Adaptive(DEPTH, cost)
    for _ in range(12):
        cost.rows = 24
        feed(adaptive, 4, 1, 1 + 0.2 * 7)  # a pass of 5 + 3 rows
        cost.rows = 3
        adaptive.share(3, 3, 3, 1.6)
    assert not adaptive.on


def test_passes_that_all_take_longer_than_expected_do_not_end_guesses_that_pay() -> None:
    """Texts became longer, and the expected seconds do not follow yet. All rows of all texts are right."""
    cost = Beside(rows=24)
    adaptive = Adaptive(DEPTH, cost)
    for _ in range(12):
        adaptive.share(3, 24, 24, 1.6)
        feed(adaptive, 7, 7, 2 * cost.seconds(8, 0))
        assert adaptive.on


def test_a_round_beside_a_prompt_that_is_read_does_not_count_as_a_slow_one() -> None:
    """A pass has 60 rows of a prompt, which this text does not expect, and learns of after it."""
    cost = Beside()
    adaptive = Adaptive(DEPTH, cost)
    for _ in range(8):
        cost.rows = 0
        feed(adaptive, 4, 1, 1 + 0.2 * (5 + 60 - 1))
        cost.rows = 60
        adaptive.share(0, 60, 0, 1.0)
        assert adaptive.on


def test_the_size_follows_the_rows_of_the_others_at_once() -> None:
    adaptive, cost = beside_many(40)
    cost.rows = 3
    adaptive.share(3, 3, 3, 1.6)
    rates = adaptive.accept[:, 0].tolist()
    expected = [1 + sum(np.prod(rates[: depth + 1]) for depth in range(count)) for count in range(DEPTH + 1)]
    best = max(range(1, DEPTH + 1), key=lambda count: (expected[count] + 3) / cost.seconds(count + 1, 0))
    assert guesses_of(adaptive) == best


def test_a_text_with_a_few_right_guesses_goes_on_beside_texts_that_gain_by_many() -> None:
    """It has two rows and two tokens of each pass. It causes little of its long passes; all texts gain by the guesses."""
    cost = Beside(rows=24)
    adaptive = Adaptive(DEPTH, cost)
    for _ in range(12):
        adaptive.share(3, 24, 24, 1.6)
        feed(adaptive, 1, 1, cost.seconds(2, 0))
    assert adaptive.on


def test_a_text_that_is_alone_again_forgets_the_others() -> None:
    adaptive = started(cost=STEEP)
    feed_shared(adaptive, others=7, tokens=7, seconds=1.4, draft_seconds=0.0)
    few = guesses_of(adaptive)
    feed_shared(adaptive, others=0, tokens=0, seconds=1.4, draft_seconds=0.0)
    assert guesses_of(adaptive) > few


@pytest.mark.parametrize(("plain_seconds", "on"), [(0.9, True), (0.7, False)])
def test_a_text_stops_where_all_texts_are_faster_without_guesses(plain_seconds: float, on: bool) -> None:
    """A pass takes 1.6 seconds with the others' guesses, whether this text has some or not, and gives two tokens."""
    adaptive = started(cost=FakeCost([1.6] * (DEPTH + 1)))
    for _ in range(12):
        adaptive.share(3, 6, 6, plain_seconds)
        feed(adaptive, 4, 1, 1.6)
    assert adaptive.on == on
