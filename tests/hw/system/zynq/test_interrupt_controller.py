"""Compare the interrupt controller with the model that the simulated board for pynq has, and with its data sheet."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.system.zynq.axi3 import axi3
from edgedec.hw.system.zynq.interrupt_controller import InterruptController
from edgedec.hw.system.zynq.lite_bridge import LiteBridge
from edgedec.sim.boards.axi_interrupt_controller import AxiInterruptController
from tests.hw.system.zynq.support.fake_processing_system import Manager, run

BASE = 0x4180_0000
ISR, IPR, IER, IAR, SIE, CIE, IVR, MER = range(0, 0x20, 4)
NONE = 0xFFFF_FFFF  # IVR without a pending interrupt


class Behind(Component):
    """An interrupt controller behind the bridge, at which the processing system's port is."""

    def __init__(self, inputs: int) -> None:
        self.controller = InterruptController(inputs=inputs)
        bus = axi3(address_bits=32, data_bytes=4, id_bits=12)
        super().__init__({"bus": In(bus), "lines": In(inputs), "interrupt": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.controller, m.submodules.bridge = controller, bridge = (
            self.controller,
            LiteBridge({"controller": (BASE, 1 << 16)}),
        )
        connect(m, bridge.controller, controller.bus)
        connect(m, flipped(self.bus), bridge.bus)
        m.d.comb += [controller.lines.eq(self.lines), self.interrupt.eq(controller.interrupt)]
        return m


def simulate(bench: Any, inputs: int = 1) -> None:
    """Run ``bench(ctx, dut, read, write)`` with functions for the registers by offset."""
    dut = Behind(inputs)

    async def whole(ctx: Any) -> None:
        manager = Manager(dut.bus)

        async def read(offset: int) -> int:
            return await manager.read_word(ctx, BASE + offset)

        async def write(offset: int, value: int) -> None:
            await manager.write_word(ctx, BASE + offset, value)
            await ctx.tick().repeat(2)

        await bench(ctx, dut, read, write)

    run(dut, whole)


@pytest.mark.rtl
@pytest.mark.parametrize("inputs", [1, 5])
def test_registers_equal_the_model(inputs: int) -> None:
    """Change lines and write registers at random, and compare all of them and the output after each step."""
    rng, model = random.Random(inputs), AxiInterruptController()

    async def bench(ctx: Any, dut: Any, read: Any, write: Any) -> None:
        model.write(MER, 3)
        await write(MER, 3)
        for _ in range(60):
            if rng.random() < 0.5:
                model.drive(rng.getrandbits(inputs))
                ctx.set(dut.lines, model.lines)
                await ctx.tick().repeat(3)
            else:
                offset, value = rng.choice((IER, IAR, IAR, SIE, CIE, MER)), rng.getrandbits(inputs)
                value = value & 1 | 2 if offset == MER else value
                model.write(offset, value)
                await write(offset, value)
            assert ctx.get(dut.interrupt) == model.output
            for register in (ISR, IPR, IER, MER):
                assert await read(register) == model.read(register), f"register {register:#x}"
            pending = model.read(IPR)
            assert await read(IVR) == ((pending & -pending).bit_length() - 1 if pending else NONE)

    simulate(bench, inputs)


@pytest.mark.thorough
def test_lines_count_once_the_hardware_is_enabled() -> None:
    """Check that software can set status bits before, and not after, and that HIE stays set."""

    async def bench(ctx: Any, dut: Any, read: Any, write: Any) -> None:
        ctx.set(dut.lines, 1)
        await ctx.tick().repeat(4)
        assert await read(ISR) == 0
        await write(ISR, 2)
        assert await read(ISR) == 2
        await write(MER, 2)
        assert await read(ISR) == 3
        await write(ISR, 0)
        await write(MER, 0)
        assert (await read(ISR), await read(MER)) == (3, 2)
        assert [await read(offset) for offset in (IAR, SIE, CIE, 0x20, 0x24, 0x100, 0xFFFC)] == [0] * 7

    simulate(bench, 2)


def test_the_driver_of_pynq_is_served() -> None:
    """Make the accesses of pynq's driver: start, wait, and the service of one interrupt, twice."""

    async def bench(ctx: Any, dut: Any, read: Any, write: Any) -> None:
        await write(MER, 3)
        await write(IER, 0)
        for _ in range(2):
            await write(SIE, 1)
            assert not ctx.get(dut.interrupt)
            ctx.set(dut.lines, 1)
            await ctx.tick().repeat(3)
            assert ctx.get(dut.interrupt)
            assert await read(IPR) == 1
            await write(CIE, 1)
            await write(IAR, 1)
            assert not ctx.get(dut.interrupt), "it is disabled, although the line is still high"
            ctx.set(dut.lines, 0)
            await write(IAR, 1)
            assert await read(ISR) == 0

    simulate(bench)
