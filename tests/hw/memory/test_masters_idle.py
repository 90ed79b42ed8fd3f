"""Test ``idle`` and ``flush`` of the AXI masters step by step: what a soft reset waits for, and what it drops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from edgedec.hw.memory.read_master import ReadMaster
from edgedec.hw.memory.write_master import WriteMaster
from tests.hw.support.bench_streams import checked_simulator

WIDTHS = {"address_bits": 32, "data_bytes": 4, "max_burst": 4}


def simulate(component: Any, bench: Callable[[Any], Awaitable[None]]) -> None:
    simulator = checked_simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


async def request(ctx: Any, component: Any, address: int, size: int) -> None:
    ctx.set(component.requests.payload, {"address": address, "bytes": size})
    ctx.set(component.requests.valid, 1)
    await ctx.tick().until(component.requests.ready)
    ctx.set(component.requests.valid, 0)


def test_a_reader_is_idle_after_the_last_beat() -> None:
    reader = ReadMaster(**WIDTHS)

    async def answer(ctx: Any, data: int, *, last: bool) -> int:
        """Send a beat of R; return whether it is passed on."""
        ctx.set(reader.bus.rvalid, 1)
        ctx.set(reader.bus.rdata, data)
        ctx.set(reader.bus.rlast, last)
        passed_on = ctx.get(reader.beats.valid)
        await ctx.tick().until(reader.bus.rready)
        ctx.set(reader.bus.rvalid, 0)
        return int(passed_on)

    async def bench(ctx: Any) -> None:
        ctx.set(reader.beats.ready, 1)
        assert ctx.get(reader.idle)
        await request(ctx, reader, 64, 8)
        assert not ctx.get(reader.idle)  # not yet cut up
        await ctx.tick().repeat(3)
        assert ctx.get(reader.bus.arvalid)
        assert not ctx.get(reader.idle)  # offered
        ctx.set(reader.bus.arready, 1)
        await ctx.tick()
        ctx.set(reader.bus.arready, 0)
        await ctx.tick().repeat(3)
        assert not ctx.get(reader.bus.arvalid)
        assert not ctx.get(reader.idle)  # not yet answered
        assert await answer(ctx, 1, last=False)
        await ctx.tick().repeat(2)
        assert not ctx.get(reader.idle)
        assert await answer(ctx, 2, last=True)
        await ctx.tick()
        assert ctx.get(reader.idle)

        await request(ctx, reader, 0, 32)  # two bursts; the second is not offered before the flush
        await ctx.tick().repeat(3)
        ctx.set(reader.flush, 1)
        ctx.set(reader.beats.ready, 0)  # the sink takes no beats any more
        ctx.set(reader.bus.arready, 1)
        await ctx.tick().until(reader.bus.arvalid)
        await ctx.tick().repeat(3)
        assert not ctx.get(reader.bus.arvalid)
        assert not ctx.get(reader.idle)
        for beat in range(3, 7):
            assert not await answer(ctx, beat, last=beat == 6)
        await ctx.tick()
        assert ctx.get(reader.idle)

    simulate(reader, bench)


def test_a_writer_is_idle_after_the_last_response() -> None:
    writer = WriteMaster(**WIDTHS)

    async def bench(ctx: Any) -> None:
        assert ctx.get(writer.idle)
        await request(ctx, writer, 64, 4)
        assert not ctx.get(writer.idle)
        ctx.set(writer.bus.awready, 1)
        ctx.set(writer.bus.wready, 1)
        ctx.set(writer.data.valid, 1)
        await ctx.tick().until(writer.data.ready)
        ctx.set(writer.data.valid, 0)
        await ctx.tick().repeat(4)
        assert not ctx.get(writer.bus.awvalid)
        assert not ctx.get(writer.bus.wvalid)
        assert not ctx.get(writer.idle)  # written, not answered
        ctx.set(writer.bus.bvalid, 1)
        await ctx.tick()
        ctx.set(writer.bus.bvalid, 0)
        await ctx.tick()
        assert ctx.get(writer.idle)

        ctx.set(writer.bus.awready, 0)
        await request(ctx, writer, 0, 16)
        await ctx.tick().repeat(3)
        assert ctx.get(writer.bus.awvalid)
        ctx.set(writer.flush, 1)
        ctx.set(writer.bus.awready, 1)
        strobes = []
        for _ in range(12):  # the burst whose address is offered is completed, and writes nothing
            _, _, valid, strobe = await ctx.tick().sample(writer.bus.wvalid, writer.bus.wstrb)
            strobes += [strobe] if valid else []
        assert strobes == [0, 0, 0, 0]
        assert not ctx.get(writer.idle)
        ctx.set(writer.bus.bvalid, 1)
        _, _, done_valid = await ctx.tick().sample(writer.done.valid)
        ctx.set(writer.bus.bvalid, 0)
        _, _, later = await ctx.tick().sample(writer.done.valid)
        assert not done_valid
        assert not later
        assert ctx.get(writer.idle)

    simulate(writer, bench)
