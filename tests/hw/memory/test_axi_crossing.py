"""Test AXI channels between two clocks: nothing is lost, invented, changed or overtaken, for any ratio of the clocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from amaranth.hdl import Cat, DomainRenamer, Module, Signal
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import Component, In, connect, flipped

from edgedec.hw.memory import axi_crossing
from edgedec.hw.memory.axi import Response, axi4_read, axi4_write
from edgedec.hw.memory.axi_crossing import AxiReadCrossing, AxiWriteCrossing
from edgedec.hw.system.block_ram import OnChipMemory
from tests.hw.support.bench_clocks import Clock, jittering
from tests.hw.support.bench_streams import checked_simulator
from tests.hw.support.fake_axi_managers import Reader, Writer

# periods of the two clocks, in ps, and a phase: much slower, a little slower, the same, a little faster, much faster
STEADY = [
    (12_500, 60_000, 0.3),
    (12_500, 13_100, 0.0),
    (10_000, 10_000, 0.5),
    (12_500, 7_143, 0.1),
    (50_000, 7_000, 0.7),
]
# Clocks that drift and jitter, with synchronizers that resolve late. Nearly equal ones meet in every phase.
JITTERING = [
    (Clock(period=ours, jitter=jitter, seed=seed), Clock(period=theirs, jitter=jitter, seed=~seed))
    for seed, (ours, theirs, jitter) in enumerate(
        [
            (10_000, 10_003, 0.02),
            (10_000, 9_990, 0.3),
            (10_000, 10_000, 0.3),
            (12_500, 13_100, 0.2),
            (12_500, 7_143, 0.3),
            (12_500, 60_000, 0.2),
            (50_000, 7_000, 0.2),
        ]
    )
]
CLOCKS = [*STEADY, *JITTERING]
SIZE, DATA_BYTES = 4096, 4
RESPONSES = [Response.OKAY, Response.SLVERR, Response.DECERR]


Clocks = tuple[int, int, float] | tuple[Clock, Clock]


def run(design: Component, clocks: Clocks, processes: Sequence[Callable[[Any], Any]]) -> None:
    domains, platform = {"subordinate": "memory"}, None
    if len(clocks) == 3:
        ours, theirs, phase = clocks
        simulator = checked_simulator(design, domains=domains)
        simulator.add_clock(ours * 1e-12, domain="sync")
        simulator.add_clock(theirs * 1e-12, phase=phase * theirs * 1e-12, domain="memory")
    else:
        simulator, platform = jittering(design, dict(zip(("sync", "memory"), clocks, strict=True)), domains=domains)

    async def watch(ctx: Any) -> None:
        for _ in range(20_000):
            await ctx.tick()
        raise AssertionError("no end")

    simulator.add_testbench(watch, background=True)
    for process in processes:
        simulator.add_testbench(process)
    simulator.run()
    assert platform is None or platform.changes > 4 * platform.late / 3 > 0


def words(rng: random.Random, count: int) -> list[list[int]]:
    """Return bursts of random beats, most of them short."""
    return [[rng.getrandbits(32) for _ in range(rng.choice([1, 1, 2, 5, 20]))] for _ in range(count)]


def place(rng: random.Random, beats: int) -> int:
    """Return a random address of a burst that stays within 4 KiB."""
    return rng.getrandbits(28) * 4096 + rng.randrange(1024 - beats) * DATA_BYTES


@pytest.mark.nightly(sample=12)
@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize("clocks", CLOCKS)
@pytest.mark.parametrize(("stall", "idle"), [(0.0, 0.0), (0.6, 0.0), (0.2, 0.6)])
def test_reads_cross_in_order(clocks: Clocks, stall: float, idle: float) -> None:
    """Check that the other side gets every request unchanged, and that its data and responses return in order, with
    queues that are full, empty and in between.
    """
    rng, dut = random.Random(f"{clocks} {stall} {idle}"), AxiReadCrossing(address_bits=40, data_bytes=DATA_BYTES)
    answers = words(rng, 9)
    responses = [[rng.choice(RESPONSES) for _ in burst] for burst in answers]
    bursts = [(place(rng, len(burst)), len(burst)) for burst in answers]
    reader = Reader(dut.manager, bursts, stall=stall, idle=idle)
    requests: list[tuple[int, int]] = []

    async def take(ctx: Any) -> None:
        while len(requests) < len(bursts):
            ready = rng.random() >= stall
            ctx.set(dut.subordinate.arready, ready)
            names = ("arvalid", "araddr", "arlen", "arsize", "arburst", "arid")
            _, _, valid, address, length, *constant = await ctx.tick("memory").sample(
                *(getattr(dut.subordinate, name) for name in names)
            )
            if valid and ready:
                assert constant == [2, 1, 0]
                requests.append((address, length + 1))
        ctx.set(dut.subordinate.arready, 0)

    async def give(ctx: Any) -> None:
        bus = dut.subordinate
        for number, (burst, responses_of_burst) in enumerate(zip(answers, responses, strict=True)):
            while len(requests) <= number or rng.random() < idle:
                await ctx.tick("memory")
            for at, (value, response) in enumerate(zip(burst, responses_of_burst, strict=True)):
                ctx.set(bus.rdata, value)
                ctx.set(bus.rresp, response)
                ctx.set(bus.rlast, at == len(burst) - 1)
                ctx.set(bus.rvalid, 1)
                await ctx.tick("memory").until(bus.rready)
                ctx.set(bus.rvalid, 0)

    run(dut, clocks, [reader.ask, reader.take, take, give])
    assert requests == bursts
    assert reader.found == [value for burst in answers for value in burst]
    assert reader.responses == [response for burst_responses in responses for response in burst_responses]


@pytest.mark.nightly(sample=13)
@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize("clocks", CLOCKS)
@pytest.mark.parametrize(("stall", "idle"), [(0.0, 0.0), (0.6, 0.0), (0.2, 0.6)])
def test_writes_cross_in_order(clocks: Clocks, stall: float, idle: float) -> None:
    rng, dut = random.Random(f"{clocks} {stall} {idle}"), AxiWriteCrossing(address_bits=40, data_bytes=DATA_BYTES)
    items = [(place(rng, len(burst)), [(value, rng.getrandbits(4)) for value in burst]) for burst in words(rng, 9)]
    responses = [rng.choice(RESPONSES) for _ in items]
    writer = Writer(dut.manager, items, idle=idle, stall=stall)
    addresses: list[tuple[int, int]] = []
    beats: list[tuple[int, int, int]] = []

    async def take_addresses(ctx: Any) -> None:
        bus = dut.subordinate
        while len(addresses) < len(items):
            ready = rng.random() >= stall
            ctx.set(bus.awready, ready)
            _, _, valid, address, length, size, burst = await ctx.tick("memory").sample(
                bus.awvalid, bus.awaddr, bus.awlen, bus.awsize, bus.awburst
            )
            if valid and ready:
                assert (size, burst) == (2, 1)
                addresses.append((address, length + 1))
        ctx.set(bus.awready, 0)

    async def take_data(ctx: Any) -> None:
        bus, bursts_ended = dut.subordinate, 0
        while bursts_ended < len(items):
            ready = rng.random() >= stall
            ctx.set(bus.wready, ready)
            _, _, valid, *beat = await ctx.tick("memory").sample(bus.wvalid, bus.wdata, bus.wstrb, bus.wlast)
            if valid and ready:
                beats.append((beat[0], beat[1], beat[2]))
                bursts_ended += beat[2]
        ctx.set(bus.wready, 0)

    async def answer(ctx: Any) -> None:
        bus = dut.subordinate
        for number, response in enumerate(responses):
            while min(len(addresses), sum(last for *_, last in beats)) <= number or rng.random() < idle:
                await ctx.tick("memory")
            ctx.set(bus.bresp, response)
            ctx.set(bus.bvalid, 1)
            await ctx.tick("memory").until(bus.bready)
            ctx.set(bus.bvalid, 0)

    run(dut, clocks, [writer.ask, writer.give, writer.answered, take_addresses, take_data, answer])
    assert addresses == [(address, len(burst)) for address, burst in items]
    assert beats == [
        (value, strobes, at == len(burst) - 1) for _, burst in items for at, (value, strobes) in enumerate(burst)
    ]
    assert writer.answers == responses


def _binary(self: Any, m: Module, name: str, count: Signal, source: str, sink: str) -> Signal:
    """Send a count as it is: several bits change at once, and some of them may arrive earlier than others."""
    sent, crossed = Signal.like(count), Signal.like(count)
    m.d[source] += sent.eq(count)
    m.submodules[f"{name}_crossing"] = FFSynchronizer(sent, crossed, o_domain=sink, reset_less=False)
    return crossed


def _unsynchronized(self: Any, m: Module, name: str, count: Signal, source: str, sink: str) -> Signal:
    """Decode a Gray code before its first register of the other clock, so that one late bit reaches several registers."""
    gray, decoded, crossed = (Signal.like(count) for _ in range(3))
    m.d[source] += gray.eq(count ^ (count >> 1))
    m.d.comb += decoded.eq(Cat(gray[bit:].xor() for bit in range(len(count))))
    m.submodules[f"{name}_crossing"] = FFSynchronizer(decoded, crossed, o_domain=sink, reset_less=False)
    return crossed


def counted(depth: int, clocks: Clocks, stall: float, idle: float, count: int) -> list[int]:
    """Send the numbers from 0 to ``count`` - 1 through a queue between the clocks, and return what arrives."""
    dut = axi_crossing._Crossing(width=16, depth=depth, source="sync", sink="memory")
    rng, arrived = random.Random(f"{depth} {stall} {idle}"), list[int]()

    async def give(ctx: Any) -> None:
        for number in range(count):
            while rng.random() < idle:
                await ctx.tick()
            ctx.set(dut.input.payload, number)
            ctx.set(dut.input.valid, 1)
            await ctx.tick().until(dut.input.ready)
            ctx.set(dut.input.valid, 0)

    async def take(ctx: Any) -> None:
        quiet = 0
        while quiet < 100:  # a superfluous item would appear meanwhile
            ready = rng.random() >= stall
            ctx.set(dut.output.ready, ready)
            _, _, valid, payload = await ctx.tick("memory").sample(dut.output.valid, dut.output.payload)
            if valid and ready:
                arrived.append(payload)
            quiet = 0 if valid else quiet + 1

    run(dut, clocks, [give, take])
    return arrived


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize("clocks", JITTERING)
@pytest.mark.parametrize("depth", [8, 16])
def test_a_queue_that_is_full_and_empty_by_turns_loses_nothing(clocks: Clocks, depth: int) -> None:
    for stall, idle in [(0.5, 0.0), (0.0, 0.5), (0.0, 0.0)]:
        assert counted(depth, clocks, stall, idle, 600) == list(range(600))


@pytest.mark.rtl
@pytest.mark.parametrize("other", [_binary, _unsynchronized])
def test_a_count_that_crosses_wrongly_is_seen(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the crossing of the counts; a fast reader of a slow writer then takes items that are not there."""
    monkeypatch.setattr(axi_crossing._Crossing, "_other", other)
    assert counted(8, JITTERING[-1], 0.0, 0.3, 400) != list(range(400))


