"""Write to an SDRAM with data that come long after their address, as AXI allows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hw.support.fake_axi_managers import Reader, Writer
from tests.hw.system.sdram.support.bench_controller import run
from tests.hw.system.sdram.test_controller import controller, model


@pytest.mark.rtl
@pytest.mark.parametrize("beats", [1, 3])
def test_no_burst_begins_before_its_data_are_there(beats: int) -> None:
    """Give the first address after a reset at once, and its data after hundreds of cycles."""
    dut, memory = controller(reads=1, writes=1), model()
    items = [(0x11223344 + n, 15) for n in range(beats)]
    writer, reader = Writer(dut.write0, [(64, items)]), Reader(dut.read0, [(64, beats)])

    async def late(ctx: Any) -> None:
        await ctx.tick().repeat(600)
        await writer.give(ctx)

    async def then(ctx: Any) -> None:
        await writer.answered(ctx)
        await reader.ask(ctx)
        await reader.take(ctx)

    run(dut, dut.pins, [writer.ask, late, then], model=memory)
    assert reader.found == [value for value, _ in items]
