"""Test which widths a prefetcher has, and its counters after a clear; test_prefetcher.py reads."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.memory.prefetcher import Prefetcher


def test_a_beat_has_a_power_of_two_bytes_from_four_to_sixty_four() -> None:
    for beat_bytes in (4, 8, 16, 32, 64):
        Prefetcher(beat_bytes=beat_bytes, ports=1)
    for beat_bytes in (2, 5, 31, 33, 128):
        with pytest.raises(ValueError, match=f"^beat_bytes must be 4, 8, 16, 32 or 64, not {beat_bytes}$"):
            Prefetcher(beat_bytes=beat_bytes, ports=1)


def test_eight_bursts_are_under_way_unless_it_says_otherwise() -> None:
    assert inspect.signature(Prefetcher).parameters["outstanding"].default == 8


def test_a_clear_leaves_no_starved_cycles() -> None:
    dut = Prefetcher(beat_bytes=8, ports=2, depth=16, style="block")

    async def bench(ctx: Any) -> None:
        ctx.set(dut.clear, 1)
        await ctx.tick().repeat(2)
        assert [ctx.get(dut.empty_cycles[port]) for port in range(2)] == [0, 0]

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
