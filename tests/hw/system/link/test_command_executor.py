"""Give commands as parts of frames, and look at the buses and at the answers. test_host_link.py sends them as bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from edgedec.hw.isa.link_protocol import Identity, LinkCommand, RunItem, Status, run_arguments, run_item
from edgedec.hw.system.link.command_executor import CommandExecutor
from edgedec.hw.system.link.frame_sender import CHECK_BYTES, SentKind
from tests.hw.support.bench_streams import checked_simulator

GRANULE = 4
IDENTITY = Identity(simulated=False, granule=GRANULE, memory_address=0, memory_bytes=1 << 14, clock_hz=1_000_000)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The effects of commands: contents of the answers, writes to registers and to memory, and cycles to the first items."""

    answers: list[bytes] = field(default_factory=list)
    registers: list[tuple[int, int]] = field(default_factory=list)
    memory: dict[int, list[int]] = field(default_factory=dict)  # address -> beats
    cycles: list[int] = field(default_factory=list)


def execute(
    commands: list[tuple[int, int, bytes]],
    *,
    error: bool = False,
    interrupt: bool = False,
    waiting: bool = False,
    interrupted_after: int | None = None,
) -> Run:
    """Execute (code, sequence, content) one after another; a register or a word of memory holds its address + 1.

    Args:
        error: the buses answer with errors.
        interrupt, waiting: value of these inputs.
        interrupted_after: cycles until the interrupt comes; None: it has come before, or does not come.
    """
    dut, found = CommandExecutor(IDENTITY, address_bits=40), Run()
    block = bytearray(1024)

    async def bench(ctx: Any) -> None:
        ctx.set(dut.answer.ready, 1)
        ctx.set(dut.interrupt, interrupt)
        ctx.set(dut.waiting, waiting)
        for code, sequence, content in commands:
            padded = content.ljust(10, b"\0")
            block[: len(content[8:])] = content[8:]
            ctx.set(dut.frame.code, code)
            ctx.set(dut.frame.sequence, sequence)
            ctx.set(dut.frame.head, int.from_bytes(padded[:8], "little"))
            ctx.set(dut.frame.size, int.from_bytes(padded[8:10], "little"))
            ctx.set(dut.frame.content, len(content))
            ctx.set(dut.whole, 1)
            assert ctx.get(dut.listening)
            await ctx.tick()
            ctx.set(dut.whole, 0)
            kinds, answer, now = list[int](), bytearray(), 1
            while not ctx.get(dut.listening):
                if ctx.get(dut.answer.valid):
                    kinds.append(int(ctx.get(dut.answer.p.kind)))
                    answer.append(ctx.get(dut.answer.p.byte))
                    if len(kinds) == 1:
                        found.cycles.append(now)
                await ctx.tick()
                now += 1
            size = len(kinds) - CHECK_BYTES - 2
            expected = [SentKind.BEGIN, *[SentKind.BYTE] * size, *[SentKind.CHECK] * CHECK_BYTES, SentKind.END]
            assert kinds == [int(kind) for kind in expected]
            assert answer[-CHECK_BYTES - 1 : -1] == bytes(range(CHECK_BYTES))
            found.answers.append(bytes(answer[1 : 1 + size]))

    async def registers(ctx: Any) -> None:
        bus = dut.registers
        for name in ("arready", "awready", "wready"):
            ctx.set(getattr(bus, name), 1)
        ctx.set(bus.rresp, 2 * error)
        ctx.set(bus.bresp, 2 * error)
        while True:
            names = ("arvalid", "araddr", "awvalid", "awaddr", "wdata")
            _, _, ar, araddr, aw, awaddr, value = await ctx.tick().sample(*(getattr(bus, name) for name in names))
            ctx.set(bus.rvalid, ar)
            ctx.set(bus.rdata, araddr + 1)
            ctx.set(bus.bvalid, aw)
            if aw:
                found.registers.append((awaddr, value))

    async def reads(ctx: Any) -> None:
        bus = dut.read
        ctx.set(bus.arready, 1)
        ctx.set(bus.rresp, 2 * error)
        while True:
            _, _, valid, address, length = await ctx.tick().sample(bus.arvalid, bus.araddr, bus.arlen)
            for beat in range(length + 1 if valid else 0):
                ctx.set(bus.rvalid, 1)
                ctx.set(bus.rdata, address + GRANULE * beat + 1)
                ctx.set(bus.rlast, beat == length)
                ready = False
                while not ready:
                    _, _, ready = await ctx.tick().sample(bus.rready)
            ctx.set(bus.rvalid, 0)

    async def writes(ctx: Any) -> None:
        """Take address and data when they come; answer once both are complete. The answer is taken at once."""
        bus, beats = dut.write, list[int]()
        ctx.set(bus.awready, 1)
        ctx.set(bus.wready, 1)
        ctx.set(bus.bresp, 2 * error)
        while True:
            names = ("awvalid", "awaddr", "wvalid", "wdata", "wlast")
            _, _, aw, address, w, data, last = await ctx.tick().sample(*(getattr(bus, name) for name in names))
            ctx.set(bus.bvalid, w and last)
            if aw:
                beats = found.memory.setdefault(int(address), [])
            if w:
                beats.append(int(data))

    async def blocks(ctx: Any) -> None:
        while True:
            _, _, address, enable = await ctx.tick().sample(dut.block_address, dut.block_enable)
            if enable:
                ctx.set(dut.block, int.from_bytes(block[address * GRANULE :][:GRANULE], "little"))

    async def interrupts(ctx: Any) -> None:
        if interrupted_after is not None:
            await ctx.tick().repeat(interrupted_after)
            ctx.set(dut.interrupt, 1)

    simulator = checked_simulator(dut)
    simulator.add_clock(1e-6)
    for process in (registers, reads, writes, blocks, interrupts):
        simulator.add_testbench(process, background=True)
    simulator.add_testbench(bench)
    simulator.run()
    return found


