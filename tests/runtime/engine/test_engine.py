"""Test the division of a step among sequences, and failures that concern one of them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgedec.errors import DeviceError
from edgedec.runtime.engine.chunk_size import STALL
from edgedec.runtime.engine.engine import Engine, Progress
from edgedec.runtime.protocols import Drafting, Pass, PassResult, Room, State, Target, Ticket, Token, TokenSequence
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.targets._results import FinishedTicket
from tests.runtime.support.fake_world import Clock, ScriptedTarget
from tests.support.no_collector import no_collector

TEXT = [1] * 4096


class Linear:
    """A cost model: ten seconds, and one for each row."""

    def seconds(self, nodes: int, past: int) -> float:
        return 10.0 + nodes


class Together(ScriptedTarget):
    """A target whose passes take the time of all rows together."""

    def submit(self, work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
        rows = sum(len(item.ids) for _, item in work)
        results = super().submit(work).result()
        return FinishedTicket([replace(result, seconds=self.seconds(rows)) for result in results])


class Scripted:
    """A sequence that reads ``prompt`` rows, and then wants as many rows as it may have, ``steps`` times."""

    def __init__(
        self,
        target: ScriptedTarget,
        *,
        prompt: int = 0,
        steps: int = 3,
        least: int = 1,
        most: int = 99,
        fails: str = "",
    ) -> None:
        self.state: State = target.open(None)  # type: ignore[arg-type]
        self.prompt, self.steps, self.most, self.fails = prompt, steps, most, fails
        self.least_rows = least
        self.rooms: list[Room] = []
        self.rows: list[int] = []

    @property
    def reading(self) -> bool:
        return self.state.length < self.prompt

    @property
    def unread(self) -> int:
        return max(0, self.prompt - self.state.length)

    @property
    def ended(self) -> bool:
        return not self.steps

    def next_pass(self, room: Room) -> Drafting[Pass | None]:
        yield from ()
        self._fail("next_pass")
        self.rooms.append(room)
        rows = min(room.rows, self.prompt - self.state.length if self.reading else self.most)
        self.rows.append(rows)
        count = np.arange(rows, dtype=np.int32)
        logits = count[:0] if self.reading else count
        return Pass(ids=count, positions=self.state.length + count, logits=logits) if rows else None

    @property
    def drafts_ahead(self) -> bool:
        return not self.reading

    def write_rounds(self, target: Target, sequences: Sequence[TokenSequence], rooms: Sequence[Room]) -> None:
        return None

    def draft_ahead(self) -> Drafting[None]:
        yield from ()
        self._fail("draft_ahead")

    def take(self, result: PassResult | None) -> list[Token]:
        self._fail("take")
        if self.reading:
            self.state.commit(np.arange(self.rows[-1], dtype=np.int32))
            return []
        self.steps -= 1
        return [Token(self.steps, guessed=False)]

    def _fail(self, place: str) -> None:
        if self.fails == place:
            raise ValueError(place)


def make(rows: int = 16, *, together: bool = True, known: bool = True) -> tuple[Engine, ScriptedTarget]:
    target = (Together if together else ScriptedTarget)(TEXT, Clock(), lambda rows: 10.0 + rows)
    cost = ObservedCost(Linear() if known else None)
    return Engine(target, rows=rows, cost=cost, together=together), target


def add(engine: Engine, *sequences: Scripted) -> Sequence[Scripted]:
    for sequence in sequences:
        engine.add(sequence)
    return sequences


def test_texts_share_the_rows_equally() -> None:
    engine, target = make(16)
    eager, modest, other = add(engine, Scripted(target), Scripted(target, most=1), Scripted(target))
    engine.step()
    assert (eager.rows, modest.rows, other.rows) == ([5], [1], [6])
    engine.step()
    assert eager.rooms[-1].beside == 7


@pytest.mark.parametrize("count", [1, 3, 15, 16])
def test_a_step_never_has_more_rows_than_the_engine(count: int) -> None:
    engine, target = make(16)
    sequences = add(engine, *(Scripted(target, prompt=40 * (at % 2), steps=5) for at in range(count)))
    while engine.sequences:
        before = [len(sequence.rows) for sequence in sequences]
        engine.step()
        step = [one.rows[at] for one, at in zip(sequences, before, strict=True) if len(one.rows) > at]
        assert 0 < sum(step) <= 16


def test_texts_that_need_eight_rows_get_them_or_wait_and_nobody_starves() -> None:
    """Eight texts that need 8 rows share 32: four of them run in a step, the others in the next one."""
    engine, target = make(32)
    texts = add(engine, *(Scripted(target, steps=6, least=8, most=8) for _ in range(8)))
    for step in range(1, 13):
        engine.step()
        counts = [len(text.rows) for text in texts]
        assert sum(counts) == 4 * step
        assert max(counts) - min(counts) <= 1
    assert all(text.rows == 6 * [8] and text.ended for text in texts)


def test_a_text_that_needs_many_rows_waits_for_one_step_beside_texts_that_take_all() -> None:
    engine, target = make(16)
    *eager, block = add(
        engine, *(Scripted(target, steps=9) for _ in range(3)), Scripted(target, steps=4, least=8, most=8)
    )
    for _ in range(8):
        engine.step()
    assert block.ended
    assert block.rows == 4 * [8]
    assert all(len(text.rows) >= 7 for text in eager)


@pytest.mark.parametrize("least", [1, 4])
def test_a_prompt_goes_on_beside_texts_that_take_all_rows(least: int) -> None:
    engine, target = make(16)
    *_, prompt = add(engine, *(Scripted(target, steps=60) for _ in range(3)), Scripted(target, prompt=24, least=least))
    steps = 0
    while prompt.reading:
        engine.step()
        steps += 1
    assert steps <= 2 * 24 + 24 // 7 + 1  # a row at least in every second pass, but for those without prompts
    assert min(prompt.rows) >= least


def test_short_prompts_are_read_in_one_pass() -> None:
    engine, target = make(16)
    prompts = add(engine, *(Scripted(target, prompt=length) for length in (5, 4, 30)))
    engine.step()
    assert [sequence.rows for sequence in prompts] == [[5], [4], [7]]


def passes_until_read(engine: Engine, prompt: Scripted) -> int:
    passes = engine.passes
    while prompt.reading:
        engine.step()
    return engine.passes - passes


@pytest.mark.thorough(sample=12)
@pytest.mark.parametrize("texts", [0, 1, 3])
@pytest.mark.parametrize("readers", [1, 5])
@pytest.mark.parametrize("length", [5, 16, 90])
@pytest.mark.parametrize("before", [0, 700])
def test_a_short_prompt_takes_at_most_twice_its_passes_and_one_beside_long_ones(
    texts: int, readers: int, length: int, before: int
) -> None:
    """The first of the long ones has read ``before`` rows already."""

    def passes(beside: int) -> int:
        engine, target = make(16)
        add(engine, *(Scripted(target, steps=10_000, most=1) for _ in range(texts)))
        (earlier,) = add(engine, Scripted(target, prompt=60, steps=1))  # the price of a row is known
        passes_until_read(engine, earlier)
        engine.remove(earlier)
        long = add(engine, *(Scripted(target, prompt=1900) for _ in range(beside)))
        while long and long[0].state.length < before:
            engine.step()
        (short,) = add(engine, Scripted(target, prompt=length))
        return passes_until_read(engine, short)

    alone = passes(0)
    if texts:  # in one pass of nine nothing is read
        alone += -(-alone // 8)
    assert passes(readers) <= 2 * alone + 1


def test_the_oldest_prompt_goes_on_in_every_second_pass_beside_shorter_ones() -> None:
    engine, target = make(16)
    (oldest,) = add(engine, Scripted(target, prompt=320))
    for _ in range(2 * (320 // 16) + 1):
        add(engine, Scripted(target, prompt=16, steps=10_000, most=0))  # a new one for each pass
        engine.step()
    assert not oldest.reading


@pytest.mark.parametrize("together", [True, False])
def test_a_prompt_alone_gets_all_rows(together: bool) -> None:
    engine, target = make(16, together=together)
    (prompt,) = add(engine, Scripted(target, prompt=40))
    assert passes_until_read(engine, prompt) == 3


def test_a_long_prompt_lengthens_the_passes_of_other_texts_a_little_only() -> None:
    engine, target = make(64)
    text, prompt = add(engine, Scripted(target, steps=100, most=2), Scripted(target, prompt=100, steps=1))
    while prompt.reading:
        engine.step()
    alone = 10.0 + 2
    assert all(alone < 10.0 + 2 + rows <= STALL * alone for rows in prompt.rows)
    assert max(prompt.rows) == int(STALL * alone) - 12  # the largest that is allowed
    assert len(text.rows) == len(prompt.rows) + len(prompt.rows) // 8  # after each eight, a pass is without the prompt


def test_the_rows_of_a_prompt_follow_what_was_measured() -> None:
    """Expect a cost of a tenth of the real one, as after a change of the machine's speed."""
    engine, target = make(64)
    (text,) = add(engine, Scripted(target, steps=1000, most=2))
    target.seconds = lambda rows: 100.0 + 10 * rows**1.2
    engine.step()
    (prompt,) = add(engine, Scripted(target, prompt=200, steps=1))
    while prompt.reading:
        engine.step()
    alone = target.seconds(2)
    lengths = [target.seconds(2 + rows) / alone for rows in prompt.rows]
    assert all(length <= 1.05 * STALL for length in lengths)
    assert max(lengths) > 0.8 * STALL
    assert len(text.rows) == 1 + len(prompt.rows) + len(prompt.rows) // 8


