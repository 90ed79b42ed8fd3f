"""Compare the bridge from AXI3 to AXI4-Lite with words of memory, for every kind of burst, and check its refusals."""

from __future__ import annotations

import random
from typing import Any

import pytest

from edgedec.hw.memory.axi import Response
from edgedec.hw.system.zynq.lite_bridge import LiteBridge
from tests.hw.system.zynq.support.fake_processing_system import Access, Manager, run

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

FIXED, INCR, WRAP = range(3)
WINDOWS = {"first": (0x43C0_0000, 0x1000), "second": (0x4180_0000, 0x1_0000)}


class Words:
    """Serve an AXI4-Lite port from words, with random delays; ``bad`` holds offsets that are answered SLVERR."""

    def __init__(self, bus: Any, seed: int, bad: frozenset[int] = frozenset()) -> None:
        self.bus, self.bad, self.words = bus, bad, dict[int, int]()
        self.writes: list[int] = []
        self.reads: list[int] = []
        self._rng = random.Random(seed)

    async def serve_writes(self, ctx: Any) -> None:
        bus, address, data = self.bus, None, None
        while True:
            ready = [self._rng.random() < 0.5 for _ in range(2)]
            ctx.set(bus.awready, ready[0] and address is None)
            ctx.set(bus.wready, ready[1] and data is None)
            offers = await ctx.tick().sample(bus.awvalid, bus.awready, bus.awaddr, bus.wvalid, bus.wready)
            taken = ctx.get(bus.wdata), ctx.get(bus.wstrb)
            _, _, address_valid, address_ready, at, data_valid, data_ready = offers
            if address_valid and address_ready:
                address = at
            if data_valid and data_ready:
                data = taken
            if address is None or data is None:
                continue
            assert address % 4 == 0
            self.writes.append(address)
            mask = sum(255 << 8 * lane for lane in range(4) if data[1] >> lane & 1)
            self.words[address] = (self.words.get(address, 0) & ~mask) | (data[0] & mask)
            ctx.set(bus.awready, 0)
            ctx.set(bus.wready, 0)
            for _ in range(self._rng.randrange(3)):
                await ctx.tick()
            ctx.set(bus.bresp, 2 if address in self.bad else 0)
            ctx.set(bus.bvalid, 1)
            while not (await ctx.tick().sample(bus.bready))[2]:
                pass
            ctx.set(bus.bvalid, 0)
            address, data = None, None

    async def serve_reads(self, ctx: Any) -> None:
        bus = self.bus
        while True:
            ctx.set(bus.arready, self._rng.random() < 0.5)
            _, _, valid, ready, address = await ctx.tick().sample(bus.arvalid, bus.arready, bus.araddr)
            if not (valid and ready):
                continue
            assert address % 4 == 0
            self.reads.append(address)
            ctx.set(bus.arready, 0)
            for _ in range(self._rng.randrange(3)):
                await ctx.tick()
            ctx.set(bus.rdata, self.words.get(address, 0))
            ctx.set(bus.rresp, 2 if address in self.bad else 0)
            ctx.set(bus.rvalid, 1)
            while not (await ctx.tick().sample(bus.rready))[2]:
                pass
            ctx.set(bus.rvalid, 0)


def simulate(bench: Any, bad: frozenset[int] = frozenset(), *, legal: bool = True) -> dict[str, Words]:
    """Run ``bench(ctx, manager)`` on a bridge to two blocks of words, which are returned."""
    dut = LiteBridge(WINDOWS)
    blocks = {name: Words(getattr(dut, name), seed, bad) for seed, name in enumerate(WINDOWS)}
    served = [process for block in blocks.values() for process in (block.serve_writes, block.serve_reads)]

    async def whole(ctx: Any) -> None:
        await bench(ctx, Manager(dut.bus))

    run(dut, whole, *served, legal=legal)
    return blocks


def addresses(access: Access, beats: int) -> list[int]:
    """Return the byte address of each beat, by the definition of the burst types."""
    size = 1 << access.size
    aligned = access.address // size * size
    if access.burst == FIXED:
        return [access.address] * beats
    if access.burst == INCR:
        return [access.address, *(aligned + n * size for n in range(1, beats))]
    start = access.address // (size * beats) * (size * beats)
    return [start + (access.address - start + n * size) % (size * beats) for n in range(beats)]


