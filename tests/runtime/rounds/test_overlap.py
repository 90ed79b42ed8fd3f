"""Test growing the next tree during a pass: what it saves, and that nothing is left unfinished."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import DeviceError
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.protocols import (
    I32,
    CostModel,
    Limits,
    Pass,
    PassResult,
    Sparse,
    State,
    TokenTree,
)
from edgedec.runtime.rounds.ahead import likeliest_path
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets._results import FinishedTicket
from tests.runtime.support.bench_writer import Writer, open_writer
from tests.runtime.support.fake_world import VOCAB, Clock, ScriptedDraft, ScriptedTarget, Willing

END = 300
LIMITS = Limits(nodes=8, depth=3, positions=END)
TEXT = np.random.default_rng(4).integers(0, VOCAB, END + 1).tolist()


@dataclass
class Later:
    """Model a ticket of a device that works by itself: ``result`` advances the clock to its end."""

    clock: Clock
    end: float
    results: list[PassResult]
    host_seconds: float = 0.0  # seconds that a call takes on the host
    asked: int = 0

    def result(self) -> list[PassResult]:
        self.asked += 1
        self.clock.now = max(self.clock.now, self.end) + self.host_seconds
        return self.results


class Device(ScriptedTarget):
    """Model a device whose pass takes its seconds from ``submit`` on.

    If ``simulated``, the pass takes none of the clock's seconds, and asking takes 100 of them.
    """

    def __init__(self, clock: Clock, seconds: Callable[[int], float], *, simulated: bool = False) -> None:
        super().__init__(TEXT, clock, seconds)
        self.simulated = simulated
        self.tickets: list[Later] = []
        self.submitted: list[list[int]] = []  # tokens of the trees

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Later:  # type: ignore[override]
        assert all(ticket.asked for ticket in self.tickets), "the device is at work"
        began = self.clock.now
        result = super().submit(work).result()
        end, self.clock.now = self.clock.now, began
        self.submitted += [item.ids.tolist() for _, item in work if item.logits is not None]
        ticket = Later(self.clock, 0.0, result, 100.0) if self.simulated else Later(self.clock, end, result)
        self.tickets.append(ticket)
        return ticket


@dataclass
class Played:
    decoder: Writer
    device: Device
    seconds: float  # on the clock
    text: list[int] = field(default_factory=list)


def play(
    monkeypatch: pytest.MonkeyPatch,
    *,
    overlaps: bool,
    right: Callable[[int], bool] = lambda at: True,
    draft_seconds: float = 0.1,
    pass_seconds: float = 1.0,
    simulated: bool = False,
    limits: Limits = LIMITS,
) -> Played:
    """Write everything with a chain of scripted guesses; a call of the draft takes that many seconds."""
    clock = Clock()
    monkeypatch.setattr(autoregressive, "time", clock)
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)
    device = Device(clock, lambda rows: pass_seconds, simulated=simulated)
    draft = ScriptedDraft(lambda at: (TEXT[min(at, END)] + (not right(at))) % VOCAB, clock=clock, seconds=draft_seconds)
    decoder = open_writer(device, device.open(limits), greedy(), drafter=draft, overlaps=overlaps)
    decoder.open_draft(limits)
    device.submitted.clear()
    tokens = decoder.write(np.array(TEXT[:1], np.int32), limits)
    began = clock.now
    text = list(tokens)
    return Played(decoder, device, clock.now - began - decoder.rounds.read_seconds, text)


def greedy() -> Any:
    return Sampler(SamplingConfig(temperature=0), VOCAB).distribution


# Time


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("draft_seconds", [0.1, 0.25, 0.6])
@pytest.mark.parametrize(
    "right", [lambda at: True, lambda at: at % 5 > 0, lambda at: False], ids=["all", "most", "none"]
)
def test_the_account_equals_the_time_of_a_device_that_works_by_itself(
    monkeypatch: pytest.MonkeyPatch, draft_seconds: float, right: Callable[[int], bool]
) -> None:
    """Compare the account with the clock: with overlap, and how much longer it would have taken without."""
    alone = play(monkeypatch, overlaps=False, right=right, draft_seconds=draft_seconds)
    beside = play(monkeypatch, overlaps=True, right=right, draft_seconds=draft_seconds)
    assert alone.text == beside.text == TEXT[1:]
    assert alone.device.submitted == beside.device.submitted
    for played in (alone, beside):
        assert played.decoder.rounds.seconds == pytest.approx(played.seconds)
    assert beside.decoder.rounds.saved_seconds == pytest.approx(alone.seconds - beside.seconds)
    without = alone.decoder.rounds
    assert (without.ahead, without.ahead_used, without.ahead_seconds, without.saved_seconds) == (0, 0, 0.0, 0.0)


def test_drafting_that_fits_into_the_pass_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use three guesses and the assumption: 0.4 seconds of a pass's one."""
    alone, beside = (play(monkeypatch, overlaps=overlaps) for overlaps in (False, True))
    rounds = beside.decoder.rounds
    assert rounds.ahead_used == rounds.ahead == rounds.count - 1
    assert rounds.overrun_seconds == 0
    assert rounds.draft_seconds == pytest.approx(0.3)  # the first tree only
    assert rounds.ahead_seconds == pytest.approx(0.4 * rounds.ahead, abs=0.3)  # less at the end of the context
    assert rounds.hidden_seconds == pytest.approx(rounds.saved_seconds) == pytest.approx(0.3 * rounds.ahead, abs=0.3)
    assert alone.seconds / beside.seconds == pytest.approx(1.3, abs=0.01)