RUN = run_arguments(
    run_item(RunItem.EXPECT, 0x10, (0x11, 0x15))
    + run_item(RunItem.WRITE, 0x30, (5, 6, 7))
    + run_item(RunItem.WAIT, values=(9,))
    + run_item(RunItem.WRITE, 0x50, (8,))
    + run_item(RunItem.READ, 0x40, count=2),
    GRANULE,
)


def test_every_command_is_carried_out_and_answered() -> None:
    data = struct.pack("<III", 7, 8, 9)
    done = execute(
        [
            (LinkCommand.IDENTIFY, 3, b""),
            (LinkCommand.WRITE_REGISTER, 4, struct.pack("<II", 0x24, 77)),
            (LinkCommand.READ_REGISTER, 5, struct.pack("<I", 0x28)),
            (LinkCommand.WRITE_MEMORY, 6, struct.pack("<Q", 512) + data),
            (LinkCommand.READ_MEMORY, 7, struct.pack("<QH", 1024, 8)),
            (LinkCommand.WAIT, 8, struct.pack("<I", 7)),
            (LinkCommand.RUN, 9, RUN),
        ]
    )
    ok = bytes([Status.OK])
    assert done.answers == [
        b"\x81\x03" + IDENTITY.packed() + ok,
        b"\x83\x04" + ok,
        b"\x82\x05" + struct.pack("<I", 0x29) + ok,
        b"\x85\x06" + ok,
        b"\x84\x07" + struct.pack("<II", 1025, 1029) + ok,
        b"\x86\x08" + struct.pack("<IB", 7, 0) + ok,
        b"\x87\x09" + struct.pack("<IIIBII", 0x11, 0x15, 9, 0, 0x41, 0x45) + ok,
    ]
    assert done.registers == [(0x24, 77), (0x30, 5), (0x34, 6), (0x38, 7), (0x50, 8)]
    assert done.memory == {512: [7, 8, 9]}
    assert done.cycles[0] == 9, "the latency of the docstring"


