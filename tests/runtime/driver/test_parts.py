"""Test the parts of a cache, and that the registers of sequences are written where they change, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import UsageError
from edgedec.hw.compiler.program import compile_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.parts import PartRows, divided, part_rows, positions_read
from edgedec.sim.devices.interpreter import InterpreterDevice
from tests.conformance.support.devices import MODEL, embedding
from tests.sim.support.make_small_top import CONFIG

NAMES = ("sequence_begins", "sequence_group", "later_committed")
ONE = np.array([3], np.int32)


def test_parts_are_whole_groups_that_follow_each_other() -> None:
    config = replace(CONFIG, beat_bytes=32, sequences=4, context=87)  # groups of 4 positions, of which 3 are nobody's
    assert config.kv_layout.positions == 4
    parts = divided(config, 4)
    assert [(part.group, part.rows) for part in parts] == [(0, 20), (5, 20), (10, 20), (15, 20)]
    assert part_rows(config, 1) == 87, "one sequence has the positions of the last group, too"
    assert part_rows(CONFIG, 1) == CONFIG.context
    with pytest.raises(UsageError, match=r"rows of one sequence, not 3: build it with sequences=3"):
        part_rows(CONFIG, 3)
    with pytest.raises(UsageError, match="87 positions cannot be divided into 22 parts: raise context"):
        part_rows(config, 22)


def test_positions_that_several_sequences_read_are_whole_groups() -> None:
    config = replace(CONFIG, beat_bytes=32, sequences=4)
    rows = [SequenceRows(slots=1, committed=committed) for committed in (5, 0, 4)]
    assert positions_read(config, rows) == 8 + 0 + 4
    assert positions_read(config, rows[:1]) == 5


class Spy:
    """Count the writes of the registers of sequences, and let one write fail."""

    def __init__(self, config: AcceleratorConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.names, self.fails = InterpreterDevice(config), list[str](), False
        offsets = {
            REGISTER_MAP[name].offset + 4 * index: f"{name}[{index}]"
            for name in NAMES
            for index in range(REGISTER_MAP[name].count)
        }
        write: Callable[[int, int], None] = self.device.write_register

        def spied(offset: int, value: int) -> None:
            if offset in offsets:
                self.names.append(offsets[offset])
                if self.fails:
                    raise KeyboardInterrupt
            write(offset, value)

        monkeypatch.setattr(self.device, "write_register", spied)
        self.driver = Driver(self.device, compile_model(MODEL, config), embedding())

    def written(self, action: Callable[[], Any]) -> list[str]:
        self.names.clear()
        action()
        return list(self.names)


def test_registers_are_written_where_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(replace(CONFIG, sequences=3), monkeypatch)
    driver = spy.driver
    a, b, c = driver.parts

    def run(*parts: Any) -> None:
        driver.submit_parts([PartRows(part=part, ids=ONE) for part in parts])
        driver.finish()

    begins, groups = "sequence_begins[0]", [f"sequence_group[{index}]" for index in range(3)]
    assert spy.written(lambda: run(a)) == [begins, groups[0]]
    assert spy.written(lambda: run(a)) == []
    assert spy.written(lambda: run(a, b)) == [begins, groups[1], "later_committed[0]"]
    driver.part = b
    driver.commit(np.zeros(1, np.int32))
    assert spy.written(lambda: run(a, b)) == ["later_committed[0]"]
    assert spy.written(lambda: run(b, c, a)) == [begins, *groups, "later_committed[0]", "later_committed[1]"]
    driver.part = c
    driver.forward(
        np.array([1, 2, 3], np.int32), positions=np.array([0, 1, 1], np.int32), visible=np.eye(3, dtype=bool)
    )
    assert spy.written(lambda: driver.commit(np.array([1], np.int32))) == []
    driver.part = a
    driver.forward(np.array([1, 2], np.int32))
    driver.part = b
    driver.forward(np.array([1, 2], np.int32))
    driver.part = a
    assert spy.written(lambda: driver.commit(np.array([1], np.int32))) == [groups[0]]


def test_registers_that_may_not_have_been_written_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(replace(CONFIG, sequences=3), monkeypatch)
    spy.driver.forward(ONE)
    spy.driver.part, spy.fails = spy.driver.parts[1], True
    with pytest.raises(KeyboardInterrupt):
        spy.driver.forward(ONE)
    spy.fails = False
    assert spy.written(lambda: spy.driver.forward(ONE)) == ["sequence_group[0]"]
    assert spy.written(spy.driver.lend) == [], "the compiled loop writes them"
    assert spy.written(lambda: spy.driver.forward(ONE)) == ["sequence_begins[0]", "sequence_group[0]"]


def test_an_accelerator_of_one_sequence_has_no_such_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(CONFIG, monkeypatch)

    def session() -> None:
        spy.driver.forward(np.array([1, 2], np.int32))
        spy.driver.commit(np.array([1], np.int32))
        spy.driver.post(ONE)
        spy.driver.lend()

    assert spy.written(session) == []
