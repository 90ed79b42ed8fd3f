"""Compare the gateware's side of the link with the one in Python: the same bytes in give the same bytes out."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped
from amaranth.sim import Simulator

from edgedec.hw.isa.link_protocol import (
    IDENTITY,
    Identity,
    LinkCommand,
    RunItem,
    Status,
    frame,
    opened,
    run_arguments,
    run_item,
)
from edgedec.hw.system.host_link import HostLink
from edgedec.hw.system.uart import UartReceiver, UartTransmitter
from edgedec.sim.boards.link_server import LinkServer
from tests.hw.support.bench_streams import checked_simulator
from tests.hw.support.fake_axi_memory import AxiMemory, WriteOrder

IDENTIFY = LinkCommand.IDENTIFY
MEMORY = 1 << 14


class FakeDevice:
    """Provide registers that store what is written, memory at 0, and an interrupt that never comes."""

    name, kind, clock_hz = "fake", "measured", 1e6

    def __init__(self) -> None:
        self.registers: dict[int, int] = {}
        self.written: list[tuple[int, int]] = []
        self.array = np.zeros(MEMORY, np.uint8)
        self.address = 0

    def read_register(self, offset: int) -> int:
        return self.registers.get(offset, 0)

    def write_register(self, offset: int, value: int) -> None:
        self.registers[offset] = value
        self.written.append((offset, value))

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
        return self

    def wait(self, timeout_s: float) -> bool:
        return False

    def flush(self) -> None: ...

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None: ...


def gateware(
    granule: int, wire: bytes, *, answers: int, limit: int = 60_000, gap: float = 0.0, order: WriteOrder = "any"
) -> tuple[bytes, list[Any], bytes]:
    """Return HostLink's answer to these bytes, its writes to registers, and its memory afterwards."""
    identity = Identity(simulated=False, granule=granule, memory_address=0, memory_bytes=MEMORY, clock_hz=1_000_000)
    link, memory = HostLink(identity, address_bits=40), bytearray(MEMORY)
    read_memory = AxiMemory(link.read, memory=memory, data_bytes=granule, stall=0.3, latency=3)
    writes = AxiMemory(link.write, memory=memory, data_bytes=granule, stall=0.3, latency=3, order=order)
    answer, register_writes = bytearray(), []
    registers: dict[int, int] = {}

    async def feed(ctx: Any) -> None:
        rng = random.Random(0)
        for byte in wire:
            ctx.set(link.received.payload, byte)
            ctx.set(link.received.valid, 1)
            await ctx.tick()
            ctx.set(link.received.valid, 0)
            while rng.random() < gap:
                await ctx.tick()

    async def hear(ctx: Any) -> None:
        rng = random.Random(1)
        while True:
            ready = rng.random() < 0.8
            ctx.set(link.sent.ready, ready)
            _, _, valid, byte = await ctx.tick().sample(link.sent.valid, link.sent.payload)
            if valid and ready:
                answer.append(byte)

    async def registers_of(ctx: Any) -> None:
        bus = link.registers
        ctx.set(bus.arready, 1)
        ctx.set(bus.awready, 1)
        ctx.set(bus.wready, 1)
        while True:
            names = ("arvalid", "araddr", "awvalid", "awaddr", "wdata")
            _, _, ar, araddr, aw, awaddr, value = await ctx.tick().sample(*(getattr(bus, name) for name in names))
            ctx.set(bus.rvalid, ar)
            ctx.set(bus.rdata, registers.get(araddr, 0))
            ctx.set(bus.bvalid, aw)
            if aw:
                registers[awaddr] = value
                register_writes.append((awaddr, value))

    async def wait(ctx: Any) -> None:
        for _ in range(limit):
            await ctx.tick()
            if answer.count(0xC0) >= 2 * answers:
                break
        for _ in range(50):
            await ctx.tick()

    simulator = checked_simulator(link)
    simulator.add_clock(1e-6)
    for process in (feed, hear, registers_of, read_memory.serve_reads, writes.serve_writes):
        simulator.add_testbench(process, background=True)
    simulator.add_testbench(wait)
    simulator.run()
    return bytes(answer), register_writes, bytes(memory)


