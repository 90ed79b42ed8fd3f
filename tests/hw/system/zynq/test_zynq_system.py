"""Test the system between the ports of a processing system: registers, memory, the interrupt, foreign addresses."""

from __future__ import annotations

import random
from typing import Any

import pytest

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.write import FAMILIES
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.hw.system.zynq.memory_port import BEYOND, MemoryPort
from edgedec.hw.system.zynq.zynq_system import ZynqSystem
from tests.hw.support.fake_accelerator import Copier
from tests.hw.system.zynq.support.fake_processing_system import Manager, Memory, run

BASE = 0x10_0000  # address of the memory
SIZE = 1 << 16
REGISTERS, CONTROLLER = (getattr(FAMILIES["zynq-7000"], name) for name in ("accelerator_address", "controller_address"))
ISR, IPR, SIE, CIE, IAR, MER = 0x00, 0x04, 0x10, 0x14, 0x0C, 0x1C
DONE, ERROR = 1, 2  # bits of interrupt_status


def config(port_bytes: int) -> AcceleratorConfig:
    return AcceleratorConfig(beat_bytes=port_bytes, ports=1, slots=1, ultra=False, burst_beats=16)


def at(name: str) -> int:
    return int(REGISTERS + REGISTER_MAP[name].offset)


async def start(ctx: Any, manager: Manager, source: int, destination: int, size: int) -> None:
    """Configure the copier and the interrupt controller, and ring the doorbell."""
    for name, value in (("program_address", source), ("output_address", destination), ("program_bytes", size)):
        await manager.write_word(ctx, at(name), value & 0xFFFF_FFFF)
        if REGISTER_MAP[name].bytes == 8:
            await manager.write_word(ctx, at(name) + 4, value >> 32)
    await manager.write_word(ctx, at("interrupt_enable"), DONE | ERROR)
    for offset, value in ((MER, 3), (SIE, 1)):
        await manager.write_word(ctx, CONTROLLER + offset, value)
    await manager.write_word(ctx, at("control"), 1)


@pytest.mark.thorough
@pytest.mark.parametrize("port_bytes", [8, 4])
def test_a_copy_is_started_over_one_port_and_done_over_the_others(port_bytes: int) -> None:
    """Copy ranges that begin and end anywhere; each ends with an interrupt, which is served as pynq does it."""
    chosen = config(port_bytes)
    dut, rng = ZynqSystem(chosen, Copier(chosen)), random.Random(port_bytes)
    contents = bytearray(rng.randbytes(SIZE))
    memory = Memory(dut.memory0, contents, base=BASE, port_bytes=port_bytes)
    expected = bytearray(contents)

    async def bench(ctx: Any) -> None:
        manager = Manager(dut.registers)
        identity = [await manager.read_word(ctx, at("configuration_hash") + 4 * word) for word in range(2)]
        assert identity[0] | identity[1] << 32 == chosen.hash
        for size in (1, 8, 100, 1000):
            source, destination = rng.randrange(0, 0x4000), 0x8000 + rng.randrange(0, 0x4000)
            source += (destination - source) % port_bytes
            await start(ctx, manager, BASE + source, BASE + destination, size)
            while not ctx.get(dut.interrupt):
                await ctx.tick()
            assert await manager.read_word(ctx, CONTROLLER + IPR) == 1
            for offset in (CIE, IAR):
                await manager.write_word(ctx, CONTROLLER + offset, 1)
            assert not ctx.get(dut.interrupt)
            assert await manager.read_word(ctx, at("interrupt_status")) == DONE
            await manager.write_word(ctx, at("interrupt_status"), DONE)
            await manager.write_word(ctx, CONTROLLER + IAR, 1)
            assert await manager.read_word(ctx, CONTROLLER + ISR) == 0
            expected[destination : destination + size] = expected[source : source + size]
            assert contents == expected

    run(dut, bench, memory.serve_reads, memory.serve_writes)
    assert max(beats for _, beats in memory.reads) == max(beats for _, beats in memory.writes) == 16


@pytest.mark.rtl
@pytest.mark.parametrize("wrong", ["source", "destination"])
def test_an_address_beyond_the_port_is_an_error_and_touches_nothing(wrong: str) -> None:
    """Address memory through bit 32: without the check, the accelerator would read or write the memory of others."""
    chosen = config(8)
    dut, contents = ZynqSystem(chosen, Copier(chosen)), bytearray(range(256)) * 16
    memory = Memory(dut.memory0, contents, base=BASE)
    places = {"source": BASE, "destination": BASE + 0x800}
    places[wrong] += 1 << 32

    async def bench(ctx: Any) -> None:
        manager = Manager(dut.registers)
        await start(ctx, manager, places["source"], places["destination"], 256)
        status = 0
        while not status & DONE:
            status = await manager.read_word(ctx, at("interrupt_status"))
        assert status == DONE | ERROR

    before = bytes(contents)
    run(dut, bench, memory.serve_reads, memory.serve_writes)
    asked = memory.reads if wrong == "source" else memory.writes
    assert {address for address, _ in asked} == {BEYOND}
    assert wrong == "source" or contents == before


@pytest.mark.rtl
def test_registers_can_be_polled_without_the_controller() -> None:
    """Leave the interrupt controller alone, as a hand-off file without an interrupt makes the driver do."""
    chosen = config(8)
    dut, contents = ZynqSystem(chosen, Copier(chosen)), bytearray(range(256)) * 16
    memory = Memory(dut.memory0, contents, base=BASE)

    async def bench(ctx: Any) -> None:
        manager = Manager(dut.registers)
        for name, value in (("program_address", BASE), ("output_address", BASE + 0x800), ("program_bytes", 64)):
            await manager.write_word(ctx, at(name), value)
        await manager.write_word(ctx, at("control"), 1)
        while not await manager.read_word(ctx, at("interrupt_status")) & DONE:
            assert not ctx.get(dut.interrupt)
        assert contents[0x800:0x840] == contents[:64]

    run(dut, bench, memory.serve_reads, memory.serve_writes)


def test_a_port_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="data_bytes must be 4 or 8, not 16"):
        MemoryPort(data_bytes=16, writes=True)
    with pytest.raises(ValueError, match="address_bits must be 33 to 64, not 32"):
        MemoryPort(data_bytes=8, address_bits=32, writes=True)


def test_bursts_longer_than_those_of_axi3_are_refused() -> None:
    with pytest.raises(ValueError, match=r"config\.burst_beats must be at most 16 for AXI3, not 32"):
        ZynqSystem(AcceleratorConfig(burst_beats=32), None)
