"""Reset masters in the middle of bursts while the memory goes on: a fresh job must not take what the old one asked for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.memory.axi import axi4_read, axi4_write, requests
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.hw.memory.reset_drain import ResetDrain, outlive_reset
from edgedec.hw.memory.write_master import WriteMaster
from tests.hw.support.bench_streams import checked_simulator
from tests.hw.support.fake_axi_memory import AxiMemory, WriteOrder

BYTES, SIZE = 4, 1 << 14
ORDERS: list[WriteOrder] = ["any", "address first", "together", "data first"]
PATIENCE = 256


class Copying(Component):
    """Copy ranges from a read port to a write port; ``reset`` resets all but the memory, as a reset of the domain does.

    Parameters:
        drains: whether the masters outlive the reset.

    Members:
        copies: In(stream {address, bytes}). A range, whose copy goes to the second half of the memory.
    """

    def __init__(self, *, drains: bool = True) -> None:
        self._drains = drains
        widths = {"address_bits": 16, "data_bytes": BYTES}
        super().__init__(
            {
                "copies": In(requests(16, 16)),
                "bus0": Out(axi4_read(**widths)),
                "write": Out(axi4_write(**widths)),
                "reset": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m, inner = Module(), Module()
        reads = Prefetcher(
            beat_bytes=BYTES, ports=1, address_bits=16, count_bits=10, depth=8, style="block", max_burst=8
        )
        writes = WriteMaster(address_bits=16, data_bytes=BYTES, length_bits=16, max_burst=4)
        inner.submodules.drain = drain = ResetDrain(patience=PATIENCE)
        for name, part in {"reads": reads, "writes": writes}.items():
            inner.submodules[name] = outlive_reset(part, drain.clear) if self._drains else part
        flush = drain.flush if self._drains else Signal()
        start = Signal(2)  # a copy is begun with a request to each master
        inner.d.comb += [
            reads.flush.eq(flush),
            writes.flush.eq(flush),
            drain.idle.eq(reads.idle & writes.idle),
            drain.progress.eq(self.bus0.rvalid | self.write.bvalid | (self.write.wvalid & self.write.wready)),
            writes.data.payload.eq(reads.beats.payload),
            writes.data.valid.eq(reads.beats.valid),
            reads.beats.ready.eq(writes.data.ready),
            reads.ranges.p.start.eq(self.copies.p.address >> 2),
            reads.ranges.p.beats.eq(self.copies.p.bytes >> 2),
            reads.ranges.valid.eq(self.copies.valid & ~start[0]),
            writes.requests.p.address.eq(self.copies.p.address | SIZE // 2),
            writes.requests.p.bytes.eq(self.copies.p.bytes),
            writes.requests.valid.eq(self.copies.valid & ~start[1]),
            self.copies.ready.eq(start.all()),
            self.idle.eq(reads.idle & writes.idle & ~flush),
        ]
        with inner.If(self.copies.ready):
            inner.d.sync += start.eq(0)
        with inner.Else():
            for bit, port in enumerate((reads.ranges, writes.requests)):
                with inner.If(port.valid & port.ready):
                    inner.d.sync += start[bit].eq(1)
        connect(inner, reads.bus0, flipped(self.bus0))
        connect(inner, writes.bus, flipped(self.write))
        m.submodules.inner = ResetInserter(self.reset)(inner)
        return m


async def _high(ctx: Any, signal: Any) -> None:
    """Wait until a signal is high at an edge. ``until`` complains if a monitor ends the simulation meanwhile."""
    while not (await ctx.tick().sample(signal))[2]:
        pass


def attacked(order: WriteOrder, seed: int, *, drains: bool = True) -> None:
    """Copy, reset at a random cycle for a random number of cycles, and copy something else; compare all of the memory."""
    rng, dut = random.Random(f"{order} {seed}"), Copying(drains=drains)
    contents = bytearray(rng.randbytes(SIZE))
    stall, latency = rng.choice([0.0, 0.3, 0.7]), rng.choice([0, 5, 40])
    reading, writing = (
        AxiMemory(bus, memory=contents, data_bytes=BYTES, stall=stall, latency=latency, order=order, seed=seed)
        for bus in (dut.bus0, dut.write)
    )

    async def copy(ctx: Any, address: int, size: int) -> None:
        ctx.set(dut.copies.payload, {"address": address, "bytes": size})
        ctx.set(dut.copies.valid, 1)
        await _high(ctx, dut.copies.ready)
        ctx.set(dut.copies.valid, 0)

    async def bench(ctx: Any) -> None:
        await ctx.tick().repeat(20)
        for _ in range(6):
            left = rng.randrange(1, 150)  # cycles of the job before the reset
            address = BYTES * rng.randrange(400)
            ctx.set(dut.copies.payload, {"address": address, "bytes": BYTES * rng.randrange(1, 60)})
            ctx.set(dut.copies.valid, 1)
            await ctx.tick().repeat(left)
            ctx.set(dut.reset, 1)
            ctx.set(dut.copies.valid, 0)
            await ctx.tick().repeat(rng.choice([1, 2, 16]))
            ctx.set(dut.reset, 0)
            place, size = BYTES * rng.randrange(600, 1000), BYTES * rng.randrange(1, 60)
            expected = contents[place : place + size]
            await copy(ctx, place, size)
            for _ in range(8):
                await _high(ctx, dut.idle)
            assert contents[SIZE // 2 + place : SIZE // 2 + place + size] == expected

    simulator = checked_simulator(dut)
    simulator.add_clock(1e-6)
    first_half = bytes(contents[: SIZE // 2])

    async def watch(ctx: Any) -> None:
        for _ in range(20_000):
            await ctx.tick()
        raise AssertionError("no end")

    for process in (watch, reading.serve_reads, writing.serve_writes):
        simulator.add_testbench(process, background=True)
    simulator.add_testbench(bench)
    simulator.run()
    assert contents[: SIZE // 2] == first_half


@pytest.mark.nightly(sample=2)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(6))
def test_a_job_after_a_reset_gets_its_own_data(order: WriteOrder, seed: int) -> None:
    attacked(order, seed)


@pytest.mark.thorough
def test_masters_that_are_reset_with_the_rest_are_seen() -> None:
    for seed in range(2):
        with pytest.raises(AssertionError):
            attacked("any", seed, drains=False)


def test_a_memory_that_forgot_its_bursts_is_given_up() -> None:
    """Reset both sides: no answer comes, and after the patience a new job runs."""
    dut, drained = Copying(), list[int]()

    async def bench(ctx: Any) -> None:
        ctx.set(dut.bus0.arready, 1)
        ctx.set(dut.copies.payload, {"address": 0, "bytes": 64})
        ctx.set(dut.copies.valid, 1)
        await ctx.tick().until(dut.bus0.arvalid)
        ctx.set(dut.copies.valid, 0)
        ctx.set(dut.reset, 1)
        await ctx.tick().repeat(3)
        ctx.set(dut.reset, 0)
        assert not ctx.get(dut.idle)
        cycles = 0
        while not ctx.get(dut.idle):
            await ctx.tick()
            cycles += 1
            assert cycles < 2 * PATIENCE
        drained.append(cycles)
        memory = AxiMemory(dut.bus0, memory=bytearray(range(256)), data_bytes=BYTES)
        ctx.set(dut.copies.payload, {"address": 0, "bytes": 8})
        ctx.set(dut.copies.valid, 1)
        await ctx.tick().until(dut.bus0.arvalid)
        assert memory.reads == []

    from amaranth.sim import Simulator

    simulator = Simulator(dut)  # no monitors: the memory that forgets breaks the rules
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert PATIENCE <= drained[0] <= PATIENCE + 16


@pytest.mark.parametrize("patience", [8, 1 << 21])
def test_an_impossible_patience_is_refused(patience: int) -> None:
    with pytest.raises(ValueError, match="patience"):
        ResetDrain(patience=patience)