def command(code: int, sequence: int, content: bytes = b"") -> bytes:
    return frame(bytes((code, sequence)) + content)


def write_block(sequence: int, address: int, data: bytes) -> bytes:
    return command(LinkCommand.WRITE_MEMORY, sequence, struct.pack("<Q", address) + data)


def equal(granule: int, wire: bytes, **options: Any) -> list[bytes]:
    """Run both sides on one stream of bytes; return the answers' contents."""
    device = FakeDevice()
    server = LinkServer(device, memory_bytes=MEMORY, granule=granule)  # type: ignore[arg-type]
    expected = server.take(wire)
    count = expected.count(0xC0) // 2
    actual, writes, memory = gateware(granule, wire, answers=count, **options)
    assert actual == expected
    assert writes == device.written
    assert memory == device.array.tobytes()
    frames = [opened(piece) for piece in actual.split(b"\xc0") if piece]
    assert None not in frames
    return [piece for piece in frames if piece is not None]


@pytest.mark.rtl
@pytest.mark.parametrize("granule", [4, 8, 16])
def test_every_command_is_answered_alike(granule: int) -> None:
    rng = random.Random(granule)
    data = bytes([0xC0, 0xDB, 0xDC, 0xDD] * 4) + rng.randbytes(48)
    wire = command(IDENTIFY, 9) + write_block(10, 512, data)
    wire += command(LinkCommand.READ_MEMORY, 11, struct.pack("<QH", 512, len(data)))
    wire += command(LinkCommand.WRITE_REGISTER, 12, struct.pack("<II", 0x24, 0xC0DBC0DB))
    wire += command(LinkCommand.READ_REGISTER, 13, struct.pack("<I", 0x24))
    items = run_item(RunItem.EXPECT, 0x24, (0xC0DBC0DB,)) + run_item(RunItem.WRITE, 0x30, range(0xC0, 0xE9))
    items += run_item(RunItem.WAIT, values=(11,)) + run_item(RunItem.READ, 0x30, count=40)
    wire += command(LinkCommand.RUN, 14, run_arguments(items, granule))
    wire += command(LinkCommand.RUN, 15, run_arguments(run_item(RunItem.READ, 0x24, count=1), granule))
    wire += command(LinkCommand.WAIT, 16, struct.pack("<I", 7))
    answers = equal(granule, wire)
    assert answers[5][2:-1] == struct.pack("<IIB40I", 0xC0DBC0DB, 11, 0, *range(0xC0, 0xE8))
    assert answers[6][2:-1] == struct.pack("<I", 0xC0DBC0DB)
    assert [answer[0] & 0x7F for answer in answers] == [1, 5, 4, 3, 2, 7, 7, 6]
    assert all(answer[-1] == Status.OK for answer in answers)
    assert Identity.unpacked(answers[0][2:-1]).granule == granule
    assert len(answers[0]) == 3 + IDENTITY.size
    assert answers[2][2:-1] == data
    assert answers[4][2:-1] == struct.pack("<I", 0xC0DBC0DB)


@pytest.mark.rtl
@pytest.mark.parametrize("order", ["together", "address first", "data first"])
def test_blocks_reach_a_memory_that_chooses_the_order_of_address_and_data(order: WriteOrder) -> None:
    rng = random.Random(order)
    wire = command(IDENTIFY, 0)
    for sequence, size in enumerate((4, 64, 8), 1):
        wire += write_block(sequence, 256 * sequence, rng.randbytes(size))
    answers = equal(4, wire, order=order)
    assert [answer[-1] for answer in answers] == [Status.OK] * 4


