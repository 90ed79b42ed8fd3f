"""The controller before the chip's model in Amaranth's simulator, and AXI masters that behave well, but as they like."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator

from edgedec.hw.sdram.chip import IS42S16160G, SdramChip, SdramTimes
from edgedec.sim.sdram.model import SdramModel

CLOCK_HZ = 140e6
CHIP = replace(IS42S16160G, startup_ns=500)  # nobody has to wait for it here
NAMES = ("cke", "ras_n", "cas_n", "we_n", "bank", "address", "mask", "data_out", "data_drive")


def chip_process(model: SdramModel, bus: Any, *, registered: bool = False) -> Callable[[Any], Any]:
    """The chip at these pins; ``registered``: behind a register on the way there and one on the way back."""

    async def run(ctx: Any) -> None:
        signals = [getattr(bus, name) for name in NAMES]
        pending, data = (0, 1, 1, 1, 0, 0, 3, 0, 0), 0xDEAD
        while True:
            _, _, *values = await ctx.tick().sample(*signals)
            answer = model.cycle(pending if registered else tuple(values))
            # What nobody drives is anything but the data that is expected.
            found = 0xDEAD if answer is None else answer
            ctx.set(bus.data_in, data if registered else found)
            pending, data = tuple(values), found

    return run


async def _until(ctx: Any, signal: Any) -> None:
    taken = False
    while not taken:
        _, _, taken = await ctx.tick().sample(signal)


@dataclass
class Reader:
    """Reads bursts, in order, and stops now and then."""

    bus: Any
    bursts: Sequence[tuple[int, int]]  # address, beats
    stall: float = 0.0
    idle: float = 0.0
    seed: int = 0
    found: list[int] = field(default_factory=list)
    bad: list[bool] = field(default_factory=list)
    first_cycle: int | None = None
    last_cycle: int = 0

    @property
    def beats(self) -> int:
        return sum(beats for _, beats in self.bursts)

    async def ask(self, ctx: Any) -> None:
        rng = random.Random(self.seed)
        for address, beats in self.bursts:
            while rng.random() < self.idle:
                await ctx.tick()
            ctx.set(self.bus.araddr, address)
            ctx.set(self.bus.arlen, beats - 1)
            ctx.set(self.bus.arvalid, 1)
            await _until(ctx, self.bus.arready)
            ctx.set(self.bus.arvalid, 0)

    async def take(self, ctx: Any) -> None:
        rng, bus, now = random.Random(~self.seed), self.bus, 0
        left = [beats for _, beats in self.bursts]
        while left:
            ready = rng.random() >= self.stall
            ctx.set(bus.rready, ready)
            _, _, valid, data, last, response = await ctx.tick().sample(bus.rvalid, bus.rdata, bus.rlast, bus.rresp)
            now += 1
            if not (valid and ready):
                continue
            self.first_cycle, self.last_cycle = self.first_cycle or now, now
            self.found.append(data)
            self.bad.append(response == 3)
            left[0] -= 1
            assert last == (left[0] == 0), "RLAST is not the last beat"
            if left[0] == 0:
                left.pop(0)


@dataclass
class Writer:
    """Writes bursts: their data may come long after their address."""

    bus: Any
    bursts: Sequence[tuple[int, Sequence[tuple[int, int]]]]  # address, (data, strobes) of each beat
    idle: float = 0.0
    seed: int = 0
    answers: list[int] = field(default_factory=list)

    async def ask(self, ctx: Any) -> None:
        for address, beats in self.bursts:
            ctx.set(self.bus.awaddr, address)
            ctx.set(self.bus.awlen, len(beats) - 1)
            ctx.set(self.bus.awvalid, 1)
            await _until(ctx, self.bus.awready)
            ctx.set(self.bus.awvalid, 0)

    async def give(self, ctx: Any) -> None:
        rng, bus = random.Random(self.seed), self.bus
        for _, beats in self.bursts:
            for number, (data, strobes) in enumerate(beats):
                while rng.random() < self.idle:
                    await ctx.tick()
                ctx.set(bus.wdata, data)
                ctx.set(bus.wstrb, strobes)
                ctx.set(bus.wlast, number == len(beats) - 1)
                ctx.set(bus.wvalid, 1)
                await _until(ctx, bus.wready)
                ctx.set(bus.wvalid, 0)

    async def answered(self, ctx: Any) -> None:
        ctx.set(self.bus.bready, 1)
        while len(self.answers) < len(self.bursts):
            _, _, valid, response = await ctx.tick().sample(self.bus.bvalid, self.bus.bresp)
            if valid:
                self.answers.append(response)


def run(
    component: Elaboratable,
    bus: Any,
    processes: Sequence[Callable[[Any], Any]],
    *,
    background: Sequence[Callable[[Any], Any]] = (),
    chip: SdramChip = CHIP,
    times: SdramTimes | None = None,
    limit: int = 40_000,
    model: SdramModel | None = None,
    registered: bool = False,
) -> SdramModel:
    """Until all processes have ended; the model has checked every command.

    Args:
        times: that the model insists on; None: the chip's own.
    """
    model = model or SdramModel(chip, times or chip.times(CLOCK_HZ))
    simulator = Simulator(component)
    simulator.add_clock(1 / CLOCK_HZ)
    simulator.add_testbench(chip_process(model, bus, registered=registered), background=True)
    for process in background:
        simulator.add_testbench(process, background=True)

    async def watch(ctx: Any) -> None:
        for _ in range(limit):
            await ctx.tick()
        raise AssertionError(f"no end after {limit} cycles")

    simulator.add_testbench(watch, background=True)
    for process in processes:
        simulator.add_testbench(process)
    simulator.run()
    return model