@pytest.mark.rtl
def test_a_repeated_write_is_answered_and_not_done_again_and_an_early_one_is_refused() -> None:
    write = struct.pack("<II", 0x10, 5)
    done = execute(
        [
            (LinkCommand.IDENTIFY, 255, b""),
            (LinkCommand.WRITE_REGISTER, 0, write),
            (LinkCommand.WRITE_REGISTER, 0, write),
            (LinkCommand.WRITE_REGISTER, 2, write),
            (LinkCommand.WRITE_REGISTER, 1, write),
            (8, 2, b""),
        ]
    )
    statuses = [Status.OK, Status.OK, Status.OK, Status.ORDER, Status.OK, Status.COMMAND]
    assert [answer[-1] for answer in done.answers] == statuses
    assert done.registers == [(0x10, 5)] * 2


def test_a_run_ends_at_the_first_item_that_fails() -> None:
    """Check that nothing after it is done, and that what was found before it is answered."""
    write = run_item(RunItem.WRITE, 0x20, (3,))
    runs = [
        (write + run_item(RunItem.EXPECT, 0x10, (0x11, 0x16, 0x19)) + write, Status.EXPECTATION, (0x11, 0x15)),
        (write + struct.pack("<I", 0x0501_0004) + write, Status.ARGUMENT, ()),
        (write + struct.pack("<II", RunItem.WRITE << 24 | 4, 9) + write, Status.ARGUMENT, ()),
        (write + struct.pack("<III", RunItem.WAIT << 24 | 2 << 16, 9, 9) + write, Status.ARGUMENT, ()),
        (write + struct.pack("<II", RunItem.READ << 24 | 1 << 16 | 1 << 10, 9) + write, Status.ARGUMENT, ()),
        (
            run_item(RunItem.READ, 0x44, count=1) + write + run_item(RunItem.WRITE, 0x20, count=1),
            Status.ARGUMENT,
            (0x45,),
        ),
    ]
    commands: list[tuple[int, int, bytes]] = [
        (LinkCommand.RUN, number, items) for number, (items, _, _) in enumerate(runs, start=1)
    ]
    done = execute([(LinkCommand.IDENTIFY, 0, b""), *commands])
    expected = [struct.pack(f"<{len(found)}I", *found) + bytes([status]) for _, status, found in runs]
    assert [answer[2:] for answer in done.answers[1:]] == expected
    assert done.registers == [(0x20, 3)] * len(runs)


def test_a_repeated_run_leaves_out_the_writes_before_its_wait() -> None:
    """Check that those after it, such as a latch of counters, are done again: its first answer was lost."""
    again: list[tuple[int, int, bytes]] = [
        (LinkCommand.IDENTIFY, 0, b""),
        (LinkCommand.RUN, 1, RUN),
        (LinkCommand.RUN, 1, RUN),
    ]
    done = execute(again, interrupt=True, waiting=True)
    assert done.answers[1] == done.answers[2]
    assert done.answers[1][10:15] == struct.pack("<IB", 1, 1), "the wait ends with the interrupt"
    assert done.registers == [(0x30, 5), (0x34, 6), (0x38, 7), (0x50, 8), (0x50, 8)]


def test_another_command_does_not_end_the_wait_of_a_run() -> None:
    done = execute([(LinkCommand.IDENTIFY, 0, b""), (LinkCommand.RUN, 1, RUN)], waiting=True)
    assert done.answers[1][10:15] == struct.pack("<IB", 9, 0)


