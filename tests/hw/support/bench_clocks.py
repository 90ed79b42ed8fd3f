"""Drive clock domains in Amaranth's simulator with clocks that drift and jitter, and synchronizers that resolve late."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import pi, sin
from typing import Any

from amaranth.hdl import ClockDomain, Elaboratable, Fragment, Module, Signal
from amaranth.sim import Simulator

from tests.hw.support.bench_streams import checked_simulator

__all__ = ["Clock", "Clocked", "Metastable", "jittering"]


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A clock whose every edge is elsewhere than an ideal clock's.

    Members:
        period: mean period in ps.
        jitter: largest deviation of one period from its mean, as a share of it.
        drift: largest deviation of the mean, which swings slowly, as a share of it.
        seed: seed of the deviations.
    """

    period: float
    jitter: float = 0.2
    drift: float = 0.02
    seed: int = 0

    def process(self, domain: ClockDomain) -> Callable[[Any], Awaitable[None]]:
        async def drive(ctx: Any) -> None:
            rng, cycle = random.Random(f"{self.seed} {domain.name}"), 0
            await ctx.delay(rng.random() * self.period * 1e-12)
            while True:
                now = self.period * (
                    1 + self.drift * sin(2 * pi * cycle / 400) + rng.uniform(-self.jitter, self.jitter)
                )
                high = round(now * rng.uniform(0.35, 0.65))
                ctx.set(domain.clk, 1)
                await ctx.delay(high * 1e-12)
                ctx.set(domain.clk, 0)
                await ctx.delay((round(now) - high) * 1e-12)
                cycle += 1

        return drive


class Clocked(Elaboratable):
    """A design with its clock domains, so that processes can drive their clocks."""

    def __init__(self, inner: Any, domains: list[str]) -> None:
        self.inner = inner
        self.domains = {name: ClockDomain(name) for name in domains}

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.inner = self.inner
        m.domains += list(self.domains.values())
        return m


@dataclass
class Metastable:
    """A platform on which every FFSynchronizer may resolve late.

    Each bit of a synchronizer's input that changes is late or not, at random and on its own: a late one is taken as it was
    at every edge within the window after the change. That covers a first register that resolves to the old value, and
    wires of unequal lengths. A Gray code bears any window that is shorter than the least period of the input's clock.

    Members:
        windows: time in ps for which a late bit of a synchronizer's input is old, by the domain of its output.
        seed: seed of the choices.
        changes, late: number of bits that changed, and of those that were late.
    """

    windows: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    changes: int = 0
    late: int = 0
    _models: list[tuple[Any, Signal, Signal, str]] = field(default_factory=list)

    def get_ff_sync(self, synchronizer: Any) -> Module:
        """Return the model of an FFSynchronizer; Amaranth calls this."""
        return self.stages(
            synchronizer.i,
            synchronizer.o,
            synchronizer._o_domain,
            synchronizer._stages,
            reset_less=synchronizer._reset_less,
            init=synchronizer._init,
        )

    def stages(
        self, source: Any, sink: Any, domain: str, count: int, *, reset_less: bool = True, init: int = 0
    ) -> Module:
        """Return a chain of ``count`` registers, the first of which may take old bits of ``source``."""
        m = Module()
        late = Signal(len(source), name="late")  # bits that the next edge takes as they were
        old = Signal(len(source), name="old")
        registers = [
            Signal(len(source), name=f"stage{number}", reset_less=reset_less, init=init) for number in range(count)
        ]
        m.d[domain] += [
            registers[0].eq((source & ~late) | (old & late)),
            *(after.eq(before) for before, after in itertools.pairwise(registers)),
        ]
        m.d.comb += sink.eq(registers[-1])
        self._models.append((source, late, old, domain))
        return m

    def processes(self) -> list[Callable[[Any], Awaitable[None]]]:
        """Return a process for each synchronizer; to be called after the design was elaborated."""
        return [self._process(number, *model) for number, model in enumerate(self._models)]

    def _process(
        self, number: int, source: Any, late: Signal, old: Signal, domain: str
    ) -> Callable[[Any], Awaitable[None]]:
        async def resolve(ctx: Any) -> None:
            rng, before = random.Random(f"{self.seed} {number}"), ctx.get(source)
            while True:
                (now,) = await ctx.changed(source)
                changed = before ^ now
                ctx.set(old, before)
                chosen = changed & rng.getrandbits(len(source))
                ctx.set(late, chosen)
                before = now
                self.changes += changed.bit_count()
                self.late += chosen.bit_count()
                await ctx.delay(self.windows[domain] * 1e-12)
                ctx.set(late, 0)

        return resolve


def jittering(
    component: Any, clocks: Mapping[str, Clock], *, domains: Mapping[str, str] | None = None
) -> tuple[Simulator, Metastable]:
    """Return a simulator of a component whose two clocks jitter and whose synchronizers resolve late.

    Args:
        clocks: clock of each of the two domains.
        domains: clock domains of the ports that are not in "sync", by name.

    Returns:
        The simulator, in which monitors of AXI are active, and the model of the synchronizers, which counts late bits.
    """
    first, second = clocks
    platform = Metastable(seed=clocks[first].seed)
    for sink, source in ((first, second), (second, first)):
        clock = clocks[source]
        platform.windows[sink] = 0.9 * clock.period * (1 - clock.jitter - clock.drift)
    clocked: list[Clocked] = []

    def prepare(watched: Any) -> Any:
        clocked.append(Clocked(watched, [first, second]))
        return Fragment.get(clocked[0], platform)

    simulator = checked_simulator(component, domains=domains, prepare=prepare)
    for name, clock in clocks.items():
        simulator.add_process(clock.process(clocked[0].domains[name]))
    for process in platform.processes():
        simulator.add_testbench(process, background=True)
    return simulator, platform
