"""Test that reservations never exceed the budget, who gives memory back and when, and that nothing leaks."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgedec.errors import BudgetError, EdgedecError, UsageError
from edgedec.runtime.engine.ledger import AdmissionError, MemoryLedger, Reclaimer, Reservation


@dataclass
class Part:
    """A part of a server that holds some reservations, and gives them back one after another."""

    name: str
    calls: list[str]
    held: list[Reservation] = field(default_factory=list)
    fails: bool = False

    def reclaimable(self) -> int:
        return sum(one.nbytes for one in self.held)

    def reclaim(self, nbytes: int) -> None:
        self.calls.append(self.name)
        if self.fails:
            raise EdgedecError("the disk is full")
        while self.held and nbytes > 0:
            nbytes -= self.held[-1].nbytes
            self.held.pop().close()

    def reclaimer(self) -> Reclaimer:
        def opened() -> None:
            self.calls.append(f"{self.name} open")

        return Reclaimer(name=self.name, reclaimable=self.reclaimable, reclaim=self.reclaim, opened=opened)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


ORDER = ("idle pools", "drafter", "prompt cache", "idle sequences")


class Server:
    """A ledger of 1,600 bytes with 100 for small requests, 500 for weights, and four parts of 200 bytes each."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.clock = Clock()
        self.parts = {name: Part(name, self.calls) for name in ORDER}
        reclaimers = [part.reclaimer() for part in self.parts.values()]
        self.ledger = MemoryLedger(1600, floor_bytes=100, reclaimers=reclaimers, clock=self.clock)
        self.weights = self.ledger.charge("weights", 500)
        for name, part in self.parts.items():
            for _ in range(2):
                part.held.append(self.ledger.reserve(name, 100))
        assert self.ledger.free_bytes == 200


def test_items_add_up_and_are_given_back_exactly() -> None:
    ledger = MemoryLedger(1000)
    weights = ledger.charge("weights", 300)
    with ledger.reserve("sequences", 100) as first, ledger.reserve("sequences", 50) as second:
        assert ledger.items() == {"weights": 300, "sequences": 150}
        second.shrink(20)
        assert (first.nbytes, second.nbytes, ledger.charged_bytes, ledger.free_bytes) == (100, 20, 420, 580)
        second.close()
        second.close()
        assert ledger.charged_bytes == 400
    assert ledger.items() == {"weights": 300, "sequences": 0}
    weights.close()
    assert (ledger.charged_bytes, ledger.free_bytes, ledger.peak_bytes) == (0, 1000, 450)


def test_wrong_amounts_are_refused() -> None:
    ledger = MemoryLedger(10)
    for reserve in (ledger.charge, ledger.reserve):
        with pytest.raises(UsageError, match="kv: a reservation must not be negative, and is -1"):
            reserve("kv", -1)
    reservation = ledger.reserve("kv", 5)
    for nbytes in (-1, 6):
        with pytest.raises(UsageError, match=f"a reservation of 5 bytes cannot shrink to {nbytes}"):
            reservation.shrink(nbytes)
    assert ledger.charged_bytes == 5


def test_what_lasts_must_fit_without_the_floor() -> None:
    ledger = MemoryLedger(1000, floor_bytes=100)
    ledger.charge("weights", 850)
    with pytest.raises(
        BudgetError, match=r"drafter needs 51 B, and 50 B of the memory budget of 1000 B are free; raise"
    ):
        ledger.charge("drafter", 51)
    with pytest.raises(BudgetError, match="one small request needs 11 B, the memory budget is 10 B; raise"):
        MemoryLedger(10, floor_bytes=11)


