"""Test the write master with memories: gaps x back-pressure x sizes, order, strobes, 4 KiB, errors, flush, reset.

Design: WriteMaster(address_bits=32, data_bytes=16, length_bits=20, max_burst, outstanding).
"""

from __future__ import annotations

import os
import random
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiWriteBus

from edgedec.sim.verify.benches.common import (
    FaultyWriteRam,
    PatientWriteRam,
    collect,
    pauses,
    start,
    stream_source,
    wait_until,
    watch_write,
)

_BYTES, _ADDRESS_BITS, _MEMORY = 16, 32, 1 << 16
# Disjoint (address, size), so that the final contents of the memory do not depend on the order.
_SIZES = (
    *((0x1000, 16), (0x1FF0, 32), (0x2FFF, 2), (0x3003, 1), (0x3020, 0), (0x303F, 18), (0x3100, 256), (0x3207, 90)),
    *((0x4FF3, 4128), (0x7000, 4096), (0x8FF0, 8200)),
)


def _beats(rng: random.Random, address: int, size: int) -> tuple[list[int], bytes]:
    """Return random beats of a request, and their bytes that the request writes."""
    if not size:
        return [], b""
    start_lane = address % _BYTES
    count = -(-(start_lane + size) // _BYTES)
    data = rng.randbytes(count * _BYTES)
    beats = [int.from_bytes(data[n * _BYTES : (n + 1) * _BYTES], "little") for n in range(count)]
    return beats, data[start_lane : start_lane + size]


class _Bench:
    """A memory of random bytes for the master, with checks of every channel."""

    bursts: Any
    done: Any
    dut: Any
    errors: Any
    expected: Any
    ram: Any
    rng: Any

    @classmethod
    async def begin(cls, dut: Any, rng: random.Random, *, bus: float = 0.0, patient: bool = False) -> _Bench:
        self = cls()
        self.dut, self.rng = dut, rng
        self.expected = bytearray(rng.randbytes(_MEMORY))
        if patient:
            self.ram = PatientWriteRam(dut, "bus", size=_MEMORY)
        else:
            self.ram = FaultyWriteRam(AxiWriteBus.from_prefix(dut, "bus_"), dut.clk, dut.rst, size=_MEMORY)
            for channel in (self.ram.aw_channel, self.ram.w_channel, self.ram.b_channel):
                channel.set_pause_generator(pauses(rng, bus))
        self.ram.write(0, bytes(self.expected))
        await start(dut, idle_inputs=("requests__valid", "data__valid", "flush"))
        self.bursts, self.done, self.errors = watch_write(dut), list[int](), list[int]()
        cocotb.start_soon(collect(dut, "error", self.errors))
        cocotb.start_soon(collect(dut, "done", self.done))
        return self

    def feed(self, requests: Any, *, idle: float, gaps: float) -> list[Any]:
        """Start to send requests and their data, and update ``expected``, the contents of the memory afterwards."""
        data: list[int] = []
        for address, size in requests:
            beats, inside = _beats(self.rng, address, size)
            data += beats
            self.expected[address : address + size] = inside
        payloads = [address | size << _ADDRESS_BITS for address, size in requests]
        return [
            cocotb.start_soon(stream_source(self.dut, "requests", payloads, self.rng, idle)),
            cocotb.start_soon(stream_source(self.dut, "data", data, self.rng, gaps)),
        ]

    async def end(self, feeding: list[Any]) -> None:
        await wait_until(self.dut, lambda: all(task.done() for task in feeding) and int(self.dut.idle.value))
        for _ in range(4):
            await RisingEdge(self.dut.clk)
        assert self.memory() == bytes(self.expected)

    def memory(self) -> bytes:
        contents: bytes = self.ram.read(0, _MEMORY)
        return contents


@cocotb.test()
@cocotb.parametrize(idle=[0.0, 0.6], gaps=[0.0, 0.5], bus=[0.0, 0.5])
async def all_sizes(dut: Any, idle: float, gaps: float, bus: float) -> None:
    rng = random.Random(f"{idle} {gaps} {bus}")
    requests = [*_SIZES, *((0xC000 + 0x200 * n + rng.randrange(64), rng.randrange(400)) for n in range(12))]
    rng.shuffle(requests)
    bench = await _Bench.begin(dut, rng, bus=bus)
    await bench.end(bench.feed(requests, idle=idle, gaps=gaps))
    assert max(beats for _, beats in bench.bursts) <= int(os.environ["MAX_BURST"])
    assert bench.done == [number for number, (_, size) in enumerate(requests) if size]
    assert bench.errors == []


@cocotb.test()
async def a_long_request_makes_the_longest_bursts(dut: Any) -> None:
    bench = await _Bench.begin(dut, random.Random(2))
    await bench.end(bench.feed([(0x1000, 0x3000)], idle=0.0, gaps=0.0))
    longest = int(os.environ["MAX_BURST"])
    assert bench.bursts == [(0x1000 + n * longest * _BYTES, longest) for n in range(0x300 // longest)]


@cocotb.test()
@cocotb.parametrize(idle=[0.0, 0.6], gaps=[0.0, 0.5])
async def a_memory_that_waits_for_address_and_data(dut: Any, idle: float, gaps: float) -> None:
    bench = await _Bench.begin(dut, random.Random(f"{idle} {gaps}"), patient=True)
    await bench.end(bench.feed(_SIZES, idle=idle, gaps=gaps))
    assert bench.done == [number for number, (_, size) in enumerate(_SIZES) if size]


@cocotb.test()
async def errors_name_the_request(dut: Any) -> None:
    bench = await _Bench.begin(dut, random.Random(3), bus=0.3)
    bench.ram.bad = frozenset({0x2010, 0x4000})
    requests = [(0x1000, 64), (0x2000, 64), (0x5000, 0), (0x3F00, 0x200), (0x6000, 16)]
    feeding = bench.feed(requests, idle=0.0, gaps=0.3)
    await wait_until(dut, lambda: all(task.done() for task in feeding) and int(dut.idle.value))
    await RisingEdge(dut.clk)
    assert bench.errors == [1 | 2 << 16, 3 | 2 << 16]  # number, SLVERR
    assert bench.done == [0, 1, 3, 4]


@cocotb.test()
@cocotb.parametrize(after=[3, 14, 30, 47, 90])
async def flush_in_mid_stream(dut: Any, after: int) -> None:
    """Memory holds only old or new bytes; afterwards request numbers start again and the next request works."""
    rng = random.Random(after)
    bench = await _Bench.begin(dut, rng, bus=0.3)
    before = bytes(bench.expected)
    feeding = bench.feed([(0x1008, 0x900), (0x4003, 0x1800)], idle=0.0, gaps=0.3)
    for _ in range(after):
        await RisingEdge(dut.clk)
    for task in feeding:
        task.cancel()
    dut.requests__valid.value, dut.data__valid.value, dut.flush.value = 0, 0, 1
    await RisingEdge(dut.clk)
    await wait_until(dut, lambda: int(dut.idle.value))
    contents = bench.memory()
    pairs = zip(contents, before, bench.expected, strict=True)
    assert all(now in (old, new) for now, old, new in pairs)
    dut.flush.value = 0
    bench.done.clear()
    bench.expected[:] = contents
    await bench.end(bench.feed([(0x7003, 0x42)], idle=0.0, gaps=0.0))
    assert bench.done == [0]
    assert bench.errors == []


@cocotb.test()
async def reset_of_everything_in_mid_stream(dut: Any) -> None:
    bench = await _Bench.begin(dut, random.Random(5), bus=0.3)
    feeding = bench.feed([(0x1008, 0x900), (0x4000, 0x800)], idle=0.0, gaps=0.2)
    for _ in range(60):
        await RisingEdge(dut.clk)
    for task in feeding:
        task.cancel()
    dut.requests__valid.value, dut.data__valid.value, dut.rst.value = 0, 0, 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    bench.done.clear()
    bench.expected[:] = bench.memory()
    await bench.end(bench.feed([(0x2FF8, 0x40)], idle=0.0, gaps=0.0))
    assert bench.done == [0]
