"""Test the prefetcher over ports of different speed: gaps x back-pressure x sizes, errors, and a flush while it runs.

Design: Prefetcher(beat_bytes, ports, address_bits=32, count_bits=16, depth, max_burst=64, outstanding=4).
"""

from __future__ import annotations

import os
import random
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiReadBus

from edgedec.hw.isa.striping import stripe
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

_BEAT_BYTES, _PORTS = int(os.environ.get("BEAT_BYTES", "16")), int(os.environ.get("PORTS", "1"))
_START_BITS = 32 - (_BEAT_BYTES.bit_length() - 1)
_MEMORY = 1 << 16
_BEATS = _MEMORY // _BEAT_BYTES


class _Bench:
    """A striped image of random bytes. Each port has its own bus model and its own speed."""

    beats: Any
    bursts: Any
    dut: Any
    errors: Any
    image: Any
    rams: Any
    rng: Any
    sink: Any

    @classmethod
    async def begin(cls, dut: Any, rng: random.Random, *, bus: float, stall: float) -> _Bench:
        self = cls()
        self.dut, self.rng = dut, rng
        image = np.frombuffer(rng.randbytes(_MEMORY), np.uint8)
        self.image = [int.from_bytes(beat.tobytes(), "little") for beat in image.reshape(-1, _BEAT_BYTES)]
        striped = stripe(image, ports=_PORTS, port_bytes=_BEAT_BYTES // _PORTS).tobytes()
        self.rams = []
        for port in range(_PORTS):
            ram = FaultyReadRam(AxiReadBus.from_prefix(dut, f"bus{port}_"), dut.clk, dut.rst, size=_MEMORY)
            ram.write(0, striped)
            self.rams.append(ram)
        await start(dut, idle_inputs=("ranges__valid", "beats__ready", "flush", "clear"))
        for port, ram in enumerate(self.rams):
            slow = bus if port % 2 else bus / 2
            ram.ar_channel.set_pause_generator(pauses(random.Random(f"{port} ar"), slow))
            ram.r_channel.set_pause_generator(pauses(random.Random(f"{port} r"), slow))
        self.bursts = [watch_read(dut, f"bus{port}") for port in range(_PORTS)]
        self.beats, self.errors = list[int](), list[int]()
        self.sink = cocotb.start_soon(stream_sink(dut, "beats", self.beats, rng, stall))
        cocotb.start_soon(collect(dut, "error", self.errors))
        return self

    async def send(self, ranges: Any, idle: float) -> None:
        payloads = [first | count << _START_BITS for first, count in ranges]
        await stream_source(self.dut, "ranges", payloads, self.rng, idle)

    def expected(self, ranges: Any) -> list[int]:
        return [beat for first, count in ranges for beat in self.image[first : first + count]]


@cocotb.test()
@cocotb.parametrize(idle=[0.0, 0.7], bus=[0.0, 0.6], stall=[0.0, 0.5])
async def ranges_come_in_order(dut: Any, idle: float, bus: float, stall: float) -> None:
    rng = random.Random(f"{idle} {bus} {stall}")
    per_block = 4096 * _PORTS // _BEAT_BYTES
    ranges = [(0, 1), (per_block - 1, 2), (5, 0), (per_block - 20, 40), (per_block, 300), (_BEATS - 7, 7)]
    ranges += [(rng.randrange(_BEATS - 100), rng.randrange(60)) for _ in range(12)]
    rng.shuffle(ranges)
    bench = await _Bench.begin(dut, rng, bus=bus, stall=stall)
    expected = bench.expected(ranges)
    await bench.send(ranges, idle)
    await wait_until(dut, lambda: len(bench.beats) >= len(expected))
    await wait_until(dut, lambda: int(dut.idle.value))
    for _ in range(8):
        await RisingEdge(dut.clk)
    assert bench.beats == expected
    assert bench.errors == []


@cocotb.test()
async def it_runs_ahead_of_a_reader_that_waits(dut: Any) -> None:
    """Everything that fits is fetched before the first beat is taken; afterwards a beat is ready in every cycle."""
    bench = await _Bench.begin(dut, random.Random(1), bus=0.0, stall=1.0)
    depth = int(os.environ["DEPTH"])
    await bench.send([(3, depth // 2), (100, depth // 2)], 0.0)
    for _ in range(3 * depth + 60):
        await RisingEdge(dut.clk)
    assert int(dut.idle.value)
    bench.sink.cancel()
    cocotb.start_soon(stream_sink(dut, "beats", bench.beats, bench.rng, 0.0))
    for _ in range(depth + 3):
        await RisingEdge(dut.clk)
    assert bench.beats == bench.expected([(3, depth // 2), (100, depth // 2)])
    assert not any(_empty_cycles(dut))


@cocotb.test()
async def empty_cycles_are_those_of_the_port_that_lags(dut: Any) -> None:
    bench = await _Bench.begin(dut, random.Random(1), bus=0.0, stall=0.0)
    bench.rams[-1].r_channel.set_pause_generator(pauses(random.Random(3), 0.8))
    for _ in range(40):
        await RisingEdge(dut.clk)
    assert not any(_empty_cycles(dut)), "cycles without a request are counted"
    await bench.send([(0, 100)], 0.0)
    await wait_until(dut, lambda: len(bench.beats) == 100)
    lagging = _empty_cycles(dut)[-1]
    assert lagging > 200
    assert all(count < lagging // 4 for count in _empty_cycles(dut)[:-1])
    dut.clear.value = 1
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    assert not any(_empty_cycles(dut))


def _empty_cycles(dut: Any) -> list[int]:
    return [int(getattr(dut, f"empty_cycles__{port}").value) for port in range(_PORTS)]


@cocotb.test()
async def errors_name_port_and_range(dut: Any) -> None:
    bench = await _Bench.begin(dut, random.Random(3), bus=0.2, stall=0.2)
    port, port_bytes = _PORTS - 1, _BEAT_BYTES // _PORTS
    bench.rams[port].bad = frozenset({port * 4096 + 9 * port_bytes})  # slice of beat 9
    await bench.send([(50, 3), (7, 0), (8, 4)], 0.0)
    await wait_until(dut, lambda: len(bench.beats) == 7)
    await RisingEdge(dut.clk)
    assert bench.errors == [port | 2 << 2 | 2 << 18]  # port, range, SLVERR


@cocotb.test()
@cocotb.parametrize(after=[2, 9, 31, 80])
async def flush_in_mid_stream(dut: Any, after: int) -> None:
    rng = random.Random(after)
    bench = await _Bench.begin(dut, rng, bus=0.5, stall=0.3)
    sending = cocotb.start_soon(bench.send([(5, 200), (0, 0), (77, 300), (11, 100), (1, 1), (2, 2), (9, 40)], 0.0))
    for _ in range(after):
        await RisingEdge(dut.clk)
    sending.cancel()
    bench.sink.cancel()
    dut.ranges__valid.value, dut.beats__ready.value, dut.flush.value = 0, 0, 1
    await RisingEdge(dut.clk)
    await wait_until(dut, lambda: int(dut.idle.value))
    dut.flush.value = 0
    bench.beats.clear()
    cocotb.start_soon(stream_sink(dut, "beats", bench.beats, rng, 0.3))
    await bench.send([(60, 30), (20, 5)], 0.0)
    await wait_until(dut, lambda: len(bench.beats) >= 35)
    assert bench.beats == bench.expected([(60, 30), (20, 5)])
