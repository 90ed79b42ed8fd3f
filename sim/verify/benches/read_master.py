"""Test the read master with cocotbext-axi's memory: gaps x back-pressure x sizes, 4 KiB, errors, flush and reset.

Design: ReadMaster(address_bits=32, data_bytes=16, length_bits=20, max_burst, outstanding).
"""

from __future__ import annotations

import os
import random
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiReadBus

from edgedec.sim.verify.benches.common import (
    FaultyReadRam,
    collect,
    pauses,
    start,
    stream_sink,
    stream_source,
    wait_until,
    watch_read,
)

_BYTES, _ADDRESS_BITS, _MEMORY = 16, 32, 1 << 16
_SIZES = (
    *((0x1000, 16), (0x0FF0, 32), (0x0FFF, 2), (0x1FF0, 16), (0x2003, 1), (0x2000, 0), (0x200F, 17)),
    *((0x3000, 4096), (0x2FF0, 4128), (0x3010, 8192), (0x4007, 300)),
)


def _covering(memory: bytes, address: int, size: int) -> list[int]:
    first, end = address // _BYTES, -(-(address + size) // _BYTES) if size else address // _BYTES
    return [int.from_bytes(memory[n * _BYTES : (n + 1) * _BYTES], "little") for n in range(first, end)]


class _Bench:
    """A memory of random bytes for the master, with checks of every channel."""

    beats: Any
    bursts: Any
    dut: Any
    errors: Any
    memory: Any
    ram: Any
    rng: Any
    sink: Any

    @classmethod
    async def begin(cls, dut: Any, rng: random.Random, *, bus: float, stall: float) -> _Bench:
        self = cls()
        self.dut, self.rng = dut, rng
        self.memory = rng.randbytes(_MEMORY)
        self.ram = FaultyReadRam(AxiReadBus.from_prefix(dut, "bus_"), dut.clk, dut.rst, size=_MEMORY)
        self.ram.write(0, self.memory)
        await start(dut, idle_inputs=("requests__valid", "beats__ready", "flush"))
        for channel in (self.ram.ar_channel, self.ram.r_channel):
            channel.set_pause_generator(pauses(rng, bus))
        self.bursts, self.beats, self.errors = watch_read(dut), list[int](), list[int]()
        self.sink = cocotb.start_soon(stream_sink(dut, "beats", self.beats, rng, stall))
        cocotb.start_soon(collect(dut, "error", self.errors))
        return self

    async def send(self, requests: Any, idle: float) -> None:
        payloads = [address | size << _ADDRESS_BITS for address, size in requests]
        await stream_source(self.dut, "requests", payloads, self.rng, idle)

    async def end(self, expected: list[int]) -> None:
        await wait_until(self.dut, lambda: len(self.beats) >= len(expected))
        await wait_until(self.dut, lambda: int(self.dut.idle.value))
        for _ in range(10):
            await RisingEdge(self.dut.clk)
        assert self.beats == expected


@cocotb.test()
@cocotb.parametrize(idle=[0.0, 0.6], bus=[0.0, 0.5], stall=[0.0, 0.5])
async def all_sizes(dut: Any, idle: float, bus: float, stall: float) -> None:
    rng = random.Random(f"{idle} {bus} {stall}")
    requests = [*_SIZES, *((rng.randrange(0x8000), rng.randrange(600)) for _ in range(12))]
    rng.shuffle(requests)
    bench = await _Bench.begin(dut, rng, bus=bus, stall=stall)
    await bench.send(requests, idle)
    await bench.end([beat for request in requests for beat in _covering(bench.memory, *request)])
    assert sum(beats for _, beats in bench.bursts) == len(bench.beats)
    assert max(beats for _, beats in bench.bursts) <= int(os.environ["MAX_BURST"])
    assert bench.errors == []


@cocotb.test()
async def a_long_request_makes_the_longest_bursts(dut: Any) -> None:
    bench = await _Bench.begin(dut, random.Random(2), bus=0.0, stall=0.0)
    await bench.send([(0x1000, 0x3000)], 0.0)
    await bench.end(_covering(bench.memory, 0x1000, 0x3000))
    longest = int(os.environ["MAX_BURST"])
    assert bench.bursts == [(0x1000 + n * longest * _BYTES, longest) for n in range(0x300 // longest)]


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def errors_name_the_request_and_lose_no_beat(dut: Any, stall: float) -> None:
    bench = await _Bench.begin(dut, random.Random(3), bus=stall, stall=stall)
    bench.ram.bad = frozenset({0x2010, 0x3FF0, 0x4000})
    requests = [(0x1000, 64), (0x2000, 64), (0x5000, 0), (0x3F00, 0x200), (0x6000, 16)]
    await bench.send(requests, 0.0)
    await wait_until(dut, lambda: len(bench.beats) == 4 + 4 + 32 + 1)
    good = [beat for request in requests for beat in _covering(bench.memory, *request)]
    assert [n for n, (beat, expected) in enumerate(zip(bench.beats, good, strict=True)) if beat != expected] == [
        5,
        23,
        24,
    ]
    await RisingEdge(dut.clk)
    assert bench.errors == [1 | 2 << 16, 3 | 2 << 16, 3 | 2 << 16]  # number, SLVERR


@cocotb.test()
@cocotb.parametrize(after=[3, 20, 45, 90])
async def flush_in_mid_stream(dut: Any, after: int) -> None:
    """At any time, pending bursts are drained, request numbers start again, and the next request works."""
    rng = random.Random(after)
    bench = await _Bench.begin(dut, rng, bus=0.3, stall=0.3)
    sending = cocotb.start_soon(bench.send([(0x1008, 0x900), (0x4000, 0x800), (0x3000, 0x2000)], 0.0))
    for _ in range(after):
        await RisingEdge(dut.clk)
    sending.cancel()
    bench.sink.cancel()
    dut.requests__valid.value, dut.flush.value = 0, 1
    await RisingEdge(dut.clk)
    await wait_until(dut, lambda: int(dut.idle.value))
    dut.flush.value, bench.ram.bad = 0, frozenset({0x7000})
    bench.beats.clear()
    cocotb.start_soon(stream_sink(dut, "beats", bench.beats, rng, 0.3))
    await bench.send([(0x7000, 0x40)], 0.0)
    await wait_until(dut, lambda: len(bench.beats) == 4)
    assert bench.beats[1:] == _covering(bench.memory, 0x7010, 0x30)
    assert bench.errors == [0 | 2 << 16]


@cocotb.test()
async def reset_of_everything_in_mid_stream(dut: Any) -> None:
    bench = await _Bench.begin(dut, random.Random(5), bus=0.3, stall=0.3)
    sending = cocotb.start_soon(bench.send([(0x1008, 0x900), (0x4000, 0x800)], 0.0))
    for _ in range(60):
        await RisingEdge(dut.clk)
    sending.cancel()
    bench.sink.cancel()
    dut.requests__valid.value, dut.rst.value = 0, 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    bench.beats.clear()
    cocotb.start_soon(stream_sink(dut, "beats", bench.beats, bench.rng, 0.3))
    await bench.send([(0x2FF8, 0x40)], 0.0)
    await bench.end(_covering(bench.memory, 0x2FF8, 0x40))
