"""Run passes over the rows of several sequences on the devices of edgedec.device, through the one driver.

Each sequence is compared with the integer model, which computes it alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from edgedec.device_steps import Performer, Step
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.reference.integer_profile.model import Sequence
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.driver.driver import BEST, NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.runtime.driver.parts import CachePart, PartRows, positions_read
from tests.conformance.support.devices import DEVICES, MODEL, Opener, embedding, tree
from tests.edgedec.reference.integer_profile.support.make_models import VOCAB
from tests.sim.support.make_small_top import CONFIG

SEVERAL = replace(CONFIG, sequences=3)  # three parts of 16 positions
IDS = VOCAB


@cache
def program() -> Program:
    return compile_model(MODEL, SEVERAL)


@pytest.fixture(params=DEVICES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(request.param, SEVERAL, tmp_path)
    yield opener
    opener.close()


@pytest.fixture
def driver(opened: Opener) -> Iterator[Driver]:
    with Driver(opened(), program(), embedding()) as driver:
        yield driver


class Texts:
    """The sequences of a driver, and each of them alone in the integer model."""

    def __init__(self, driver: Driver, seed: int = 0) -> None:
        self.driver, self.rng = driver, random.Random(seed)
        self.models: dict[CachePart, Sequence] = {part: MODEL.open() for part in driver.parts}

    def rows(self, part: CachePart, n: int) -> PartRows:
        """Return rows of a random tree, or of a chain."""
        parents = [self.rng.randrange(-1, row) if row else -1 for row in range(n)]
        ids = np.array([self.rng.randrange(IDS) for _ in range(n)], np.int32)
        if self.rng.random() < 0.5:
            return PartRows(part=part, ids=ids)
        positions, visible = tree(parents, part.length)
        return PartRows(part=part, ids=ids, positions=positions, visible=visible)

    def run(self, work: list[PartRows], logits: int = WHOLE_ROWS) -> None:
        """Run a pass, and compare the results of each sequence with those of the model."""
        self.driver.submit_parts(work, logits=logits)
        report, first = self.driver.finish(), 0
        read = positions_read(SEVERAL, [rows.sequence for rows in work])
        total = sum(len(rows.ids) for rows in work)
        assert report.beats == cycles(program(), slots=total, committed=read, logits=logits > 0).beats
        for rows in work:
            expected = self.expected(rows)
            slots = np.arange(first, first + len(rows.ids), dtype=np.int32)
            if logits == WHOLE_ROWS:
                actual = self.driver.logits(slots)
                assert np.array_equal(actual.values, expected.values)
                assert np.array_equal(actual.mantissa, expected.mantissa)
            if logits:
                assert np.array_equal(self.driver.results(slots).ids[:, 0], np.argmax(expected.values, axis=1))
            first += len(rows.ids)

    def expected(self, rows: PartRows) -> Logits:
        return self.models[rows.part].forward(rows.ids, positions=rows.positions, visible=rows.visible)

    def keep(self, part: CachePart, nodes: list[int]) -> None:
        self.driver.part = part
        self.driver.commit(np.array(nodes, np.int32))
        self.models[part].commit(np.array(nodes, np.int32))

    def keep_some(self, rows: PartRows) -> None:
        """Keep a path of a tree, or the beginning of a chain, or nothing."""
        n = len(rows.ids)
        seen = np.tri(n, dtype=np.bool_) if rows.visible is None else rows.visible
        end = self.rng.randrange(-1, n)
        self.keep(rows.part, np.flatnonzero(seen[end]).tolist() if end >= 0 else [])

    def step(self) -> None:
        """Run a pass, or post one, over rows of some sequences; others leave, and new ones take their place."""
        parts = self.rng.sample(self.driver.parts, self.rng.randint(1, 3))
        left, work = SEVERAL.slots - len(parts), list[PartRows]()
        for part in parts:
            if part.length > part.rows - SEVERAL.slots:
                self.driver.part = part
                self.driver.truncate(0)
                self.models[part] = MODEL.open()
            more = self.rng.randint(0, left)
            left -= more
            work.append(self.rows(part, 1 + more))
        kind = self.rng.choice([BEST, WHOLE_ROWS, NO_LOGITS, None])
        if kind is None:
            self.driver.post_parts(work)
            for rows in work:
                self.expected(rows)
        else:
            self.run(work, kind)
        for rows in self.rng.sample(work, len(work)):
            self.keep_some(rows)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 9))])
def test_texts_do_not_depend_on_the_schedule(driver: Driver, seed: int) -> None:
    texts = Texts(driver, seed)
    for _ in range(6):
        texts.step()
    for part in driver.parts:
        texts.run([texts.rows(part, 1)]) if part.length < part.rows else None


def test_a_pass_that_fails_loses_no_committed_row_of_any_sequence(opened: Opener) -> None:
    """Let the memory stall in a pass over two sequences, and keep slots of a third one that ran before it."""
    device = opened()
    with Driver(device, program(), embedding()) as driver:
        texts, (a, b, c) = Texts(driver), driver.parts
        texts.run([texts.rows(a, 1), texts.rows(b, 1), texts.rows(c, 2)])
        texts.keep(a, [0])
        texts.keep(b, [0])
        opened.stall(device, driver.registers.read("watchdog_limit") + 5000)
        driver.submit_parts([texts.rows(a, 1), texts.rows(b, 2)])
        with pytest.raises(DeviceError, match="the watchdog expired"):
            driver.finish()
        opened.mend(device)
        assert [part.slots for part in driver.parts] == [0, 0, 2]
        texts.keep(c, [0])
        texts.run([texts.rows(c, 1), texts.rows(b, 1), texts.rows(a, 2)])


def test_a_posted_pass_that_fails_takes_its_rows_along_of_each_sequence(driver: Driver) -> None:
    """Let the second of three posted passes of two sequences be refused; the third sequence has a pass before it."""
    texts, (a, b, c) = Texts(driver), driver.parts
    texts.run([texts.rows(a, 1), texts.rows(b, 1)])
    texts.keep(a, [0])
    texts.keep(b, [0])
    first = texts.rows(a, 1)
    driver.post_parts([first, texts.rows(c, 1)])
    for part in (a, c):
        driver.part = part
        driver.commit(np.zeros(1, np.int32))
    texts.expected(first)
    texts.models[a].commit(np.zeros(1, np.int32))
    driver.land()
    c.length = 2 * SEVERAL.context  # rows that are nobody's
    c.rows = 4 * SEVERAL.context
    failed = False
    try:
        for work in ([texts.rows(c, 1), texts.rows(b, 1)], [texts.rows(a, 1)]):
            driver.post_parts(work)
            for rows in work:
                driver.part = rows.part
                driver.commit(np.zeros(1, np.int32))
        driver.land()
    except DeviceError as error:
        failed = "a position is past the cache" in str(error)
    assert failed
    assert (a.length, b.length, c.length) == (2, 1, 2 * SEVERAL.context)
    c.length, c.rows = 0, a.rows
    texts.models[c] = MODEL.open()
    texts.run([texts.rows(a, 1), texts.rows(b, 1), texts.rows(c, 2)])


def test_registers_of_somebody_else_are_written_again(opened: Opener) -> None:
    """Let a driver find what another one has left, and keep apart what both of its passes have of one sequence."""
    device = opened()
    with Driver(device, program(), embedding()) as first:
        texts = Texts(first)
        texts.run([texts.rows(first.parts[2], 1), texts.rows(first.parts[1], 2)])
    with Driver(device, program(), embedding(), parts=1) as second:
        alone = Texts(second)
        alone.run([alone.rows(second.part, 3)])
        alone.keep(second.part, [0, 1])
        alone.run([alone.rows(second.part, 1)])


def test_a_driver_that_loads_again_writes_what_another_one_has_left(opened: Opener) -> None:
    """Let both run with parts of their own, of which the first one's are those that its registers had before."""
    device = opened()
    with Driver(device, program(), embedding()) as first:
        texts, (_, b, c) = Texts(first), first.parts
        texts.run([texts.rows(c, 1), texts.rows(b, 1)])
        texts.keep(c, [0])
        texts.keep(b, [0])
        texts.run([texts.rows(c, 1), texts.rows(b, 1)])
        with Driver(device, program(), embedding()) as second:
            others = Texts(second)
            others.run([others.rows(second.parts[0], 1)])
        first.load()
        texts.run([texts.rows(c, 1), texts.rows(b, 1)])