@pytest.mark.rtl
def test_invalid_commands_are_refused_alike() -> None:
    at, whole = struct.pack("<Q", 64), struct.pack
    contents = [
        (0, b""),
        (8, b""),
        (255, b"abc"),
        (LinkCommand.READ_REGISTER, whole("<I", 2)),
        (LinkCommand.READ_REGISTER, whole("<I", 4096)),
        (LinkCommand.READ_REGISTER, b"\0\0\0"),
        (LinkCommand.WRITE_REGISTER, whole("<II", 1, 1)),
        (LinkCommand.WRITE_MEMORY, at),
        (LinkCommand.WRITE_MEMORY, at + bytes(3)),
        (LinkCommand.WRITE_MEMORY, whole("<Q", 66) + bytes(4)),
        (LinkCommand.WRITE_MEMORY, whole("<Q", 4092) + bytes(8)),
        (LinkCommand.READ_MEMORY, at + whole("<H", 0)),
        (LinkCommand.READ_MEMORY, at + whole("<H", 516)),
        (LinkCommand.READ_MEMORY, whole("<QH", 4092, 8)),
        (LinkCommand.WAIT, b""),
        (LinkCommand.RUN, bytes(9)),
        (LinkCommand.RUN, run_item(RunItem.EXPECT, 0x10, (1,))),
    ]
    wire, sequence = command(IDENTIFY, 0), 1
    for code, content in contents:
        wire += command(code, sequence, content)
        sequence += 1 <= code <= 7
    answers = equal(4, wire)
    assert [answer[-1] for answer in answers[1:]] == [1, 1, 1] + [2] * 13 + [5]


@pytest.mark.rtl
def test_commands_are_executed_once_and_in_order() -> None:
    """Check that a repeated command is answered again but not executed again, and that an early one is neither."""

    def write(sequence: int, value: int) -> bytes:
        return command(LinkCommand.WRITE_REGISTER, sequence, struct.pack("<II", 0x10, value))

    wire = (
        command(IDENTIFY, 254) + write(255, 1) + write(255, 2) + write(1, 3) + write(0, 4) + write(1, 5) + write(255, 6)
    )
    wire += command(LinkCommand.READ_REGISTER, 1, struct.pack("<I", 0x10)) + command(IDENTIFY, 7) + write(8, 7)
    answers = equal(4, wire)
    assert [answer[-1] for answer in answers] == [0, 0, 0, 3, 0, 0, 0, 0, 0, 0]
    assert answers[7][2:-1] == struct.pack("<I", 5)


@pytest.mark.nightly
@pytest.mark.rtl
@pytest.mark.parametrize("seed", range(3))
def test_noise_costs_only_the_frames_that_it_hits(seed: int) -> None:
    """Lose, double, change and insert bytes: both sides accept and refuse the same frames."""
    rng = random.Random(seed)
    wire = bytearray(command(IDENTIFY, 0))
    sequence = 1
    for _ in range(16):
        block = write_block(sequence, rng.randrange(32) * 64, rng.randbytes(rng.choice([4, 32, 64])))
        damage = rng.randrange(6)
        at = rng.randrange(len(block))
        if damage == 0:
            block = block[:at] + block[at + 1 :]
        elif damage == 1:
            block = block[:at] + bytes((rng.randrange(256),)) + block[at + 1 :]
        elif damage == 2:
            block = block[:at] + block[at : at + 1] + block[at:]
        elif damage == 3:
            block = rng.randbytes(rng.randrange(9)) + block
        else:
            sequence = (sequence + 1) % 256
        wire += block
    wire += (
        write_block(sequence, 0, bytes(516))  # longer than a frame may be
        + rng.randbytes(700)
        + b"\xc0"
        + command(IDENTIFY, 200)
        + command(LinkCommand.READ_MEMORY, 201, struct.pack("<QH", 0, 64))
    )
    answers = equal(4, bytes(wire))
    assert [answer[0] for answer in answers[-2:]] == [0x81, 0x84]


@pytest.mark.thorough
def test_a_short_frame_with_a_correct_sum_is_refused() -> None:
    short = b"\x01"
    wire = b"\xc0" + short + struct.pack("<I", zlib.crc32(short)) + b"\xc0\xdb\xc0" + command(IDENTIFY, 0)
    assert len(equal(4, wire)) == 1