class _Behind(Component):
    """Hold a memory in the other clock."""

    def __init__(self) -> None:
        widths = {"address_bits": 40, "data_bytes": DATA_BYTES}
        super().__init__({"read": In(axi4_read(**widths)), "write": In(axi4_write(**widths))})

    def elaborate(self, platform: Any) -> Module:
        m, memory = Module(), OnChipMemory(memory_bytes=SIZE, data_bytes=DATA_BYTES, reads=1, writes=1)
        m.submodules.memory = DomainRenamer("memory")(memory)
        m.submodules.read = read = AxiReadCrossing(address_bits=40, data_bytes=DATA_BYTES)
        m.submodules.write = write = AxiWriteCrossing(address_bits=40, data_bytes=DATA_BYTES)
        connect(m, flipped(self.read), read.manager)
        connect(m, flipped(self.write), write.manager)
        connect(m, read.subordinate, memory.read0)
        connect(m, write.subordinate, memory.write0)
        return m


@pytest.mark.rtl
@pytest.mark.parametrize("clocks", [STEADY[0], STEADY[3], *JITTERING[1:3]])
def test_a_write_is_visible_once_it_is_answered(clocks: Clocks) -> None:
    design, rng = _Behind(), random.Random(0)

    async def both(ctx: Any) -> None:
        for number in range(6):
            address, values = 128 * number, [rng.getrandbits(32) for _ in range(1 + 7 * (number % 2))]
            writer = Writer(design.write, [(address, [(value, 15) for value in values])])
            reader = Reader(design.read, [(address, len(values)), (SIZE, 1)])
            for process in (writer.ask, writer.give, writer.answered, reader.ask, reader.take):
                await process(ctx)
            assert writer.answers == [Response.OKAY]
            assert reader.found[:-1] == values
            assert reader.responses[-1] == Response.SLVERR

    run(design, clocks, [both])