def test_drafting_that_outlasts_the_pass_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = play(monkeypatch, overlaps=True, draft_seconds=0.3)
    rounds = beside.decoder.rounds
    assert rounds.overrun_seconds == pytest.approx(0.2 * rounds.ahead, abs=0.3)
    assert rounds.draft_seconds == pytest.approx(0.9 + rounds.overrun_seconds)
    assert rounds.verify_seconds == pytest.approx(rounds.count)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_simulated_device_costs_its_own_time_not_that_of_the_simulator(
    monkeypatch: pytest.MonkeyPatch, overlaps: bool
) -> None:
    real = play(monkeypatch, overlaps=overlaps, right=lambda at: at % 7 > 0)
    simulated = play(monkeypatch, overlaps=overlaps, right=lambda at: at % 7 > 0, simulated=True)
    assert simulated.seconds > 50 * real.seconds
    assert simulated.device.submitted == real.device.submitted
    for name in ("seconds", "draft_seconds", "verify_seconds", "saved_seconds", "hidden_seconds", "overrun_seconds"):
        assert getattr(simulated.decoder.rounds, name) == pytest.approx(getattr(real.decoder.rounds, name))


def test_a_draft_that_is_slow_and_wrong_stops_growing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, beside = (
        play(monkeypatch, overlaps=overlaps, right=lambda at: False, draft_seconds=0.5) for overlaps in (False, True)
    )
    rounds = beside.decoder.rounds
    assert rounds.ahead < 4 + rounds.count / 16 + 1
    assert beside.seconds < 1.1 * alone.seconds
    assert rounds.ahead_used == 0


def test_a_round_without_guesses_grows_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    played = play(monkeypatch, overlaps=True, limits=Limits(nodes=8, depth=0, positions=END))
    assert played.text == TEXT[1:]
    assert played.decoder.rounds.ahead == 0


