"""Test the accelerator's register block with cocotbext-axi's AXI4-Lite master, with pauses on every channel.

Design: Registers(register_map=REGISTER_MAP).
"""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from edgedec.hw.isa.register_map import Access
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.sim.verify.benches.common import pauses, start, watch_channel


async def _begin(dut: Any, rng: random.Random, pause: float) -> Any:
    inputs = [
        register.port(field) + ("_set" if register.access is Access.WRITE_ONE_TO_CLEAR else "")
        for register in REGISTER_MAP.registers
        for field in register.fields
        if register.access in (Access.READ_ONLY, Access.WRITE_ONE_TO_CLEAR)
    ]
    await start(dut, idle_inputs=inputs)
    master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "bus_"), dut.clk, dut.rst)
    reading, writing = master.read_if, master.write_if
    for channel in (
        *(writing.aw_channel, writing.w_channel, writing.b_channel),
        *(reading.ar_channel, reading.r_channel),
    ):
        channel.set_pause_generator(pauses(rng, pause))
    cocotb.start_soon(watch_channel(dut, "bus", "b", ("bresp",)))
    cocotb.start_soon(watch_channel(dut, "bus", "r", ("rdata", "rresp")))
    return master


@cocotb.test()
@cocotb.parametrize(pause=[0.0, 0.5])
async def every_writable_word_keeps_what_is_written(dut: Any, pause: float) -> None:
    rng = random.Random(f"{pause}")
    master = await _begin(dut, rng, pause)
    kept = {}
    for register in REGISTER_MAP.registers:
        for index in range(register.count):
            offset = register.offset + index * register.bytes
            value = rng.getrandbits(8 * register.bytes)
            if register.access is Access.READ_WRITE:
                await master.write(offset, value.to_bytes(register.bytes, "little"))
                kept[offset] = value & register.mask
            elif register.access in (Access.CONSTANT, Access.READ_ONLY):
                await master.write(offset, value.to_bytes(register.bytes, "little"))  # must have no effect
                kept[offset] = register.reset if register.access is Access.CONSTANT else 0
            else:
                kept[offset] = 0
    for register in REGISTER_MAP.registers:
        for index in range(register.count):
            offset = register.offset + index * register.bytes
            answer = await master.read(offset, register.bytes)
            assert answer.resp == 0
            assert int.from_bytes(answer.data, "little") == kept[offset], register.name


@cocotb.test()
async def single_bytes_are_written_by_strobes(dut: Any) -> None:
    rng = random.Random(1)
    master = await _begin(dut, rng, 0.2)
    offset = REGISTER_MAP["image_address"].offset
    expected = bytearray(8)
    for _ in range(30):
        first = rng.randrange(8)
        part = rng.randbytes(rng.randint(1, 8 - first))
        await master.write(offset + first, part)
        expected[first : first + len(part)] = part
        assert (await master.read(offset, 8)).data == bytes(expected)


@cocotb.test()
async def a_reset_under_traffic(dut: Any) -> None:
    rng = random.Random(2)
    master = await _begin(dut, rng, 0.4)
    offset = REGISTER_MAP["position"].offset
    writing = cocotb.start_soon(master.write(offset, rng.randbytes(32)))
    for _ in range(25):
        await RisingEdge(dut.clk)
    dut.rst.value = 1
    for _ in range(3):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    writing.cancel()
    await RisingEdge(dut.clk)
    assert (await master.read(offset, 32)).data == bytes(32)
    await master.write(offset, b"\x12\x34\x05\x00")
    assert (await master.read(offset, 4)).data == b"\x12\x34\x05\x00"


@cocotb.test()
async def a_pulse_lasts_one_cycle_whatever_the_bus_does(dut: Any) -> None:
    master = await _begin(dut, random.Random(3), 0.6)
    seen: list[int] = []

    async def count() -> None:
        while True:
            await RisingEdge(dut.clk)
            seen.append(int(dut.control_start.value))

    cocotb.start_soon(count())
    for _ in range(10):
        await master.write(REGISTER_MAP["control"].offset, b"\x01\x00\x00\x00")
    assert sum(seen) == 10