def test_memory_is_given_back_in_order_and_then_refused() -> None:
    server = Server()
    ledger, held = server.ledger, []
    for name in ORDER:
        held.append(ledger.reserve("sequences", 300 if name == ORDER[0] else 200))
        assert server.calls[-1] == name  # each gives 200 bytes, and 100 are left of the first 200
    assert server.calls == list(ORDER)
    assert ledger.free_bytes == 100
    with pytest.raises(AdmissionError) as caught:
        ledger.reserve("sequence 7", 101)
    refusal = caught.value
    assert (refusal.asked_bytes, refusal.free_bytes, refusal.reclaimable_bytes) == (101, 100, 0)
    assert (refusal.largest_bytes, refusal.small, refusal.never) == (1000, False, False)
    assert str(refusal) == (
        "sequence 7 needs 101 B, of which 100 B are free and 0 B could be freed; try again when another request has ended, "
        "or make it smaller"
    )
    assert ledger.refused == 1
    held[0].close()
    assert ledger.reserve("sequence 7", 101).nbytes == 101


def test_no_more_is_taken_back_than_is_needed_with_some_slack() -> None:
    server = Server()
    server.ledger.reserve("sequences", 200)
    server.ledger.reserve("sequences", 1).close()
    assert server.calls == ["idle pools"]
    assert server.parts["idle pools"].reclaimable() == 0  # 1 byte and the slack of 100 take both of its reservations
    assert server.parts["drafter"].reclaimable() == 200


def test_what_can_never_fit_takes_nothing_from_others() -> None:
    server = Server()
    with pytest.raises(AdmissionError, match="the most that one request can have is 1000 B; make it smaller") as caught:
        server.ledger.reserve("sequence 1", 1001)
    assert caught.value.never
    assert server.calls == []


def test_a_part_that_fails_is_passed_over() -> None:
    server = Server()
    server.parts["idle pools"].fails = True
    assert server.ledger.reserve("sequences", 250)
    assert server.calls == ["idle pools", "drafter"]


def test_another_failure_passes_and_leaves_the_ledger_usable() -> None:
    def fail(nbytes: int) -> None:
        raise ZeroDivisionError

    ledger = MemoryLedger(10, reclaimers=[Reclaimer(name="x", reclaimable=lambda: 5, reclaim=fail)])
    ledger.reserve("a", 8)
    with pytest.raises(ZeroDivisionError):
        ledger.reserve("b", 3)
    assert (ledger.charged_bytes, ledger.reserve("b", 2).nbytes) == (8, 2)


def test_a_part_may_reserve_while_it_gives_back() -> None:
    """Let a part take a buffer to write to the disk; that asks no reclaimer, so there is no endless recursion."""
    calls = 0

    def reclaim(nbytes: int) -> None:
        nonlocal calls
        calls += 1
        with pytest.raises(AdmissionError):
            ledger.reserve("buffer", 5)
        with ledger.reserve("buffer", 1):
            big.shrink(2)

    ledger = MemoryLedger(10)
    big = ledger.reserve("a", 8)
    ledger.add_reclaimer(Reclaimer(name="a", reclaimable=lambda: big.nbytes, reclaim=reclaim))
    assert ledger.reserve("b", 6).nbytes == 6
    assert calls == 1
    with pytest.raises(UsageError, match="the ledger has a reclaimer 'a' already"):
        ledger.add_reclaimer(Reclaimer(name="a", reclaimable=lambda: 0, reclaim=reclaim))


# --- small requests ---------------------------------------------------------------------------------------------------


def test_a_small_request_is_admitted_when_everything_else_is_taken() -> None:
    ledger = MemoryLedger(1000, floor_bytes=100)
    large = ledger.reserve("sequences", 900)
    small = ledger.reserve("sequences", 100)
    assert ledger.charged_bytes == ledger.peak_bytes == 1000
    with pytest.raises(AdmissionError) as caught:
        ledger.reserve("sequences", 100)
    assert caught.value.small  # it waits for the other small one
    with pytest.raises(AdmissionError) as caught:
        ledger.reserve("sequences", 101)
    assert not caught.value.small
    small.close()
    assert ledger.reserve("sequences", 100).nbytes == 100
    large.close()
    assert ledger.free_bytes == 900


def test_large_requests_never_take_the_floor() -> None:
    ledger = MemoryLedger(1000, floor_bytes=100)
    with pytest.raises(AdmissionError, match="the most that one request can have is 900 B"):
        ledger.reserve("sequences", 901)
    assert ledger.reserve("sequences", 900).nbytes == 900


# --- hysteresis -------------------------------------------------------------------------------------------------------