def some_access(rng: random.Random, *, write: bool) -> Access:
    burst, size = rng.choice((FIXED, INCR, INCR, WRAP)), rng.choice((0, 1, 2, 2, 2))
    beats = rng.choice((2, 4, 8, 16)) if burst == WRAP else rng.randrange(1, 17)
    base, _ = WINDOWS[rng.choice(list(WINDOWS))]
    address = base + rng.randrange(0, 0x200)
    if burst != INCR:
        address = address >> size << size
    access = Access(address=address, count=beats, size=size, burst=burst, identity=rng.getrandbits(12))
    access.lock = rng.choice((0, 0, 1, 2))
    if write:
        lanes = [
            sum(1 << lane for lane in range(at % 4, (at // (1 << size) + 1) * (1 << size) - at // 4 * 4))
            for at in addresses(access, beats)
        ]
        access.beats = [(rng.getrandbits(32), lane & rng.getrandbits(4)) for lane in lanes]
    return access


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_bursts_of_all_kinds_reach_the_words(seed: int) -> None:
    rng, expected = random.Random(seed), dict[int, int]()

    async def bench(ctx: Any, manager: Manager) -> None:
        for _ in range(60):
            write = rng.random() < 0.6
            access = some_access(rng, write=write)
            places = [at // 4 * 4 for at in addresses(access, access.count)]
            if write:
                await manager.write(ctx, access)
                for place, (data, strobes) in zip(places, access.beats, strict=True):
                    for lane in range(4):
                        if strobes >> lane & 1:
                            old = expected.get(place, 0) & ~(255 << 8 * lane)
                            expected[place] = old | (data & 255 << 8 * lane)
                assert access.response == [Response.OKAY]
            else:
                await manager.read(ctx, access)
                assert access.found == [expected.get(place, 0) for place in places]
                assert set(access.response) == {Response.OKAY}

    blocks = simulate(bench)
    for name, (base, _) in WINDOWS.items():
        found = {base + offset: word for offset, word in blocks[name].words.items() if word}
        first, end = WINDOWS[name][0], sum(WINDOWS[name])
        assert found == {place: word for place, word in expected.items() if word and first <= place < end}


OUTSIDE = (0x43BF_FFF0, 0x43C0_1000, 0x4181_0000, 0x417F_FFF0, 0x0000_0000, 0xFFFF_FFF0)


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(
    ("change", "response"),
    [
        *(({"address": address}, Response.DECERR) for address in OUTSIDE),
        ({"size": 3}, Response.SLVERR),
        ({"burst": 3}, Response.SLVERR),
        ({"burst": WRAP, "count": 3}, Response.SLVERR),
        ({"burst": WRAP, "count": 1}, Response.SLVERR),
    ],
)
def test_what_the_bridge_cannot_do_is_refused_without_an_access(change: dict[str, int], response: Response) -> None:
    """Check that every beat of a read has the response, and that a good access after it is served."""

    async def bench(ctx: Any, manager: Manager) -> None:
        members: dict[str, Any] = {"address": 0x43C0_0010, "count": 4, "identity": 0xABC, **change}
        read = await manager.read(ctx, Access(**members))
        assert (read.response, read.found) == ([response] * members["count"], [0] * members["count"])
        beats = [(n, 15) for n in range(members["count"])]
        assert (await manager.write(ctx, Access(**members, beats=beats))).response == [response]
        await manager.write_word(ctx, 0x43C0_0010, 0x1234)
        assert await manager.read_word(ctx, 0x43C0_0010) == 0x1234

    blocks = simulate(bench, legal="address" in change)
    assert (blocks["first"].writes, blocks["first"].reads) == ([0x10], [0x10])
    assert (blocks["second"].writes, blocks["second"].reads) == ([], [])


def test_a_beat_of_another_burst_is_refused() -> None:
    async def bench(ctx: Any, manager: Manager) -> None:
        beats = [(n, 15) for n in range(4)]
        access = Access(address=0x43C0_0000, beats=beats, identity=5, wids=(5, 5, 4, 5))
        assert (await manager.write(ctx, access)).response == [Response.SLVERR]

    assert simulate(bench, legal=False)["first"].writes == [0, 4, 12]


@pytest.mark.rtl
def test_responses_of_the_registers_are_passed_on() -> None:
    async def bench(ctx: Any, manager: Manager) -> None:
        read = await manager.read(ctx, Access(address=0x43C0_0000, count=4))
        assert read.response == [0, 0, Response.SLVERR, 0]
        write = await manager.write(ctx, Access(address=0x43C0_0000, beats=[(0, 15)] * 4))
        assert write.response == [Response.SLVERR]
        assert (await manager.write(ctx, Access(address=0x43C0_0000, beats=[(0, 15)]))).response == [Response.OKAY]

    simulate(bench, bad=frozenset({8}))


@pytest.mark.parametrize("window", [(0x1000, 0x800), (0x1000, 0x3000), (0x1000, 0x2000), (0xFFFF_F000, 0x2000)])
def test_a_window_that_cannot_be_decoded_is_refused(window: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="window one must be a power of two of at least 4096 bytes"):
        LiteBridge({"one": window})


def test_a_window_may_end_with_the_address_space() -> None:
    LiteBridge({"one": (0xFFFF_F000, 0x1000)})
