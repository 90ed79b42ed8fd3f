"""Run the controller with the chip's model in Amaranth's simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from amaranth.hdl import Elaboratable

from edgedec.hw.isa.registers import NOMINAL_PHASE
from edgedec.hw.system.sdram.chip import IS42S16160G, SdramChip, SdramTimes
from edgedec.sim.sdram.model import PhaseWindow, SdramModel
from tests.hw.support.bench_streams import checked_simulator

CLOCK_HZ = 140e6
CHIP = replace(IS42S16160G, startup_ns=500)  # a start without a long delay
NAMES = ("cke", "ras_n", "cas_n", "we_n", "bank", "address", "mask", "data_out", "data_drive")


def chip_process(
    model: SdramModel, bus: Any, *, registered: bool = False, good: range = range(NOMINAL_PHASE, 2 * NOMINAL_PHASE)
) -> Callable[[Any], Any]:
    """Model the chip at these pins.

    Args:
        registered: there is a register on the way there and one on the way back.
        good: phases at which a word of the chip is captured whole, at most PHASES_OF_A_CYCLE of them.
    """
    samples = PhaseWindow(good)

    async def run(ctx: Any) -> None:
        signals = [getattr(bus, name) for name in NAMES]
        pending, data = (0, 1, 1, 1, 0, 0, 3, 0, 0), 0xDEAD
        while True:
            _, _, *values = await ctx.tick().sample(*signals)
            answer = model.cycle(pending if registered else tuple(values))
            # Undriven pins read as anything but the expected data.
            value = 0xDEAD if answer is None else answer
            ctx.set(bus.data_in, samples(data if registered else value))
            pending, data = tuple(values), value

    return run


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
    good: range = range(NOMINAL_PHASE, 2 * NOMINAL_PHASE),
) -> SdramModel:
    """Run until all processes have ended; the model checks every command.

    Args:
        times: minimum times that the model enforces; None: the chip's own.
        registered, good: see ``chip_process``.
    """
    model = model or SdramModel(chip, times or chip.times(CLOCK_HZ))
    simulator = checked_simulator(component)
    simulator.add_clock(1 / CLOCK_HZ)
    simulator.add_testbench(chip_process(model, bus, registered=registered, good=good), background=True)
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
