"""Test that reservations never exceed the budget, who gives memory back and when, and that nothing leaks."""

from __future__ import annotations

import random
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgedec.errors import BudgetError, EdgedecError, UsageError
from edgedec.runtime.engine.ledger import AdmissionError, MemoryLedger, Reclaimer, Reservation

ORDER = ("idle pools", "drafter", "prompt cache", "idle sequences")


@dataclass
class Part:
    """A part of a server that holds pages, and gives all of them back."""

    name: str
    calls: list[str]
    pages: int = 200
    fails: bool = False

    def reclaim(self) -> None:
        self.calls.append(self.name)
        if self.fails:
            raise EdgedecError("the disk is full")
        self.pages = 0

    def reclaimer(self) -> Reclaimer:
        def opened() -> None:
            self.calls.append(f"{self.name} open")

        return Reclaimer(name=self.name, reclaimable=lambda: self.pages, reclaim=self.reclaim, opened=opened)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """A ledger of 1,600 bytes with 100 for small requests and 1,300 for weights, and four parts of 200 pages each."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.clock = Clock()
        self.parts = {name: Part(name, self.calls) for name in ORDER}
        reclaimers = [part.reclaimer() for part in self.parts.values()]
        self.ledger = MemoryLedger(1600, floor_bytes=100, reclaimers=reclaimers, clock=self.clock)
        self.ledger.charge("weights", 1300)
        assert self.ledger.free_bytes == 200


def test_items_add_up_and_are_given_back_exactly() -> None:
    ledger = MemoryLedger(1000)
    weights = ledger.charge("weights", 300)
    with ledger.reserve("sequences", 100), ledger.reserve("sequences", 50) as second:
        assert ledger.items() == {"weights": 300, "sequences": 150}
        assert (ledger.charged_bytes, ledger.free_bytes) == (450, 550)
        second.close()
        second.close()
        assert (second.nbytes, ledger.charged_bytes) == (0, 400)
    assert ledger.items() == {"weights": 300, "sequences": 0}
    weights.close()
    assert (ledger.charged_bytes, ledger.free_bytes, ledger.peak_bytes) == (0, 1000, 450)


def test_wrong_amounts_are_refused() -> None:
    ledger = MemoryLedger(10)
    for reserve in (ledger.charge, ledger.reserve):
        with pytest.raises(UsageError, match="kv: a reservation must not be negative, and is -1"):
            reserve("kv", -1)
    assert ledger.charged_bytes == 0


def test_what_lasts_must_fit_without_the_floor() -> None:
    ledger = MemoryLedger(1000, floor_bytes=100)
    ledger.charge("weights", 850)
    with pytest.raises(
        BudgetError, match=r"drafter needs 51 B, and 50 B of the memory budget of 1000 B are free; raise"
    ):
        ledger.charge("drafter", 51)
    with pytest.raises(BudgetError, match="one small request needs 11 B, the memory budget is 10 B; raise"):
        MemoryLedger(10, floor_bytes=11)


def test_a_refusal_says_what_is_free_and_whether_waiting_helps() -> None:
    ledger = MemoryLedger(1000, floor_bytes=100)
    ledger.charge("weights", 500)
    held = ledger.reserve("sequences", 300)
    with pytest.raises(AdmissionError) as caught:
        ledger.reserve("sequence 7", 101)
    refusal = caught.value
    assert (refusal.asked_bytes, refusal.free_bytes, refusal.largest_bytes) == (101, 100, 400)
    assert (refusal.small, refusal.never, ledger.refused) == (False, False, 1)
    assert str(refusal) == (
        "sequence 7 needs 101 B, of which 100 B are free; try again when another request has ended, or make it smaller"
    )
    with pytest.raises(AdmissionError, match="the most that one request can have is 400 B; make it smaller") as caught:
        ledger.reserve("sequence 8", 401)
    assert caught.value.never
    held.close()
    assert ledger.reserve("sequence 7", 101).nbytes == 101


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


# --- shortage ---------------------------------------------------------------------------------------------------------


def test_parts_give_pages_back_one_after_another_and_keep_their_reservations() -> None:
    server = Server()
    for number, name in enumerate(ORDER, 1):
        assert server.ledger.relieve() == 200
        assert server.calls == list(ORDER[:number])
        assert server.calls[-1] == name
    assert server.ledger.relieve() == 0
    assert (server.ledger.charged_bytes, server.ledger.free_bytes) == (1300, 200)
    assert server.calls == list(ORDER)


def test_a_reservation_asks_nobody() -> None:
    server = Server()
    with pytest.raises(AdmissionError):
        server.ledger.reserve("requests", 201)
    assert server.calls == []
    assert server.ledger.all_open


def test_a_part_that_fails_is_passed_over() -> None:
    server = Server()
    server.parts["idle pools"].fails = True
    assert server.ledger.relieve() == 200
    assert server.calls == ["idle pools", "drafter"]


def test_another_failure_passes_and_leaves_the_ledger_usable() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    ledger = MemoryLedger(10, reclaimers=[Reclaimer(name="x", reclaimable=lambda: 5, reclaim=fail)])
    with pytest.raises(ZeroDivisionError):
        ledger.relieve()
    assert ledger.reserve("b", 2).nbytes == 2


def test_a_part_that_gave_memory_back_opens_after_a_calm_time_in_the_opposite_order() -> None:
    server = Server()
    ledger, clock = server.ledger, server.clock
    ledger.relieve()
    ledger.relieve()
    assert [one["open"] for one in ledger.as_json()["reclaimers"]] == [False, False, True, True]
    clock.now = 4.9
    ledger.recover()
    assert server.calls[2:] == []
    clock.now = 5.0
    ledger.recover()
    assert server.calls[2:] == ["drafter open"]
    ledger.recover()
    assert server.calls[2:] == ["drafter open"]  # one at a time
    clock.now = 10.0
    ledger.recover()
    assert server.calls[2:] == ["drafter open", "idle pools open"]
    assert ledger.all_open
    clock.now = 100.0
    ledger.recover()
    assert len(server.calls) == 4


def test_a_part_that_is_asked_again_while_it_is_closed_opens_once() -> None:
    server = Server()
    server.ledger.relieve()
    server.parts["idle pools"].pages = 50
    server.clock.now = 4.0
    assert server.ledger.relieve() == 50
    server.clock.now = 6.0
    server.ledger.recover()
    assert not server.ledger.all_open  # the last shortage was two seconds ago
    server.clock.now = 9.0
    server.ledger.recover()
    assert server.ledger.all_open
    assert server.calls == ["idle pools", "idle pools", "idle pools open"]


def test_shortage_after_shortage_does_not_load_the_drafter_again_and_again() -> None:
    """Let memory be short each second of every tenth one, and let the drafter grow whenever it may."""
    server = Server()
    drafter, loads = server.parts["drafter"], 0
    server.parts["idle pools"].pages = 0
    for second in range(300):
        server.clock.now = float(second)
        if second % 10 == 0:
            server.ledger.relieve()
        server.ledger.recover()
        if server.ledger.all_open and not drafter.pages:
            drafter.pages = 200
            loads += 1
    assert 0 < loads <= 300 / 10
    assert server.calls.count("drafter") <= loads + 1


@pytest.mark.parametrize("budget", [None, 1000])
def test_a_ledger_that_is_shut_gives_out_the_floor_alone(budget: int | None) -> None:
    clock, part = Clock(), Part("prompt cache", [])
    ledger = MemoryLedger(budget, floor_bytes=100, reclaimers=[part.reclaimer()], clock=clock)
    before = ledger.reserve("requests", 10)
    ledger.relieve()
    ledger.shut()
    assert ledger.as_json()["shut"]
    with pytest.raises(AdmissionError) as caught:
        ledger.reserve("requests", 101)
    assert (caught.value.small, caught.value.free_bytes, ledger.refused) == (False, 0, 1)
    small = ledger.reserve("requests", 100)
    with pytest.raises(AdmissionError) as caught:
        ledger.reserve("requests", 1)
    assert caught.value.small
    small.close()
    assert ledger.reserve("requests", 1).from_floor
    clock.now = 100.0
    ledger.recover()
    assert not ledger.all_open
    ledger.end_relief()
    ledger.recover()
    assert ledger.all_open
    assert not ledger.reserve("requests", 101).from_floor
    before.close()


def test_without_a_budget_everything_is_admitted_and_counted() -> None:
    ledger = MemoryLedger(None)
    ledger.charge("weights", 1 << 40)
    held = ledger.reserve("sequences", 1 << 50)
    assert (ledger.free_bytes, ledger.charged_bytes) == (None, (1 << 40) + (1 << 50))
    held.close()
    assert ledger.charged_bytes == 1 << 40


def test_json_has_the_items_and_who_may_grow() -> None:
    server = Server()
    server.ledger.reserve("sequences", 100)
    server.ledger.relieve()
    data = server.ledger.as_json()
    assert data["reclaimers"][0] == {"name": "idle pools", "reclaimable_bytes": 0, "open": False}
    assert data["reclaimers"][1] == {"name": "drafter", "reclaimable_bytes": 200, "open": True}
    assert data["items"] == {"weights": 1300, "sequences": 100}
    assert (data["budget_bytes"], data["charged_bytes"], data["free_bytes"]) == (1600, 1400, 100)
    assert (data["floor_bytes"], data["floor_used_bytes"], data["peak_bytes"]) == (100, 0, 1400)


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
        free, shut = self.ledger.free_bytes, self.ledger.is_shut
        assert free is not None
        floor_free = self.ledger.floor_bytes - self.ledger.as_json()["floor_used_bytes"]
        lasting = sum(one.nbytes for one in self.held if one.lasting)
        general = (self.ledger.budget_bytes or 0) - self.ledger.floor_bytes - lasting
        if nbytes <= floor_free or (nbytes <= free and not shut):
            self.held.append(self.ledger.reserve("sequences", nbytes))
            assert self.held[-1].from_floor == (shut or nbytes > free)
            return
        with pytest.raises(AdmissionError) as caught:
            self.ledger.reserve("sequences", nbytes)
        assert caught.value.never == (nbytes > max(general, self.ledger.floor_bytes))
        assert caught.value.small == (nbytes <= self.ledger.floor_bytes)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1 << 20))
    def release(self, which: int) -> None:
        self.held.pop(which % len(self.held)).close()

    @rule(seconds=st.floats(0, 10))
    def rest(self, seconds: float) -> None:
        self.clock.now += seconds
        self.ledger.recover()

    @rule(part=st.integers(0, 2), pages=st.integers(0, 100), fails=st.booleans())
    def grow(self, part: int, pages: int, fails: bool) -> None:
        self.parts[part].pages, self.parts[part].fails = pages, fails

    @rule()
    def relieve(self) -> None:
        held, called = sum(one.pages for one in self.parts), len(self.calls)
        given = self.ledger.relieve()
        assert given == held - sum(one.pages for one in self.parts)
        assert given or all(one.fails or not one.pages for one in self.parts)
        new = self.calls[called:]
        assert new == [name for name in ORDER if name in new]  # each at most once, in order

    @rule()
    def shut(self) -> None:
        self.ledger.shut()

    @rule()
    def end_relief(self) -> None:
        self.ledger.end_relief()

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger, budget = self.ledger, self.ledger.budget_bytes
        assert budget is not None
        open_bytes = sum(one.nbytes for one in self.held)
        assert ledger.charged_bytes == sum(ledger.items().values()) == open_bytes <= ledger.peak_bytes <= budget
        data = ledger.as_json()
        assert 0 <= data["floor_used_bytes"] <= ledger.floor_bytes
        assert open_bytes - data["floor_used_bytes"] + data["free_bytes"] == budget - ledger.floor_bytes

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            for one in self.held:
                one.close()
            assert self.ledger.charged_bytes == 0
            assert not any(self.ledger.items().values())


Interleavings.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_any_interleaving = Interleavings.TestCase


@given(st.integers(0, 1 << 30))
@settings(max_examples=3, deadline=None)
def test_threads_never_exceed_the_budget(seed: int) -> None:
    """Let eight threads reserve and close at random, while a ninth lets a part give pages back and opens it."""
    part = Part("prompt cache", [])
    ledger = MemoryLedger(1000, floor_bytes=50, reclaimers=[part.reclaimer()])
    failures = list[BaseException]()

    def work(number: int) -> None:
        draw = random.Random(seed + number)
        held = list[Reservation]()
        try:
            for _ in range(150):
                assert ledger.charged_bytes <= 1000
                if number == 0:
                    ledger.relieve()
                    ledger.shut()
                    ledger.end_relief()
                    ledger.recover()
                elif draw.randrange(3):
                    with suppress(AdmissionError):
                        held.append(ledger.reserve("sequences", draw.randrange(200)))
                elif held:
                    held.pop(draw.randrange(len(held))).close()
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
    assert ledger.charged_bytes == 0
    assert ledger.peak_bytes <= 1000


def test_a_ledger_adopts_what_does_not_last() -> None:
    former, ledger = MemoryLedger(1000, floor_bytes=50), MemoryLedger(700)
    former.charge("weights", 500)
    large, small, closed = former.reserve("bodies", 450), former.reserve("bodies", 50), former.reserve("bodies", 0)
    assert small.from_floor
    closed.close()
    ledger.charge("weights", 300)
    ledger.adopt(former)
    assert (former.items(), former.charged_bytes) == ({"weights": 500, "bodies": 0}, 500)
    assert (ledger.items(), ledger.charged_bytes) == ({"weights": 300, "bodies": 500}, 800)
    ledger.adopt(ledger)
    assert ledger.charged_bytes == 800
    with pytest.raises(AdmissionError):
        ledger.reserve("bodies", 1)  # it holds more than its budget
    for one in (large, small, large):
        one.close()
    assert (ledger.items(), ledger.charged_bytes) == ({"weights": 300, "bodies": 0}, 300)
    assert former.charged_bytes == 500


def test_a_reservation_that_outlives_the_ledger_keeps_no_reclaimer() -> None:
    class Model:
        """The owner of what a reclaimer gives back."""

        def reclaimable(self) -> int:
            return 10

        def reclaim(self) -> None:
            raise AssertionError("the ledger has ended")

    model = Model()
    part = Reclaimer(name="a", reclaimable=model.reclaimable, reclaim=model.reclaim)
    ledger = MemoryLedger(100, reclaimers=[part])
    reservation, held = ledger.reserve("requests", 60), weakref.ref(model)
    ledger.end()
    del model, part
    assert held() is None
    assert ledger.relieve() == 0
    ledger.recover()
    assert ledger.as_json()["reclaimers"] == []
    reservation.close()
    assert ledger.free_bytes == 100
