"""Test the SDRAM controller with a chip that checks every rule: data, bandwidth, refreshes, and independent ports."""

from __future__ import annotations

import random
from dataclasses import astuple, fields, replace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import UsageError
from edgedec.hw.system.sdram.chip import IS42S16160G, SdramTimes
from edgedec.hw.system.sdram.controller import SdramController
from edgedec.sim.sdram.model import SdramModel
from tests.hw.support.fake_axi_managers import Reader, Writer
from tests.hw.system.sdram.support.bench_controller import CHIP, CLOCK_HZ, run

pytestmark = pytest.mark.rtl  # the model of the chip is compiled


def controller(data_bytes: int = 4, **parameters: Any) -> SdramController:
    defaults: dict[str, Any] = {"chip": CHIP, "clock_hz": CLOCK_HZ, "data_bytes": data_bytes}
    return SdramController(**defaults | parameters)


def place(address: int) -> int:
    """Return where the model keeps the byte of an address: rows of successive addresses are in successive banks."""
    row_bytes = CHIP.row_bytes
    row, byte = divmod(address, row_bytes)
    above, bank = divmod(row, 1 << CHIP.bank_bits)
    return ((bank << CHIP.row_bits) | above) * row_bytes + byte


def filled(model: SdramModel, start: int, size: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Fill the memory with random bytes, without the bus."""
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    for offset in range(0, size, CHIP.row_bytes):
        at, piece = place(start + offset), data[offset : offset + CHIP.row_bytes]
        model.contents[at : at + piece.size] = piece
    return data


def model() -> SdramModel:
    return SdramModel(CHIP, CHIP.times(CLOCK_HZ))


def as_beats(data: Any, data_bytes: int) -> list[int]:
    return [int.from_bytes(data[i : i + data_bytes].tobytes(), "little") for i in range(0, data.size, data_bytes)]


@pytest.mark.parametrize("data_bytes", [4, *(pytest.param(size, marks=pytest.mark.nightly) for size in (8, 16))])
def test_long_reads_get_nine_tenths_of_the_pins(data_bytes: int) -> None:
    dut, memory = controller(data_bytes, reads=1), model()
    data = filled(memory, 1 << 20, 4 << 10)
    burst = min(256, 4096 // data_bytes)
    step = burst * data_bytes
    reader = Reader(dut.read0, [((1 << 20) + at, burst) for at in range(0, data.size, step)])
    run(dut, dut.pins, [reader.ask, reader.take], model=memory)
    assert reader.found == as_beats(data, data_bytes)
    assert reader.first_cycle is not None
    cycles = reader.last_cycle - reader.first_cycle + data_bytes // 2
    assert data.size / 2 / cycles > 0.97, f"{data.size / 2 / cycles:.4f}"


def test_registers_at_the_pins() -> None:
    """Register the pins as on a board: two cycles more from a command to its data, and the same data."""
    dut, memory = controller(reads=1, writes=1, registers=2), model()
    data = filled(memory, 0, 1024)
    items = [(n * 0x01010101, 15) for n in range(32)]
    writer, reader = Writer(dut.write0, [(2048, items)]), Reader(dut.read0, [(0, 256)])

    async def later(ctx: Any) -> None:
        await writer.answered(ctx)
        reader.bursts = [*reader.bursts, (2048, 32)]
        await reader.ask(ctx)
        await reader.take(ctx)

    run(dut, dut.pins, [writer.ask, writer.give, later], model=memory, registered=True)
    assert reader.found == as_beats(data, 4) + [value for value, _ in items]


# Complete, this takes a minute in Amaranth's simulator; the first seeds and widths are in every run.
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
@pytest.mark.parametrize("data_bytes", [4, 8])
def test_random_traffic_on_all_ports_is_correct(data_bytes: int, seed: int) -> None:
    """Give each write port rows of its own, which its own reader follows; strobes, lengths, gaps and stalls are
    random.
    """
    rng, dut, memory = random.Random(seed), controller(data_bytes, reads=2, writes=2), model()
    memory_bytes: dict[int, int] = {}
    processes, readers = [], []
    rows = [rng.sample(range(64), 3) for _ in range(2)]
    for port in range(2):
        writes, read_bursts = [], []
        for _ in range(6):
            beats = rng.choice([1, 1, 2, 7, 33])
            row = rng.choice(rows[port]) * 2 + port
            address = row * CHIP.row_bytes + rng.randrange(CHIP.row_bytes // data_bytes) * data_bytes
            address = min(address, (row + 1) * CHIP.row_bytes - beats * data_bytes)
            items = [
                (rng.getrandbits(8 * data_bytes), rng.choice([-1, -1, rng.getrandbits(data_bytes)]))
                for _ in range(beats)
            ]
            items = [(value, strobes & ((1 << data_bytes) - 1)) for value, strobes in items]
            for number, (value, strobes) in enumerate(items):
                for lane in range(data_bytes):
                    if strobes >> lane & 1:
                        memory_bytes[address + number * data_bytes + lane] = value >> 8 * lane & 255
            writes.append((address, items))
            read_bursts.append((address, beats))
        writer = Writer(getattr(dut, f"write{port}"), writes, idle=rng.choice([0, 0.5, 0.9]), seed=seed)
        early = Reader(
            getattr(dut, f"read{port}"), [(rng.randrange(1 << 12) * data_bytes, 3)] * 6, stall=rng.choice([0, 0.6])
        )
        late = Reader(getattr(dut, f"read{port}"), read_bursts, stall=rng.choice([0, 0.5, 0.8]), idle=0.3, seed=seed)
        readers.append(late)

        async def one(ctx: Any, writer: Writer = writer, early: Reader = early, late: Reader = late) -> None:
            await writer.answered(ctx)
            await late.take(ctx)

        async def asks(ctx: Any, writer: Writer = writer, late: Reader = late) -> None:
            while len(writer.answers) < len(writer.bursts):
                await ctx.tick()
            await late.ask(ctx)

        processes += [writer.ask, writer.give, one, asks]
    run(dut, dut.pins, processes, model=memory)
    for reader in readers:
        at = 0
        for address, beats in reader.bursts:
            for value, start in zip(reader.found[at : at + beats], range(address, 1 << 62, data_bytes), strict=False):
                expected = [memory_bytes.get(start + lane, 0) for lane in range(data_bytes)]
                assert list(value.to_bytes(data_bytes, "little")) == expected, hex(start)
            at += beats
    for address, value in memory_bytes.items():
        assert memory.contents[place(address)] == value


def test_a_stalled_reader_does_not_delay_other_ports() -> None:
    """Check also a write whose data does not come."""
    dut, memory = controller(reads=2, writes=2), model()
    data = filled(memory, 0, 2048)
    stuck = Reader(dut.read0, [(n * 1024, 256) for n in range(4)], stall=1.0)
    late = Writer(dut.write0, [(8192, [(1, 15)] * 16)], idle=1.0)
    reader, writer = Reader(dut.read1, [(0, 128), (1024, 64)]), Writer(dut.write1, [(4096, [(5, 15)] * 48)] * 3)
    run(
        dut,
        dut.pins,
        [reader.ask, reader.take, writer.ask, writer.give, writer.answered],
        background=[stuck.ask, stuck.take, late.ask, late.give],
        model=memory,
    )
    assert reader.found == as_beats(data[:512], 4) + as_beats(data[1024:1280], 4)
    assert writer.answers == [0, 0, 0]


def test_a_write_begins_when_its_last_beat_has_arrived() -> None:
    """Give the last beat of the first write a long time after the others, and read from another port meanwhile."""
    dut, memory = controller(reads=1, writes=1), model()
    data = filled(memory, 0, 64)
    items = [(n * 0x01010101, 15) for n in range(1, 4)]
    writer, reader = Writer(dut.write0, [(4096, items)]), Reader(dut.read0, [(0, 16)])
    bus = dut.write0

    async def give(ctx: Any) -> None:
        for number, (value, strobes) in enumerate(items):
            last = number == len(items) - 1
            if last:
                while len(reader.found) < 16:
                    await ctx.tick()
                await ctx.tick().repeat(100)
            for name, content in (("wdata", value), ("wstrb", strobes), ("wlast", last), ("wvalid", 1)):
                ctx.set(getattr(bus, name), content)
            await ctx.tick().until(bus.wready)
            ctx.set(bus.wvalid, 0)

    run(dut, dut.pins, [reader.ask, reader.take, writer.ask, give, writer.answered], model=memory)
    assert (reader.found, writer.answers) == (as_beats(data, 4), [0])
    for number, (value, _) in enumerate(items):
        assert memory.contents[place(4096 + 4 * number) :][:4].tolist() == list(value.to_bytes(4, "little"))


def test_refreshes_come_in_time_under_full_load() -> None:
    """Rely on the model, which checks their times; count them with both ports as busy as possible."""
    chip = replace(CHIP, refresh_ns=CHIP.refresh_ns / 10)
    dut = controller(reads=1, writes=1, chip=chip)
    reader = Reader(dut.read0, [(n * 1024, 256) for n in range(2)])
    writer = Writer(dut.write0, [((n * 37 % 64) * 4096, [(n, 15)] * 3) for n in range(30)])
    memory = run(dut, dut.pins, [reader.ask, reader.take, writer.ask, writer.give, writer.answered], chip=chip)
    counts, interval = memory.counts(), chip.times(CLOCK_HZ).refresh_interval
    assert abs(counts.refreshes - 2 - counts.cycles // interval) <= 1
    assert counts.cycles > 10 * interval


def test_addresses_past_the_memory_are_refused_and_change_nothing() -> None:
    dut, memory = controller(reads=1, writes=1), model()
    filled(memory, 0, 1024)
    before = memory.contents[:4096].copy()
    reader = Reader(dut.read0, [(CHIP.bytes, 2), (1 << 39, 1), (CHIP.bytes - 4, 1)])
    writer = Writer(dut.write0, [(CHIP.bytes, [(~0 & 0xFFFFFFFF, 15)] * 2), (CHIP.bytes - 4, [(7, 15)])])
    run(dut, dut.pins, [reader.ask, reader.take, writer.ask, writer.give, writer.answered], model=memory)
    assert reader.responses == [3, 3, 3, 0]
    assert writer.answers == [3, 0]
    assert (memory.contents[:4096] == before).all()
    assert memory.contents[place(CHIP.bytes - 4)] == 7


# limit -> the chip's times in this test, because others would hide it, and cycles by which the controller is short
LIMITS: dict[str, tuple[dict[str, int], int]] = {
    "startup": ({}, 2),
    "rcd": ({"rcd": 6}, 1),
    "rp": ({"rp": 6}, 1),
    "rc": ({"rc": 14}, 1),
    "ras": ({"ras": 9}, 1),
    "rfc": ({}, 1),
    "rrd": ({"rrd": 9}, 1),
    "wr": ({"wr": 5}, 1),
    "mrd": ({"mrd": 9}, 1),
}


def test_every_limit_is_in_the_table() -> None:
    assert set(LIMITS) == {field.name for field in fields(SdramTimes)} - {"cas", "refresh_interval"}


@pytest.mark.parametrize("name", LIMITS)
def test_the_model_detects_each_time_that_is_too_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure the controller for another chip."""
    change, shortage = LIMITS[name]
    real = replace(CHIP.times(CLOCK_HZ), **change)
    short = replace(real, **{name: getattr(real, name) - shortage})
    monkeypatch.setattr(type(CHIP), "times", lambda chip, clock_hz: short)
    with pytest.raises(AssertionError, match=f"^{'startup' if name == 'startup' else 't' + name.upper()}: "):
        run(*busy(), model=SdramModel(CHIP, real))


@pytest.mark.parametrize("name", [None, *(name for name, (change, _) in LIMITS.items() if change)])
def test_the_model_accepts_correct_times(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the chip's own times, and each one in the table."""
    real = replace(CHIP.times(CLOCK_HZ), **(LIMITS[name][0] if name else {}))
    monkeypatch.setattr(type(CHIP), "times", lambda chip, clock_hz: real)
    run(*busy(), model=SdramModel(CHIP, real))


def busy() -> tuple[Any, Any, list[Any]]:
    """Read rows of one bank in turns, and of all banks in sequence; then write to rows of one bank in turns."""
    dut = controller(reads=1, writes=1)
    step = CHIP.row_bytes << CHIP.bank_bits
    near = [(CHIP.row_bytes * n, 1) for n in range(8)]
    reader = Reader(dut.read0, [(step * n, 1) for n in range(6)] + near)
    writer = Writer(dut.write0, [(step * n + 64, [(n, 15)]) for n in range(6)])

    async def later(ctx: Any) -> None:
        while len(reader.found) < len(reader.bursts):
            await ctx.tick()
        await writer.ask(ctx)

    return dut, dut.pins, [reader.ask, reader.take, later, writer.give, writer.answered]


def test_the_model_detects_refreshes_that_are_too_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = replace(CHIP, refresh_ns=CHIP.refresh_ns / 5).times(CLOCK_HZ)
    rare = replace(honest, refresh_interval=honest.refresh_interval * 5 // 2)
    monkeypatch.setattr(type(CHIP), "times", lambda chip, clock_hz: rare)
    dut = controller(reads=1)
    reader = Reader(dut.read0, [(n * 1024, 256) for n in range(2)])
    with pytest.raises(AssertionError, match=r"^tREFI: .* cycle \d+"):
        run(dut, dut.pins, [reader.ask, reader.take], model=SdramModel(CHIP, honest))


def test_the_model_detects_commands_that_its_state_forbids() -> None:
    times = CHIP.times(CLOCK_HZ)
    nop, precharge_all = (1, 1, 1, 1, 0, 0, 3, 0, 0), (1, 0, 1, 0, 0, 1 << 10, 3, 0, 0)
    refresh, mode = (1, 0, 0, 1, 0, 0, 3, 0, 0), (1, 0, 0, 0, 0, times.cas << 4 | 1, 3, 0, 0)

    def begun() -> SdramModel:
        chip = model()
        for pins in [
            *[nop] * times.startup,
            precharge_all,
            *[nop] * 9,
            refresh,
            *[nop] * 9,
            refresh,
            *[nop] * 9,
            mode,
            nop,
        ]:
            chip.cycle(pins)
        return chip

    def refused(message: str, *steps: tuple[int, ...]) -> None:
        chip = begun()
        for pins in steps[:-1]:
            chip.cycle(pins)
        with pytest.raises(AssertionError, match=message):
            chip.cycle(steps[-1])

    activate, write, read = (1, 0, 1, 1, 2, 5, 0, 0, 0), (1, 1, 0, 0, 2, 0, 0, 9, 1), (1, 1, 0, 1, 2, 0, 0, 0, 0)
    opened = (activate, nop, nop)
    refused("closed: READ of a closed bank, bank 2", read)
    refused("open: ACTIVATE of an open bank, bank 2", *opened, nop, nop, nop, nop, nop, nop, activate)
    refused("open: REFRESH with an open row", *opened, *[nop] * 9, refresh)
    refused("bus: both sides drive", *opened, read, nop, nop, write)
    refused("bus: nobody drives", *opened, (*write[:8], 0))
    refused("burst: READ cuts a WRITE", *opened, write, read)
    refused("CKE: low", (0, *nop[1:]))
    refused("command: BURST STOP", (1, 1, 1, 0, 0, 0, 0, 0, 0))


def test_times_are_rounded_up() -> None:
    times = IS42S16160G.times(140e6)
    assert (times.rcd, times.ras, times.rfc, times.refresh_interval) == (3, 6, 10, 1093)
    assert all(value > 0 for value in astuple(IS42S16160G.times(1e6)))
    with pytest.raises(UsageError, match=r"takes a clock of 1 to 143 MHz .*, not 166"):
        IS42S16160G.times(166e6)


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="data_bytes must be 4, 8 or 16"):
        controller(2)
    with pytest.raises(ValueError, match="reads must be an integer from 1 to 4, not 5"):
        controller(reads=5)