def test_the_waiting_tree_is_dropped_when_speculation_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a tree that was right, when guesses already cost more than they gain."""

    class UntilTheFifth(Willing):
        def observe(self, *args: Any, **named: Any) -> None:
            super().observe(*args, **named)
            self.rounds = getattr(self, "rounds", 0) + 1
            self.on = self.rounds < 5

    clock = Clock()
    monkeypatch.setattr(autoregressive, "time", clock)
    monkeypatch.setattr(autoregressive, "Adaptive", UntilTheFifth)
    device = Device(clock, lambda rows: 1.0)
    draft = ScriptedDraft(lambda at: TEXT[min(at, END)])
    decoder = open_writer(device, device.open(LIMITS), greedy(), drafter=draft, overlaps=True)
    tokens = decoder.write(np.array(TEXT[:1], np.int32), LIMITS)
    assert list(islice(tokens, 40)) == TEXT[1:41]
    assert (decoder.rounds.ahead, decoder.rounds.ahead_used) == (5, 4)
    assert decoder.rounds.drafted == 5 * LIMITS.depth


class Busy:
    """Model a real device with a thread: a pass with guesses does not end before the host drafts."""

    free_rows: int | None = None

    def __init__(self, drafting: threading.Event) -> None:
        self.inner, self.drafting, self.ended = ScriptedTarget(TEXT, Clock(), lambda rows: 1.0), drafting, list[bool]()
        self.info, self.open, self.footprint = self.inner.info, self.inner.open, self.inner.footprint
        self.cost_model, self.free_rows = self.inner.cost_model, self.inner.free_rows

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Any:
        results = self.inner.submit(work).result()
        self.drafting.clear()
        thread = threading.Thread(target=lambda: self.ended.append(self.drafting.wait(20)))

        def result() -> list[PassResult]:
            thread.join()
            return results

        if work[0][1].visible is not None:
            thread.start()
            return SimpleNamespace(result=result)
        return FinishedTicket(results)


def test_a_real_device_works_while_the_host_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)
    drafting = threading.Event()
    clock = SimpleNamespace(go=lambda seconds: drafting.set())
    draft, device = ScriptedDraft(lambda at: TEXT[min(at, END)], clock=clock), Busy(drafting)  # type: ignore[arg-type]
    decoder = open_writer(device, device.open(LIMITS), greedy(), drafter=draft, overlaps=True)
    tokens = decoder.write(np.array(TEXT[:1], np.int32), LIMITS)
    assert list(islice(tokens, 80)) == TEXT[1:81]
    assert device.ended == [True] * 20
    assert decoder.rounds.ahead_used == 19


# Unfinished passes


class Breaking(ScriptedDraft):
    """Fail in one of the calls."""

    def __init__(self, at: int, error: BaseException) -> None:
        super().__init__(lambda at: TEXT[min(at, END)])
        self.at, self.error = at, error

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        if len(self.asked) == self.at:
            self.asked.append(len(text))
            raise self.error
        return super().expand(text, tree, nodes)


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=["failure", "ctrl-c"])
@pytest.mark.parametrize(
    "call", [4, 5, 6]
)  # one reads the prompt, three grow the first tree: the others are during the pass
def test_a_failed_draft_leaves_no_pass_running(
    monkeypatch: pytest.MonkeyPatch, call: int, error: BaseException
) -> None:
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)
    device = Device(Clock(), lambda rows: 1.0)
    draft = Breaking(call, error)
    decoder = open_writer(device, device.open(LIMITS), greedy(), drafter=draft, overlaps=True)
    prompt = np.array(TEXT[:1], np.int32)
    with pytest.raises(type(error)):
        next(decoder.write(prompt, LIMITS))
    assert [ticket.asked for ticket in device.tickets[-1:]] == [1]
    assert decoder.state.length == len(decoder.cached) == 0
    assert list(decoder.write(prompt, LIMITS)) == TEXT[1:]  # the next answer is clean


def test_an_error_of_the_device_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)
    device = Device(Clock(), lambda rows: 1.0)
    decoder = open_writer(
        device, device.open(LIMITS), greedy(), drafter=Breaking(4, ValueError("broken")), overlaps=True
    )

    def fail(self: Later) -> list[PassResult]:
        raise DeviceError("the accelerator gave up")

    decoder.open_draft(LIMITS)
    monkeypatch.setattr(Later, "result", fail)
    with pytest.raises(DeviceError, match="gave up") as caught:
        next(decoder.write(np.array(TEXT[:1], np.int32), LIMITS))
    assert isinstance(caught.value.__context__, ValueError)


def test_an_abandoned_answer_leaves_no_pass_running(monkeypatch: pytest.MonkeyPatch) -> None:
    played = play(monkeypatch, overlaps=True)
    tokens = played.decoder.write(np.array(TEXT[:1], np.int32), LIMITS)
    assert list(islice(tokens, 6)) == TEXT[1:7]
    tokens.close()  # type: ignore[attr-defined]
    assert all(ticket.asked == 1 for ticket in played.device.tickets)
    again = played.decoder.write(np.array(TEXT[:3], np.int32), LIMITS)
    assert list(again) == TEXT[3:]


# The assumed path


def test_the_likeliest_path_follows_the_draft() -> None:
    def sparse(**probs: float) -> Sparse:
        return Sparse(
            ids=np.array([int(name[1:]) for name in probs], np.int32), probs=np.array(list(probs.values()), np.float32)
        )

    tokens, parents = np.array([9, 4, 5, 6, 7, 8], np.int32), np.array([-1, 0, 0, 2, 2, 1], np.int32)
    drawn_tree = TokenTree(
        tokens=tokens, parents=parents, draft={0: sparse(t5=0.6, t4=0.3), 2: sparse(t6=0.2, t7=0.5), 1: sparse(t8=1.0)}
    )
    assert likeliest_path(drawn_tree) == [0, 2, 4]
    chosen_tree = TokenTree(
        tokens=tokens, parents=parents, draft={0: sparse(t4=1.0, t5=1.0), 2: sparse(t6=1.0, t7=1.0), 1: sparse(t8=1.0)}
    )
    assert likeliest_path(chosen_tree) == [0, 1, 5]  # the first child is the likeliest one
    assert likeliest_path(TokenTree(tokens=tokens[:1], parents=parents[:1], draft={})) == [0]


# Prefill, costs, commits


def test_a_prefill_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(Clock(), lambda rows: 0.5 * rows)
    decoder = open_writer(device, device.open(LIMITS), greedy())
    reports: list[tuple[int, int]] = []
    decoder.on_prefill = lambda done, total: reports.append((done, total))
    prompt = np.array(TEXT[:21], np.int32)
    assert next(decoder.write(prompt, LIMITS)) == TEXT[21]
    assert reports == [(0, 20), (8, 20), (16, 20), (20, 20)]
    reports.clear()
    assert next(decoder.write(np.array(TEXT[:31], np.int32), LIMITS)) == TEXT[31]
    assert reports == [(21, 30), (29, 30), (30, 30)]  # kept rows count as done
    reports.clear()
    next(decoder.write(prompt, LIMITS))
    assert reports == [(20, 20)]  # a progress bar must end here too


class _ByPast:
    """Charge 0.25 (n + 1) + 0.01 p seconds for a pass of n rows over p, and refuse passes that are too large."""

    def seconds(self, nodes: int, past: int) -> float:
        assert nodes <= LIMITS.nodes
        return 0.25 + 0.25 * nodes + 0.01 * past


class _Priced(Device):
    cost_model: CostModel | None = _ByPast()


def test_a_target_with_known_costs_is_not_measured() -> None:
    device = _Priced(Clock(), lambda rows: 0.25 + 0.25 * rows + 0.01 * state.length)
    state = device.open(LIMITS)
    decoder = open_writer(device, state, greedy(), drafter=ScriptedDraft(lambda at: TEXT[min(at, END)]))
    decoder.open_draft(LIMITS)
    assert device.tickets == []
    assert [decoder.cost.seconds(nodes, 100) for nodes in (1, 2, 8)] == [1.5, 1.75, 3.25]
    limits = replace(LIMITS, depth=20)  # no pass could hold it, so that its cost is never requested
    assert list(decoder.write(np.array(TEXT[:1], np.int32), limits)) == TEXT[1:]
    assert decoder.cost.seconds(2, 0) == pytest.approx(0.75)
    assert decoder.rounds.drafted > 100


def test_a_target_with_unknown_costs_is_measured() -> None:
    device = _Priced(Clock(), lambda rows: 1.0 + rows)
    device.cost_model = None
    decoder = open_writer(device, device.open(LIMITS), greedy(), drafter=ScriptedDraft(lambda at: None))
    decoder.open_draft(LIMITS)
    assert len(device.tickets) == 4 * 3
    assert decoder.cost.seconds(4, 0) == pytest.approx(5.0)


def test_commits_of_a_device_are_charged_in_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(autoregressive, "time", clock)
    device = Device(clock, lambda rows: 1.0)
    state: Any = device.open(LIMITS)
    commit = state.commit

    def slowly(nodes: I32) -> None:
        clock.go(100.0)
        commit(nodes)

    state.commit = slowly
    for reported, expected in ((None, 1000.0), (0.25, 2.5)):
        if reported:
            state.commit_seconds = reported
        decoder = open_writer(device, state, greedy())
        state.length = 0
        tokens = decoder.write(np.array(TEXT[:1], np.int32), LIMITS)
        assert list(islice(tokens, 10)) == TEXT[1:11]
        assert decoder.rounds.commit_seconds == pytest.approx(expected)