IMPOSSIBLE = [
    (LinkCommand.RUN, b""),
    (LinkCommand.RUN, bytes(4)),
    (LinkCommand.RUN, bytes(10)),
    (LinkCommand.READ_REGISTER, struct.pack("<I", 2)),
    (LinkCommand.READ_REGISTER, struct.pack("<I", 4096)),
    (LinkCommand.READ_REGISTER, bytes(3)),
    (LinkCommand.WRITE_REGISTER, struct.pack("<II", 1, 1)),
    (LinkCommand.WRITE_REGISTER, bytes(9)),
    (LinkCommand.WRITE_MEMORY, bytes(8)),
    (LinkCommand.WRITE_MEMORY, struct.pack("<Q", 64) + bytes(3)),
    (LinkCommand.WRITE_MEMORY, struct.pack("<Q", 66) + bytes(4)),
    (LinkCommand.WRITE_MEMORY, struct.pack("<Q", 4092) + bytes(8)),
    (LinkCommand.READ_MEMORY, struct.pack("<QH", 64, 0)),
    (LinkCommand.READ_MEMORY, struct.pack("<QH", 64, 516)),
    (LinkCommand.READ_MEMORY, struct.pack("<QH", 4092, 8)),
    (LinkCommand.READ_MEMORY, struct.pack("<QH", 4092, 256)),
    (LinkCommand.READ_MEMORY, struct.pack("<QH", 3588, 512)),
    (LinkCommand.READ_MEMORY, struct.pack("<QH", 66, 4)),
    (LinkCommand.WAIT, b""),
]


@pytest.mark.rtl
def test_impossible_arguments_are_refused_and_the_ends_of_what_is_possible_are_not() -> None:
    commands = [(code, sequence, content) for sequence, (code, content) in enumerate(IMPOSSIBLE, start=1)]
    refused = execute([(LinkCommand.IDENTIFY, 0, b""), *commands])
    assert [answer[-1] for answer in refused.answers] == [Status.OK, *[Status.ARGUMENT] * len(IMPOSSIBLE)]
    assert refused.registers == []
    assert refused.memory == {}
    done = execute(
        [
            (LinkCommand.IDENTIFY, 0, b""),
            (LinkCommand.READ_REGISTER, 1, struct.pack("<I", 4092)),
            (LinkCommand.READ_MEMORY, 2, struct.pack("<QH", 4092, 4)),
            (LinkCommand.READ_MEMORY, 3, struct.pack("<QH", 0, 512)),
            (LinkCommand.WRITE_MEMORY, 4, struct.pack("<Q", 4088) + bytes(8)),
        ]
    )
    assert [answer[-1] for answer in done.answers] == [Status.OK] * 5
    assert len(done.answers[3]) == 512 + 3
    assert done.memory == {4088: [0, 0]}


@pytest.mark.rtl
def test_errors_of_the_buses_are_answered() -> None:
    done = execute(
        [
            (LinkCommand.IDENTIFY, 0, b""),
            (LinkCommand.WRITE_REGISTER, 1, struct.pack("<II", 0, 0)),
            (LinkCommand.READ_REGISTER, 2, struct.pack("<I", 0)),
            (LinkCommand.WRITE_MEMORY, 3, bytes(12)),
            (LinkCommand.READ_MEMORY, 4, struct.pack("<QH", 0, 8)),
        ],
        error=True,
    )
    assert [answer[-1] for answer in done.answers] == [Status.OK, *[Status.BUS] * 4]
    assert [len(answer) for answer in done.answers[1:]] == [3, 7, 3, 11]


@pytest.mark.rtl
@pytest.mark.parametrize(("interrupt", "waiting"), [(True, False), (False, True), (True, True)])
def test_an_interrupt_or_another_command_ends_a_wait(interrupt: bool, waiting: bool) -> None:
    wait = (LinkCommand.WAIT, 1, struct.pack("<I", 100_000))
    done = execute([(LinkCommand.IDENTIFY, 0, b""), wait], interrupt=interrupt, waiting=waiting)
    assert done.answers[1] == b"\x86\x01" + struct.pack("<IB", 1, interrupt) + bytes([Status.OK])


@pytest.mark.rtl
def test_the_longest_wait_ends_with_an_interrupt_as_a_short_one_does() -> None:
    waits = [(LinkCommand.WAIT, 0, struct.pack("<I", cycles)) for cycles in (100_000, 0xFFFF_FFFF)]
    short, longest = (execute([wait], interrupted_after=30).answers for wait in waits)
    cycles, interrupted = struct.unpack("<IB", short[0][2:7])
    assert interrupted == 1
    assert 1 < cycles < 30
    assert longest == short