def test_a_part_that_gave_memory_back_does_not_grow_at_once() -> None:
    server = Server()
    ledger, clock = server.ledger, server.clock
    large = ledger.reserve("sequences", 500)
    assert server.calls == ["idle pools", "drafter"]
    large.close()
    assert ledger.free_bytes == 600
    assert ledger.offer("drafter", 200, "drafter") is None
    assert ledger.offer("cache", 100, "prompt cache") is not None  # it gave nothing back
    ledger.recover()
    assert server.calls[2:] == []
    clock.now = 5.0
    ledger.recover()
    assert server.calls[2:] == ["drafter open"]  # the opposite order
    ledger.recover()
    assert server.calls[2:] == ["drafter open"]  # one at a time
    assert ledger.offer("drafter", 200, "drafter") is not None
    clock.now = 10.0
    ledger.recover()
    assert server.calls[2:] == ["drafter open", "idle pools open"]
    ledger.recover()
    assert len(server.calls) == 4


def test_a_part_stays_closed_while_there_is_no_room_for_what_it_gave() -> None:
    server = Server()
    ledger, clock = server.ledger, server.clock
    held = ledger.reserve("sequences", 300)
    assert server.calls == ["idle pools"]
    assert ledger.free_bytes == 100
    clock.now = 100.0
    ledger.recover()
    assert server.calls == ["idle pools"]
    held.shrink(101)
    assert ledger.free_bytes == 299  # 200 that it gave, and the slack of 100, are not free
    ledger.recover()
    assert server.calls == ["idle pools"]
    held.shrink(100)
    ledger.recover()
    assert server.calls == ["idle pools", "idle pools open"]


def test_offers_leave_some_memory_free() -> None:
    server = Server()
    assert server.ledger.offer("cache", 101, "prompt cache") is None  # 200 are free, the slack is 100
    offered = server.ledger.offer("cache", 100, "prompt cache")
    assert offered is not None
    assert server.calls == []
    with pytest.raises(UsageError, match="cache needs the reclaimer 'nobody', which the ledger does not have"):
        server.ledger.offer("cache", 1, "nobody")


def test_demand_at_the_limit_does_not_oscillate() -> None:
    """Let requests come and go each second at the limit, and load the drafter whenever it is allowed."""
    server = Server()
    drafter, loads = server.parts["drafter"], 0
    for second in range(300):
        server.clock.now = float(second)
        with server.ledger.reserve("sequences", 500):
            pass
        server.ledger.recover()
        if not drafter.held and (loaded := server.ledger.offer("drafter", 200, "drafter")):
            drafter.held.append(loaded)
            loads += 1
    assert loads <= 300 / 5
    assert server.calls.count("drafter") <= loads + 1


# --- pressure ---------------------------------------------------------------------------------------------------------


def test_relief_takes_one_part_after_another_and_withholds_what_it_gave() -> None:
    server = Server()
    ledger = server.ledger
    for name in ORDER:
        assert ledger.relieve() == 200
        assert server.calls[-1] == name
    assert ledger.relieve() == 0
    assert ledger.as_json()["withheld_bytes"] == 800
    assert ledger.free_bytes == 200
    with pytest.raises(AdmissionError) as caught:
        ledger.reserve("sequences", 201)
    assert not caught.value.never
    assert ledger.reserve("sequences", 200).nbytes == 200
    assert ledger.reserve("small", 100).nbytes == 100  # still admitted
    server.clock.now = 1000.0
    ledger.recover()
    assert server.calls == list(ORDER)  # nothing opens while memory is withheld
    ledger.end_relief()
    assert ledger.free_bytes == 800
    ledger.recover()
    assert server.calls[-1] == "idle sequences open"