def test_the_registers_of_another_driver_are_not_written_to_lend_a_device(opened: Opener) -> None:
    device = opened()
    with Driver(device, program(), embedding()) as first, Driver(device, program(), embedding()) as second:
        others = Texts(second)
        others.run([others.rows(second.parts[1], 1)])
        first.part = first.parts[2]
        first.lend()  # the compiled loop writes registers, and looks first whose the accelerator is
        others.run([others.rows(second.parts[1], 1)])


def test_a_pass_over_several_sequences_is_one_request(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(driver.device, Performer):
        pytest.skip("this device is near")
    own, counts = driver.device.perform, list[int]()

    def counted(steps: list[Step]) -> list[int]:
        counts.append(len(steps))
        return own(steps)

    monkeypatch.setattr(driver.device, "perform", counted)
    for part in driver.parts:
        driver.submit_parts(
            [PartRows(part=one, ids=np.array([3], np.int32)) for one in driver.parts if one is not part]
        )
        assert len(counts) == 1
        driver.finish()
        counts.clear()


def test_what_a_pass_cannot_have_is_refused(driver: Driver) -> None:
    texts, (a, b, c) = Texts(driver), driver.parts
    with Driver(driver.device, program(), embedding(), parts=4) as more, pytest.raises(UsageError, match="1 to 3 seq"):
        more.submit_parts([PartRows(part=part, ids=np.array([3], np.int32)) for part in more.parts])
    driver.load()
    with pytest.raises(UsageError, match="of 1 to 3 sequences, each once, not of 2"):
        driver.submit_parts([texts.rows(a, 1), texts.rows(a, 1)])
    a.length = a.rows - 1
    with pytest.raises(UsageError, match="15 committed positions and 2 new ones pass the 16 that a sequence has"):
        driver.submit_parts([texts.rows(b, 1), texts.rows(a, 2)])
    a.length = 0
    texts.run([texts.rows(c, 1), texts.rows(a, 3)])
