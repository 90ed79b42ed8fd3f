"""Check the reasons for which some ranges of the read stream are never held back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.control.program_memory import ProgramMemory
from edgedec.hw.datapath import Datapath
from edgedec.hw.isa.instructions import INSTRUCTION_BYTES, Destination
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.sim.verify.benches.held import may_be_held, queued_before_held
from edgedec.sim.verify.benches.workloads import CONFIG, ReadRange

DATA = [1] * CONFIG.beat_bytes


def simulate(component: Any, bench: Any) -> None:
    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.rtl
@pytest.mark.parametrize("depth", [16, CONFIG.prefetch_beats])
def test_a_beat_is_held_once_the_queue_is_full(depth: int) -> None:
    """Offer beats so slowly that the queue knows how many it holds, and take none of them."""
    prefetcher = Prefetcher(beat_bytes=8, ports=1, address_bits=20, count_bits=8, depth=depth, style="auto")
    taken: list[int] = []

    async def bench(ctx: Any) -> None:
        ctx.set(prefetcher.ranges.payload, {"start": 0, "beats": 128})
        ctx.set(prefetcher.ranges.valid, 1)
        ctx.set(prefetcher.bus0.arready, 1)
        await ctx.tick().until(prefetcher.ranges.ready)
        ctx.set(prefetcher.ranges.valid, 0)
        await ctx.tick().repeat(20)
        while ctx.get(prefetcher.bus0.rready):
            ctx.set(prefetcher.bus0.rvalid, 1)
            await ctx.tick()
            ctx.set(prefetcher.bus0.rvalid, 0)
            taken.append(1)
            await ctx.tick().repeat(8)

    simulate(prefetcher, bench)
    assert len(taken) == queued_before_held(replace(CONFIG, prefetch_beats=depth))


def test_the_program_memory_takes_a_beat_in_each_cycle() -> None:
    memory = ProgramMemory(CONFIG)
    words = 20
    ready: list[int] = []

    async def bench(ctx: Any) -> None:
        ctx.set(memory.words, words)
        ctx.set(memory.begin, 1)
        await ctx.tick()
        ctx.set(memory.begin, 0)
        ctx.set(memory.beats.valid, 1)
        ctx.set(memory.beats.payload, {"data": DATA, "last": 0, "spare": 0})
        for _ in range(words * INSTRUCTION_BYTES // CONFIG.beat_bytes):
            ready.append(ctx.get(memory.beats.ready))
            await ctx.tick()

    simulate(memory, bench)
    assert ready == [1] * len(ready)


@pytest.mark.nightly
@pytest.mark.rtl
def test_the_residual_takes_a_beat_in_each_cycle() -> None:
    """Announce and load the longest vector; its gains come just before it, as in a program."""
    datapath = Datapath(CONFIG)
    ready: list[int] = []

    async def bench(ctx: Any) -> None:
        ctx.set(datapath.parameters.slots, CONFIG.slots)
        ctx.set(datapath.vectors.payload, {"blocks": -(-CONFIG.hidden // CONFIG.beat_bytes), "normed": 1, "eps": 1})
        ctx.set(datapath.loads.payload, {"elements": CONFIG.hidden})
        for port in (datapath.vectors, datapath.loads):
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
            ctx.set(port.valid, 0)
        for port, beats in ((datapath.gains, CONFIG.hidden // 4), (datapath.load, CONFIG.hidden)):
            ctx.set(port.payload, {"data": DATA, "last": 0, "spare": 0})
            ctx.set(port.valid, 1)
            for _ in range(beats):
                ready.append(ctx.get(port.ready))
                await ctx.tick()
            ctx.set(port.valid, 0)

    simulate(datapath, bench)
    assert ready == [1] * (CONFIG.hidden // 4 + CONFIG.hidden)


def test_a_range_is_held_from_the_beat_on_before_which_the_queue_is_full() -> None:
    def ranges(*of: tuple[Destination, int]) -> list[ReadRange]:
        return [ReadRange(index=0, destination=one, buffer="image", start=0, beats=beats) for one, beats in of]

    full = queued_before_held(CONFIG)
    prompt = [(Destination.PROGRAM, 500), (Destination.GAINS, 500), (Destination.LOAD, 500)]
    assert may_be_held(ranges(*prompt), CONFIG) == [False] * 3
    assert may_be_held(ranges(*prompt, (Destination.WEIGHTS, full), (Destination.GAINS, 1)), CONFIG)[3:] == [
        False,
        True,
    ]
    assert may_be_held(ranges(*prompt, (Destination.WEIGHTS, full + 1)), CONFIG)[3:] == [True]
    assert may_be_held(ranges(*prompt, (Destination.CODING, 13)), CONFIG)[3:] == [False]  # more than may wait: 513
    assert may_be_held(ranges(*prompt, (Destination.CODING, full + 1)), CONFIG)[3:] == [True]