def test_a_prompt_goes_on_at_least_a_row_at_a_time() -> None:
    engine, target = make(64)
    target.seconds = lambda rows: 4.0**rows
    _, prompt = add(engine, Scripted(target, steps=100, most=1), Scripted(target, prompt=6))
    while prompt.reading:
        engine.step()
    assert prompt.rows == [2, 1, 1, 1, 1]


def test_targets_that_take_turns_see_no_rows_beside() -> None:
    engine, target = make(16, together=False)
    one, two = add(engine, Scripted(target, most=2), Scripted(target, most=2))
    for _ in range(2):
        engine.step()
    assert [room.beside for room in (*one.rooms, *two.rooms)] == [0, 0, 0, 0]


@pytest.mark.parametrize("place", ["next_pass", "draft_ahead", "take"])
def test_a_sequence_that_fails_ends_alone(place: str) -> None:
    engine, target = make(16)
    good, bad = add(engine, Scripted(target, steps=2), Scripted(target, fails=place))
    parts: dict[object, Progress] = {part.sequence: part for part in engine.step()}
    assert str(parts[bad].error) == place
    assert (len(parts[bad].tokens), parts[good].error, len(parts[good].tokens)) == (0, None, 1)
    assert engine.sequences == (good,)
    engine.step()
    assert not engine.sequences


