from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.control.counters import CounterBlock
from edgedec.hw.isa.registers import COUNTS

EVENTS = ("running", "beat", "starved", "blocked", "dependency", "descriptor_done", "clear", "latch")


@pytest.mark.rtl
def test_counts_equal_a_model_under_random_events() -> None:
    counters = CounterBlock(width=8, descriptors=6)
    rng = random.Random(0)

    async def drive(ctx: Any) -> None:
        counts, latched = dict.fromkeys(COUNTS, 0), dict.fromkeys(COUNTS, 0)
        descriptors: list[int] = []
        cycles = 1
        for _ in range(1500):
            expected = latched  # an event of this cycle shows a cycle later
            now = {event: rng.random() < 0.6 for event in EVENTS}
            now["clear"], now["latch"] = rng.random() < 0.003, rng.random() < 0.1
            now["descriptor_done"] = rng.random() < 0.05
            for event, value in now.items():
                ctx.set(getattr(counters, event), value)
            if now["latch"]:
                latched = dict(counts)
            if now["clear"]:
                counts, descriptors, cycles = dict.fromkeys(COUNTS, 0), [], 1
            elif now["running"]:
                add = (1, now["beat"], now["starved"], now["blocked"], now["dependency"], now["descriptor_done"])
                counts = {name: (counts[name] + n) % 256 for name, n in zip(COUNTS, add, strict=True)}
                if now["descriptor_done"]:
                    descriptors.append(cycles)
                cycles = 1 if now["descriptor_done"] else cycles + 1
            await ctx.tick()
            assert {name: ctx.get(getattr(counters, f"{name}_latched")) for name in COUNTS} == expected
            if rng.random() < 0.03:
                for event in EVENTS:
                    ctx.set(getattr(counters, event), 0)
                await ctx.tick()
                for number, descriptor in enumerate(descriptors[:6]):
                    ctx.set(counters.select, number)
                    await ctx.tick().repeat(2)
                    assert ctx.get(counters.descriptor_cycles) == descriptor

    simulator = Simulator(counters)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="width must be an integer from 8 to 64, not 65"):
        CounterBlock(width=65)
    with pytest.raises(ValueError, match="descriptors must be an integer from 2 to 65536, not 1"):
        CounterBlock(descriptors=1)
