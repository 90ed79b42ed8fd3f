"""Test that a memory without collisions asserts it, and that yosys is told so only where that saves logic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.hdl import Module
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out
from amaranth.sim import Simulator

from edgedec.board import FAMILIES
from edgedec.hw.blocks.collisions import COLLISION_FREE, collision_free
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.emit.rtlil import to_rtlil


class Two(Component):
    """Two memories, of which one is marked; the read of it is used if ``used`` is high."""

    def __init__(self) -> None:
        super().__init__({"to": In(2), "at": In(2), "write": In(1), "used": In(1), "data": Out(8), "other": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for name, data in (("marked", self.data), ("plain", self.other)):
            m.submodules[name] = memory = Memory(shape=8, depth=4, init=[])
            write, read = memory.write_port(), memory.read_port()
            m.d.comb += [write.addr.eq(self.to), write.en.eq(self.write), read.addr.eq(self.at), data.eq(read.data)]
            if name == "marked":
                collision_free(m, memory, write, read, used=self.used, name="test's memory")
        return m


def run(steps: Sequence[dict[str, int]]) -> None:
    two = Two()

    async def bench(context: Any) -> None:
        for step in steps:
            for name, value in step.items():
                context.set(getattr(two, name), value)
            await context.tick()
        await context.tick()

    simulator = Simulator(two)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_other_words_and_unused_reads_are_silent() -> None:
    run([{"write": 1, "used": 1, "to": 1, "at": 2}, {"used": 0, "at": 1}, {"write": 0, "used": 1}])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_used_read_of_the_word_that_is_written_ends_a_simulation() -> None:
    with pytest.raises(
        AssertionError, match="No word of the test's memory is read in the cycle in which it is written"
    ):
        run([{"write": 1, "used": 1, "to": 1, "at": 1}])


@pytest.mark.parametrize(("platform", "marked"), [(None, "0"), (FAMILIES["zynq-7000"], "0"), (FAMILIES["ecp5"], "1")])
def test_yosys_is_told_only_of_the_marked_memory_where_it_would_keep_the_old_value(platform: Any, marked: str) -> None:
    text = to_rtlil(Two(), platform=platform)
    masks = dict(
        re.findall(r'MEMID "\\\\(\w+)"\n(?:    parameter .*\n)*?    parameter \\COLLISION_X_MASK \d+\'(\d+)', text)
    )
    assert masks == {"marked": marked, "plain": "0"}
    assert COLLISION_FREE not in text


def test_the_memory_of_a_queue_is_marked() -> None:
    text = to_rtlil(Fifo(shape=4, depth=8), platform=FAMILIES["ecp5"])
    assert re.findall(r"COLLISION_X_MASK \d+'(\d+)", text) == ["1"]