def test_a_part_that_gives_pages_alone_is_asked_by_the_system_and_not_by_reservations() -> None:
    calls, pages, clock = list[str](), {"bytes": 300}, Clock()

    def reclaim(nbytes: int) -> None:
        calls.append(f"pages {nbytes}")
        pages["bytes"] = 0

    arena = Reclaimer(
        name="idle pools",
        reclaimable=lambda: pages["bytes"],
        reclaim=reclaim,
        opened=lambda: calls.append("open"),
        pages_only=True,
    )
    ledger = MemoryLedger(1000, reclaimers=[arena], clock=clock)
    held = ledger.charge("arena", 1000)
    with pytest.raises(AdmissionError):
        ledger.reserve("requests", 1)
    assert calls == []
    assert (ledger.relieve(), ledger.relieve()) == (300, 0)
    assert (calls, held.nbytes, ledger.all_open) == (["pages 300"], 1000, False)
    clock.now = 100.0
    ledger.recover()  # although nothing is free: it is reserved already
    assert (calls[1:], ledger.all_open) == (["open"], True)


@pytest.mark.parametrize("budget", [None, 1000])
def test_a_ledger_that_is_shut_gives_out_the_floor_alone(budget: int | None) -> None:
    part = Part("prompt cache", [])
    ledger = MemoryLedger(budget, floor_bytes=100, reclaimers=[part.reclaimer()])
    before = ledger.reserve("requests", 10)
    ledger.shut()
    assert ledger.as_json()["shut"]
    with pytest.raises(AdmissionError) as caught:
        ledger.reserve("requests", 101)
    assert (caught.value.small, caught.value.free_bytes, ledger.refused) == (False, 0, 1)
    assert ledger.offer("prompt cache", 1, "prompt cache") is None
    small = ledger.reserve("requests", 100)
    with pytest.raises(AdmissionError) as caught:
        ledger.reserve("requests", 1)
    assert caught.value.small
    small.close()
    assert ledger.reserve("requests", 1).from_floor
    ledger.end_relief()
    assert not ledger.reserve("requests", 101).from_floor
    before.close()


def test_without_a_budget_everything_is_admitted_and_counted() -> None:
    ledger = MemoryLedger(None)
    part = Part("cache", [])
    ledger.add_reclaimer(part.reclaimer())
    ledger.charge("weights", 1 << 40)
    held = ledger.reserve("sequences", 1 << 50)
    offered = ledger.offer("cache", 1 << 60, "cache")
    assert offered is not None
    part.held.append(offered)
    assert (ledger.free_bytes, ledger.charged_bytes) == (None, (1 << 40) + (1 << 50) + (1 << 60))
    assert ledger.relieve() == 1 << 60
    held.close()
    assert ledger.charged_bytes == 1 << 40


def test_json_has_the_items_and_who_may_grow() -> None:
    server = Server()
    server.ledger.reserve("sequences", 300)
    data = server.ledger.as_json()
    assert data["reclaimers"][0] == {"name": "idle pools", "reclaimable_bytes": 0, "open": False}
    assert data["reclaimers"][1] == {"name": "drafter", "reclaimable_bytes": 200, "open": True}
    assert sum(data["items"].values()) == data["charged_bytes"] == 1400
    assert data["items"]["weights"] == 500
    assert (data["budget_bytes"], data["free_bytes"], data["floor_bytes"], data["peak_bytes"]) == (1600, 100, 100, 1400)


# --- any interleaving -------------------------------------------------------------------------------------------------