def test_a_target_that_fails_ends_the_sequences_of_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, target = make(16)
    first, second, idle = add(engine, Scripted(target), Scripted(target), Scripted(target, most=0))

    def submit(work: object) -> Ticket:
        raise DeviceError("the device is gone")

    monkeypatch.setattr(target, "submit", submit)
    parts: dict[object, Progress] = {part.sequence: part for part in engine.step()}
    assert str(parts[first].error) == str(parts[second].error) == "the device is gone"
    assert parts[idle].error is None
    assert engine.sequences == (idle,)


def test_a_sequence_that_was_removed_has_no_part() -> None:
    engine, target = make(16)
    one, two = add(engine, Scripted(target), Scripted(target))
    engine.remove(one)
    engine.remove(one)
    engine.step()
    assert (one.rows, two.rows) == ([], [16])


def test_the_cost_of_passes_is_that_of_all_rows_together() -> None:
    engine, target = make(16, known=False)
    add(engine, Scripted(target, most=3), Scripted(target, most=3))
    engine.step()
    assert engine.cost.seconds(6, 0) == pytest.approx(16.0)


def test_an_engine_that_is_dropped_frees_the_caches_of_its_sequences_at_once() -> None:
    engine, target = make(16)
    (sequence,) = add(engine, Scripted(target, prompt=8))
    engine.step()
    cache = weakref.ref(sequence.state)
    with no_collector():
        del engine, sequence
        assert cache() is None


@pytest.mark.parametrize("steps", [1, 3], ids=["ended", "removed"])
def test_the_cache_of_a_sequence_is_freed_when_it_ends_while_others_go_on(steps: int) -> None:
    engine, target = make(16)
    other, sequence = add(engine, Scripted(target), Scripted(target, steps=steps))
    engine.step()
    engine.remove(sequence)
    assert engine.sequences == (other,)
    cache = weakref.ref(sequence.state)
    with no_collector():
        del sequence
        assert cache() is None
