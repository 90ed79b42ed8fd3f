"""Check that no response of the registers waits until the host is ready for it, which AXI forbids."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.registers import REGISTER_MAP
from tests.hw.support.bench_streams import checked_simulator


@pytest.mark.thorough
def test_responses_do_not_wait_for_their_ready() -> None:
    """Read and write with RREADY and BREADY low, and let both responses stand for a while."""
    component = RegisterBlock(register_map=REGISTER_MAP)
    bus = component.bus

    async def drive(ctx: Any) -> None:
        for valid in ("ar", "aw", "w"):
            ctx.set(getattr(bus, f"{valid}valid"), 1)
        for _ in range(20):
            accepted = [name for name in ("ar", "aw", "w") if ctx.get(getattr(bus, f"{name}ready"))]
            await ctx.tick()
            for name in accepted:
                ctx.set(getattr(bus, f"{name}valid"), 0)
        assert (ctx.get(bus.rvalid), ctx.get(bus.bvalid)) == (1, 1)

    simulator = checked_simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()