class Interleavings(RuleBasedStateMachine):
    """Any order of calls keeps the sum within the budget, and the items equal to the reservations that are open."""

    @initialize(budget=st.integers(0, 400), floor=st.integers(0, 60), weights=st.integers(0, 200))
    def begin(self, budget: int, floor: int, weights: int) -> None:
        floor = min(floor, budget)
        self.calls: list[str] = []
        self.clock = Clock()
        self.parts = [Part(name, self.calls) for name in ORDER[1:]]
        self.ledger = MemoryLedger(
            budget, floor_bytes=floor, clock=self.clock, reclaimers=[one.reclaimer() for one in self.parts]
        )
        self.held = [self.ledger.charge("weights", min(weights, budget - floor))]

    @rule(nbytes=st.integers(0, 250))
    def reserve(self, nbytes: int) -> None:
        free, largest = self.ledger.free_bytes, self.ledger._largest()
        reclaimable = sum(one.reclaimable() for one in self.parts)
        called = len(self.calls)
        assert free is not None
        refusal: AdmissionError | None = None
        try:
            self.held.append(self.ledger.reserve("sequences", nbytes))
        except AdmissionError as error:
            refusal = error
        if refusal is not None:
            assert nbytes > free
            assert refusal.never == (nbytes > largest)
            # Whatever could have been given back would not have been enough.
            assert refusal.never or nbytes > free + reclaimable - refusal.reclaimable_bytes
            assert refusal.small == (nbytes <= self.ledger.floor_bytes)
        new = self.calls[called:]
        assert new == [name for name in ORDER if name in new]  # each at most once, in order
        if nbytes <= free:
            assert new == []

    @rule(part=st.integers(0, 2), nbytes=st.integers(0, 100))
    def offer(self, part: int, nbytes: int) -> None:
        called = len(self.calls)
        if taken := self.ledger.offer(self.parts[part].name, nbytes, self.parts[part].name):
            self.parts[part].held.append(taken)
        assert len(self.calls) == called

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1 << 20), share=st.floats(0, 1))
    def release(self, which: int, share: float) -> None:
        one = self.held[which % len(self.held)]
        if share < 0.5:
            one.shrink(int(one.nbytes * share))
        else:
            self.held.remove(one)
            one.close()

    @rule(seconds=st.floats(0, 10))
    def rest(self, seconds: float) -> None:
        self.clock.now += seconds
        self.ledger.recover()

    @rule()
    def relieve(self) -> None:
        held = self.ledger.charged_bytes
        given = self.ledger.relieve()
        assert given == held - self.ledger.charged_bytes
        assert given or not any(one.reclaimable() for one in self.parts if not one.fails)

    @rule()
    def end_relief(self) -> None:
        self.ledger.end_relief()

    @rule(part=st.integers(0, 2), fails=st.booleans())
    def break_part(self, part: int, fails: bool) -> None:
        self.parts[part].fails = fails and part == 2

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger, budget = self.ledger, self.ledger.budget_bytes
        assert budget is not None
        open_bytes = sum(one.nbytes for one in [*self.held, *(one for part in self.parts for one in part.held)])
        assert ledger.charged_bytes == sum(ledger.items().values()) == open_bytes <= ledger.peak_bytes <= budget
        data = ledger.as_json()
        assert 0 <= data["floor_used_bytes"] <= ledger.floor_bytes
        general = budget - ledger.floor_bytes
        assert open_bytes - data["floor_used_bytes"] + data["withheld_bytes"] + data["free_bytes"] == general

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            for one in [*self.held, *(one for part in self.parts for one in part.held)]:
                one.close()
            assert self.ledger.charged_bytes == 0
            assert not any(self.ledger.items().values())


Interleavings.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_any_interleaving = Interleavings.TestCase


@given(st.integers(0, 1 << 30))
@settings(max_examples=3, deadline=None)
def test_threads_never_exceed_the_budget(seed: int) -> None:
    """Let eight threads reserve, shrink and close at random, while a ninth takes memory away and gives it back."""
    part = Part("prompt cache", [])
    ledger = MemoryLedger(1000, floor_bytes=50, reclaimers=[part.reclaimer()])
    guard, failures = threading.Lock(), list[BaseException]()

    def work(number: int) -> None:
        draw = random.Random(seed + number)
        held = list[Reservation]()
        try:
            for _ in range(150):
                assert ledger.charged_bytes <= 1000
                action = draw.randrange(5)
                if action < 2:
                    with suppress(AdmissionError):
                        held.append(ledger.reserve("sequences", draw.randrange(200)))
                elif action == 2 and held:
                    held.pop(draw.randrange(len(held))).close()
                elif action == 3 and held:
                    held[-1].shrink(held[-1].nbytes // 2)
                elif number == 0:
                    ledger.relieve()
                    ledger.end_relief()
                    ledger.recover()
                else:
                    with guard:
                        if taken := ledger.offer("prompt cache", draw.randrange(100), "prompt cache"):
                            part.held.append(taken)
        except BaseException as error:
            failures.append(error)
        finally:
            for one in held:
                one.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for one in part.held:
        one.close()
    assert ledger.charged_bytes == 0
    assert ledger.peak_bytes <= 1000