@pytest.mark.rtl
def test_a_wait_ends_with_the_interrupt_or_with_the_next_command() -> None:
    identity = Identity(simulated=True, granule=4, memory_address=0, memory_bytes=MEMORY, clock_hz=1_000_000)
    link, sent = HostLink(identity, address_bits=40), bytearray()

    async def drive(ctx: Any) -> None:
        async def send(wire: bytes) -> None:
            for byte in wire:
                ctx.set(link.received.payload, byte)
                ctx.set(link.received.valid, 1)
                await ctx.tick()
            ctx.set(link.received.valid, 0)

        async def pause(cycles: int) -> None:
            for _ in range(cycles):
                await ctx.tick()

        ctx.set(link.sent.ready, 1)
        await send(command(IDENTIFY, 0) + command(LinkCommand.WAIT, 1, struct.pack("<I", 100_000)))
        await pause(400)
        ctx.set(link.interrupt, 1)
        await pause(30)
        ctx.set(link.interrupt, 0)
        await send(command(LinkCommand.WAIT, 2, struct.pack("<I", 100_000)))
        await pause(400)
        await send(command(LinkCommand.WAIT, 3, struct.pack("<I", 10)))
        await pause(400)

    async def hear(ctx: Any) -> None:
        while True:
            _, _, valid, byte = await ctx.tick().sample(link.sent.valid, link.sent.payload)
            if valid:
                sent.append(byte)

    simulator = checked_simulator(link)
    simulator.add_clock(1e-6)
    simulator.add_testbench(hear, background=True)
    simulator.add_testbench(drive)
    simulator.run()
    answers = [opened(piece) for piece in bytes(sent).split(b"\xc0") if piece]
    waits = [struct.unpack("<IB", answer[2:-1]) for answer in answers[1:] if answer]
    assert [high for _, high in waits] == [1, 0, 0]
    assert 100 < waits[0][0] < 450
    assert 300 < waits[1][0] < 430
    assert waits[2][0] == 10


class Loop(Component):
    """Connect a transmitter's line to a receiver."""

    def __init__(self, clock_hz: float, baud: int, *, off: float = 1.0) -> None:
        self._parts = UartTransmitter(clock_hz=clock_hz, baud=baud), UartReceiver(clock_hz=clock_hz * off, baud=baud)
        super().__init__({"given": In(stream.Signature(8)), "found": Out(stream.Signature(8, always_ready=True))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.transmitter, m.submodules.receiver = out, back = self._parts
        connect(m, flipped(self.given), out.bytes)
        m.d.comb += [
            back.line.eq(out.line),
            self.found.valid.eq(back.bytes.valid),
            self.found.payload.eq(back.bytes.payload),
        ]
        return m


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("clock_hz", "baud", "off"),
    [
        (80e6, 3_000_000, 1.0),
        (80e6, 3_000_000, 1.02),
        (80e6, 3_000_000, 0.98),
        (8e6, 2_000_000, 1.0),
        (1e6, 115_200, 1.0),
    ],
)
def test_bytes_cross_the_line(clock_hz: float, baud: int, off: float) -> None:
    dut, received = Loop(clock_hz, baud, off=off), bytearray()
    data = bytes([0, 255, 0x55, 0xAA, 0xC0]) + random.Random(0).randbytes(20)
    times = []

    async def feed(ctx: Any) -> None:
        for byte in data:
            ctx.set(dut.given.payload, byte)
            ctx.set(dut.given.valid, 1)
            ready = False
            while not ready:
                _, _, ready = await ctx.tick().sample(dut.given.ready)
        ctx.set(dut.given.valid, 0)
        for _ in range(round(12 * clock_hz / baud)):
            await ctx.tick()

    async def hear(ctx: Any) -> None:
        now = 0
        while True:
            _, _, valid, byte = await ctx.tick().sample(dut.found.valid, dut.found.payload)
            now += 1
            if valid:
                received.append(byte)
                times.append(now)

    simulator = Simulator(dut)
    simulator.add_clock(1 / clock_hz)
    simulator.add_testbench(hear, background=True)
    simulator.add_testbench(feed)
    simulator.run()
    assert bytes(received) == data
    assert (times[-1] - times[0]) / (len(data) - 1) == pytest.approx(10 * clock_hz / baud, abs=1.5)


def test_a_line_that_is_too_fast_is_refused() -> None:
    with pytest.raises(ValueError, match="baud must be at most a quarter of the clock 8e\\+06 Hz, not 3000000"):
        UartReceiver(clock_hz=8e6, baud=3_000_000)
