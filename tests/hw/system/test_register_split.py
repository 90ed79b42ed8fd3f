"""Test that each access of a bus of registers reaches the half of the addresses that it names, and only that."""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, connect, flipped
from amaranth.sim import Simulator

from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.registers import BOARD_OFFSET, BOARD_REGISTER_MAP, NOMINAL_PHASE, REGISTER_MAP
from edgedec.hw.memory.axi import axi_lite
from edgedec.hw.system.register_split import RegisterSplit


class Both(Component):
    """Connect the registers of an accelerator and those of a board."""

    def __init__(self) -> None:
        self.blocks = RegisterBlock(register_map=REGISTER_MAP), RegisterBlock(register_map=BOARD_REGISTER_MAP)
        super().__init__({"bus": In(axi_lite(address_bits=12))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.split = split = RegisterSplit(offset=BOARD_OFFSET)
        m.submodules.below, m.submodules.above = below, above = self.blocks
        connect(m, flipped(self.bus), split.manager)
        connect(m, split.below, below.bus)
        connect(m, split.above, above.bus)
        return m


def test_both_halves_are_read_and_written() -> None:
    dut = Both()
    phase, mask = BOARD_REGISTER_MAP["memory_phase"].offset, REGISTER_MAP["mask"].offset

    async def bench(ctx: Any) -> None:
        bus = dut.bus

        async def until(name: str) -> Any:
            for _ in range(20):
                _, _, done, value = await ctx.tick().sample(getattr(bus, name), bus.rdata)
                if done:
                    return value
            raise AssertionError(f"no {name}")

        async def read(offset: int) -> int:
            ctx.set(bus.araddr, offset)
            ctx.set(bus.arvalid, 1)
            await until("arready")
            ctx.set(bus.arvalid, 0)
            return int(await until("rvalid"))

        async def write(offset: int, value: int) -> None:
            ctx.set(bus.awaddr, offset)
            ctx.set(bus.wdata, value)
            ctx.set(bus.wstrb, 15)
            for name in ("awvalid", "wvalid"):
                ctx.set(getattr(bus, name), 1)
            await until("wready")
            for name in ("awvalid", "wvalid"):
                ctx.set(getattr(bus, name), 0)
            await until("bvalid")

        ctx.set(bus.rready, 1)
        ctx.set(bus.bready, 1)
        assert await read(0) == REGISTER_MAP["identity"].reset
        assert await read(phase) == NOMINAL_PHASE
        await write(phase, 11)
        await write(mask, 5)
        assert (await read(phase), await read(mask)) == (11, 5)
        assert await read(mask + BOARD_OFFSET) == 0
        await write(mask + BOARD_OFFSET, 9)
        assert (await read(phase), await read(mask), await read(0)) == (11, 5, REGISTER_MAP["identity"].reset)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_another_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="offset must be 0x800, half of the addresses, not 1024"):
        RegisterSplit(offset=0x400)
