"""Connect a command processor and its router to a fake memory and fake units; walk a program in the obvious way beside
it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from amaranth.hdl import Cat, Module, ResetInserter, Value
from amaranth.lib.wiring import Elaboratable, connect
from amaranth.sim import Simulator

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.command_processor import CommandProcessor
from edgedec.hw.control.dispatcher import UNITS
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode, ProgramHeader, When, pack, pack_program
from edgedec.hw.memory.router import Router, port

CONFIGS = {
    4: AcceleratorConfig(
        beat_bytes=4, ports=1, slots=2, context=9, width=64, heads=6, kv_heads=3, head_dim=12, instructions=40
    ),
    16: AcceleratorConfig(
        beat_bytes=16, ports=2, slots=4, context=30, width=64, heads=6, kv_heads=6, head_dim=12, instructions=40
    ),
    64: AcceleratorConfig(
        beat_bytes=64, ports=4, slots=8, context=60, width=640, heads=8, kv_heads=4, head_dim=24, instructions=40
    ),
}
SHARED = replace(CONFIGS[64], shared=True)
# A ring of 19 groups of four positions; a pass reads up to three of them.
RING = replace(CONFIGS[16], context=400, window=8)
BASES = {
    "program_address": 0x10000,
    "image_address": 0x4000000,
    "input_address": 0x20000,
    "kv_address": 0x900000000,
    "output_address": 0xFFFFFFC000,
}
PULSES = ("done_set", "error_set", "committed_set", "descriptor_done", "clear")


def program(
    config: AcceleratorConfig, instructions: Sequence[Instruction | bytes], commit: int = 0, **header: int
) -> bytes:
    """Pack header and instructions; ``header`` overrides members, and bytes stand for an instruction that cannot be
    packed.
    """
    members = {"configuration": config.hash, "instructions": len(instructions), "commit": commit, **header}
    packed = (item if isinstance(item, bytes) else pack(item) for item in instructions)
    return pack_program(ProgramHeader(**members), []) + b"".join(packed)


@dataclass(kw_only=True)
class Pass:
    """Hold the parameters of one run of a program."""

    raw: bytes
    commits: bool = False
    slots: int = 1
    committed: int = 0
    accepted: int = 0
    logits: int = 0
    program_bytes: int | None = None
    watchdog_limit: int = 0


Read = tuple[int, int, int, int]  # start and beats of the range; destination and spare


def walk(
    config: AcceleratorConfig, instructions: Sequence[Instruction], now: Pass, first: int = 0
) -> tuple[list[Read], list[tuple[int, Instruction]]]:
    """Return the reads after the program's own, and the commands with their numbers."""
    expected_reads: list[Read] = []
    commands = []
    size, layout = config.beat_bytes, config.kv_layout
    mask = (1 << 40) // size - 1
    for number, item in list(enumerate(instructions))[first:]:
        if item["when"] == (When.WITHOUT_LOGITS if now.logits else When.WITH_LOGITS):
            continue
        layer, run = BASES["kv_address"] // size + item["start"], item["run"]
        if item.opcode == Opcode.STOP:
            break
        if item.opcode == Opcode.READ:
            base = BASES["input_address" if item["base"] else "image_address"] // size
            expected_reads.append((base + item["start"] & mask, item["beats"], item["destination"], item["spare"]))
        elif item.opcode == Opcode.CACHE:
            keys: list[list[Read]] = []
            values: list[list[Read]] = []
            rows = config.cache_rows(item["ring"])
            ranges, together = rows.ranges(now.committed), config.together(item["group"], now.slots)
            for head in range(0, item["heads"] // together * together, together):
                start = layer + head // item["group"] * 2 * run
                for runs, at in ((keys, start), (values, start + run)):
                    runs.append([(at + by & mask, beats, Destination.KEYS_VALUES, 0) for by, beats in ranges])
            order = [keys[0]]
            for key, value in zip(keys[1:], values[:-1], strict=True):
                order += [key, value]
            expected_reads += [read for reads in (*order, values[-1]) for read in reads]
        else:
            commands.append((number, item))
            if item.opcode == Opcode.COPY:
                accepted_slots = [slot for slot in range(config.slots) if now.accepted >> slot & 1]
                for slot in (slot for rank, slot in enumerate(accepted_slots) if rank != slot):
                    place = config.cache_rows(item["ring"]).place(now.committed + slot)
                    offset = place // layout.positions * layout.chunks
                    for part in range(2 * item["heads"]):
                        expected_reads.append((layer + offset + part * run & mask, layout.chunks, Destination.COPY, 0))
    return expected_reads, commands


class _System(Elaboratable):
    def __init__(self, config: AcceleratorConfig) -> None:
        self.control, self.router = CommandProcessor(config), Router(config)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.control, m.submodules.router = self.control, ResetInserter(self.control.clear)(self.router)
        connect(m, self.router.program, self.control.program)
        for destination in Destination:
            if destination != Destination.PROGRAM:
                m.d.comb += getattr(self.router, port(destination)).ready.eq(1)
        return m


@dataclass(kw_only=True)
class Bench:
    """Simulate all that happens around a ``CommandProcessor``, cycle by cycle, and record it.

    Args:
        stall: chance that a range, an entry or a command is not taken in a cycle.
        work: cycles that a unit is busy at most; its writes take as long again.
        ahead: ranges that the memory takes before their beats are taken.
        broken_range: number since the last flush of a range whose first beat comes with an error.
        stuck: names of units that never accept a command.
    """

    config: AcceleratorConfig
    stall: float = 0.0
    work: int = 9
    seed: int = 0
    ahead: int = 14
    broken_range: int | None = None
    stuck: Sequence[str] = ()
    now: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list)
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    commands: list[tuple[str, bytes]] = field(default_factory=list)
    issued: list[int] = field(default_factory=list)  # cycles of the commands
    taken: list[int] = field(default_factory=list)  # cycles of the ranges
    busy_at_issue: list[bool] = field(default_factory=list)
    pulses: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in PULSES})
    write_error_at: int = -1
    damaged_at: int = -1
    until: int = 0  # cycle in which the units have done their work
    written: int = 0

    def run(self, script: Callable[[Any, Bench], Awaitable[None]]) -> Bench:
        self._system = _System(self.config)
        self.control = self._system.control
        simulator = Simulator(self._system)
        simulator.add_clock(1e-6)
        simulator.add_testbench(self._world, background=True)

        async def start(ctx: Any) -> None:
            for name, value in BASES.items():
                ctx.set(getattr(self.control, name), value)
            ctx.set(self.control.writes_idle, 1)
            await script(ctx, self)

        simulator.add_testbench(start)
        simulator.run()
        return self

    async def ring(self, ctx: Any, item: Pass) -> None:
        """Set the parameters and ring the doorbell."""
        self.raw = item.raw
        control = self.control
        size = len(item.raw) if item.program_bytes is None else item.program_bytes
        ctx.set(control.program_bytes, size)
        for name in ("slots", "committed", "accepted", "logits", "watchdog_limit"):
            ctx.set(getattr(control, name), getattr(item, name))
        await self.press(ctx, "commit" if item.commits else "start")
        for name in ("slots", "committed", "accepted", "logits"):  # copied at the doorbell, so that they may change
            ctx.set(getattr(control, name), 0)
        ctx.set(control.program_bytes, 0)

    async def press(self, ctx: Any, *names: str) -> None:
        for name in names:
            ctx.set(getattr(self.control, name), 1)
        await ctx.tick()
        for name in names:
            ctx.set(getattr(self.control, name), 0)

    async def rest(self, ctx: Any, limit: int = 4000) -> None:
        """Wait until nothing runs."""
        for _ in range(limit):
            if not ctx.get(self.control.busy | self.control.resetting):
                await ctx.tick().repeat(3)
                return
            await ctx.tick()
        raise AssertionError(
            f"still busy after {limit} cycles, {len(self.commands)} commands and {len(self.ranges)} ranges"
        )

    async def once(self, ctx: Any, item: Pass) -> None:
        await self.ring(ctx, item)
        await self.rest(ctx)

    def _memory(self, start: int, beats: int) -> list[list[int]]:
        """Return the program at its address, zeros elsewhere, and of a long range only the first beats."""
        size = self.config.beat_bytes
        if start * size == BASES["program_address"]:
            padded = self.raw.ljust(beats * size, b"\xaa")
            return [list(padded[at : at + size]) for at in range(0, beats * size, size)]
        return [[0] * size] * beats

    async def _world(self, ctx: Any) -> None:
        rng = random.Random(self.seed)
        control, router = self.control, self._system.router
        units = [getattr(control, name) for name in UNITS]
        # beats; the number of a failed range or None; whether it is the first of its range
        pending: deque[tuple[list[int], int | None, bool]] = deque()
        number, flushed, errors = 0, 0, deque[int | None]()
        idle = deque([1, 1])
        while True:
            ready = [rng.random() >= self.stall for _ in range(2 + len(units))]
            flushing = ctx.get(control.flush)
            room = sum(begins for _, _, begins in pending) < self.ahead
            ctx.set(control.ranges.ready, ready[0] and room and not flushing)
            takes_entry = ready[1] and ctx.get(router.entries.ready)
            ctx.set(control.entries.ready, takes_entry)
            ctx.set(router.entries.payload, ctx.get(control.entries.payload))
            ctx.set(router.entries.valid, ctx.get(control.entries.valid) and takes_entry)
            for name, unit, free in zip(UNITS, units, ready[2:], strict=True):
                ctx.set(unit.ready, free and name not in self.stuck)
            offers = bool(pending) and not flushing
            ctx.set(router.beats.valid, offers)
            if offers:
                ctx.set(router.beats.payload, pending[0][0])
            failed = errors.popleft() if errors else None
            ctx.set(control.read_error.valid, failed is not None)
            ctx.set(control.read_error.p.request, (failed or 0) % (1 << 16))
            ctx.set(control.write_error, self.now == self.write_error_at)
            ctx.set(control.damaged, self.now == self.damaged_at)
            ctx.set(control.idle, idle.popleft())
            ctx.set(control.writes_idle, self.written <= self.now)
            ctx.set(control.masters_idle, flushed > 9 if flushing else not pending)
            _, _, *samples = await ctx.tick().sample(
                control.ranges.valid & control.ranges.ready,
                control.ranges.p.start,
                control.ranges.p.beats,
                control.entries.valid & control.entries.ready,
                Value.cast(control.entries.payload),
                router.beats.ready,
                Cat(unit.valid & unit.ready for unit in units),
                Value.cast(units[0].payload),
                Cat(getattr(control, name) for name in PULSES),
                control.clear,
            )
            took_range, start, beats, took_entry, entry, took_beat, issued, bits, pulses, cleared = samples
            self.now += 1
            flushed = flushed + 1 if flushing else 0
            if flushing:
                pending.clear()
                number = 0
            if offers and took_beat:
                errors.append(pending.popleft()[1])
            if took_range:
                self.ranges.append((start, beats))
                self.taken.append(self.now)
                for index, beat in enumerate(self._memory(start, beats)):
                    fails = number == self.broken_range and not index
                    pending.append((beat, number if fails else None, not index))
                number += 1
            if took_entry:
                self.entries.append((entry & 15, entry >> 4 & 0xFFFFFF, entry >> 28))
            if issued:
                self._issue(issued, bits, rng)
            idle.append(int(self.until <= self.now))
            for bit, name in enumerate(PULSES):
                if pulses >> bit & 1:
                    self.pulses[name].append(self.now)
            if cleared:
                self.until = self.written = self.now
                idle = deque([1, 1])

    def _issue(self, issued: int, bits: int, rng: random.Random) -> None:
        assert issued.bit_count() == 1, "two units have taken the same command"
        name = list(UNITS)[issued.bit_length() - 1]
        self.commands.append((name, bits.to_bytes(32, "little")))
        self.issued.append(self.now)
        self.busy_at_issue.append(self.until >= self.now)
        # Idle passes through two registers on its way: a command accepted now shows three cycles later.
        self.until = max(self.until, self.now) + rng.randint(1, self.work) + 1
        self.written = self.until + rng.randint(0, self.work)

    @property
    def reads(self) -> list[Read]:
        """Return ranges with their entries, as many as both have."""
        return [(*span, entry[0], entry[2]) for span, entry in zip(self.ranges, self.entries, strict=False)]


def program_read(config: AcceleratorConfig, raw: bytes) -> Read:
    """Return the read of a whole program."""
    beats = -(-len(raw) // config.beat_bytes)
    spare = (beats * config.beat_bytes - len(raw)) // 32
    return BASES["program_address"] // config.beat_bytes, beats, Destination.PROGRAM, spare


def as_commands(commands: Sequence[tuple[int, Instruction]]) -> list[tuple[str, bytes]]:
    """Return the commands in the form of ``Bench.commands``."""
    names = {opcode: name for name, opcode in UNITS.items()}
    return [(names[item.opcode], pack(item)) for _, item in commands]
