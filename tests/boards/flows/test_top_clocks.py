"""Test the clocks of the boards' tops: synchronizers, gates that start a clock, and resets that end with an edge."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from amaranth.hdl import ClockDomain, ClockSignal, Elaboratable, Fragment, Module, ResetSignal, Signal
from amaranth.sim import Simulator

from edgedec.board import FAMILIES
from edgedec.boards.flows.ecp5 import clock as ecp5_clock
from edgedec.boards.flows.ecp5 import orangecrab_top, ulx3s_top
from edgedec.boards.flows.openxc7 import top as zynq_top
from edgedec.hw.config import AcceleratorConfig
from tests.hw.support.bench_clocks import Clock, Metastable
from tests.hw.support.bench_crossings import Crossings, crossings
from tests.hw.support.fake_accelerator import Copier

CONFIG = AcceleratorConfig(beat_bytes=8, ports=1, slots=1, ultra=False, burst_beats=16, clock_hz=80e6)
# Chains of each top outside of its system, each with its bits and registers.
LINE = {"system.receiver.synchronizer": (1, 2)}
# Registers of the chains of one data pin of the SDRAM; "of_3" leads from one edge of a clock to the other.
SAMPLES = {"at_0": 5, "at_1": 2, "of_1": 3, "at_2": 2, "at_3": 2, "of_3": 2}
CHAINS = {
    "ulx3s": LINE
    | {f"{domain}_running": (1, 3) for domain in ("sync", "memory", "quarter")}
    | {"system.phase": (4, 2), "system.is_ready": (1, 2)}
    | {f"memory_dq{bit}_samples.{name}": (1, stages) for bit in range(16) for name, stages in SAMPLES.items()},
    "orangecrab": LINE | {"sync_running": (1, 3), "pressed": (1, 2)},
    "zynq": {},
}


def crossings_of(board: str) -> Crossings:
    """Return where the clock changes in a top, without the queues between the clocks of its system."""
    platform: Any
    top: Any
    if board == "zynq":
        platform, top = FAMILIES["zynq-7000"], zynq_top.ZynqTop(CONFIG, Copier(CONFIG))
    else:
        pytest.importorskip("amaranth_boards")
        if board == "ulx3s":
            config, platform = replace(CONFIG, beat_bytes=4, clock_hz=60e6), ulx3s_top.platform("LFE5U-85F")
            top = ulx3s_top.Ulx3sTop(config, Copier(config), baud=1_000_000)
        else:
            platform = orangecrab_top.platform("LFE5U-85F")
            top = orangecrab_top.OrangeCrabTop(CONFIG, Copier(CONFIG))
    found = crossings(top, platform=platform)
    for name in [name for name in found.synchronizers if "_crossing" in name]:
        del found.synchronizers[name]
    return found


@pytest.mark.rtl
@pytest.mark.parametrize("board", CHAINS)
def test_all_values_of_other_clocks_come_through_synchronizers(board: str) -> None:
    found = crossings_of(board)
    assert found.faults == []
    assert found.synchronizers == CHAINS[board]
    assert found.resets == ({"reset": 4} if board == "zynq" else {})


class _Wire(Elaboratable):  # type: ignore[misc]  # no types in amaranth
    """Stands in for a synchronizer of one bit."""

    def __init__(self, i: Any, o: Any = None, *, o_domain: str = "sync", **_: Any) -> None:
        self._source, self._sink, self._domain = i, o, o_domain

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sink = ResetSignal(self._domain) if self._sink is None else self._sink
        m.d.comb += sink.eq(self._source)
        return m


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("board", "place", "name"),
    [
        ("ulx3s", ecp5_clock, "FFSynchronizer"),
        ("orangecrab", ecp5_clock, "FFSynchronizer"),
        ("orangecrab", orangecrab_top, "FFSynchronizer"),
        ("zynq", zynq_top, "ResetSynchronizer"),
    ],
)
def test_a_missing_synchronizer_is_seen(board: str, place: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, name, _Wire)
    found = crossings_of(board)
    assert found.faults or found.synchronizers != CHAINS[board]


class _Fresh:
    """Watches whether a signal changes only right after a rising edge of a clock."""

    def __init__(self, clock: Signal, *, rising: bool | None = None) -> None:
        self._clock, self._rising, self._just = clock, rising, False
        self.late: list[int] = []  # the values that it took elsewhere
        self.changes = 0

    async def edges(self, ctx: Any) -> None:
        while True:
            await ctx.posedge(self._clock)
            self._just = True
            await ctx.delay(1e-12)
            self._just = False

    async def watch(self, ctx: Any, signal: Signal) -> None:
        while True:
            (value,) = await ctx.changed(signal)
            self.changes += 1
            if not self._just and self._rising in (None, bool(value)):
                self.late.append(value)


class _Gate(Elaboratable):  # type: ignore[misc]  # no types in amaranth
    """Stands in for the cell DCCA, which takes its enable while the clock is low."""

    def __init__(self, kind: str, **ports: Any) -> None:
        assert kind == "DCCA"
        self._wires = (ports["i_CLKI"], ports["i_CE"], ports["o_CLKO"])

    def elaborate(self, platform: Any) -> Module:
        m, (clock, enable, output) = Module(), self._wires
        platform.enables.append(enable)
        m.domains.falling = ClockDomain("falling", clk_edge="neg", reset_less=True, local=True)
        taken = Signal()
        m.d.comb += [ClockSignal("falling").eq(clock), output.eq(clock & taken)]
        m.d.falling += taken.eq(enable)
        return m


class _Platform(Metastable):
    """A platform on which synchronizers resolve late, and which keeps what a top tells it."""

    def __init__(self, seed: int, window: float) -> None:
        super().__init__(seed=seed, windows={"sync_before": window})
        self.enables: list[Signal] = []
        self.constraints: list[tuple[Signal, float]] = []

    def add_clock_constraint(self, clock: Signal, hz: float) -> None:
        self.constraints.append((clock, hz))


class _Started(Elaboratable):  # type: ignore[misc]  # no types in amaranth
    """A clock that starts once ``locked`` is high, and a counter of its edges."""

    def __init__(self) -> None:
        self.clock, self.locked, self.count, self.started = Signal(), Signal(), Signal(8), Signal()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        ecp5_clock.started_clock(m, platform, "sync", self.clock, self.locked, 1e8)
        m.d.comb += self.started.eq(ClockSignal("sync"))
        m.d.sync += self.count.eq(self.count + 1)
        return m


def start(seed: int) -> tuple[list[int], int]:
    """Start and stop a clock at random times.

    Returns:
        What the gate's enable became elsewhere than after an edge, and the number of edges of the PLL before the first one
        of the gated clock.
    """
    rng, period = random.Random(seed), 10_000
    design, platform = _Started(), _Platform(seed, 0.9 * period)
    simulator = Simulator(Fragment.get(design, platform))
    pll, edges = SimpleNamespace(clk=design.clock, name="pll"), list[int]()
    fresh = _Fresh(design.clock)
    simulator.add_process(Clock(period=period, jitter=0.2, seed=seed).process(pll))
    for process in platform.processes():
        simulator.add_testbench(process, background=True)
    simulator.add_testbench(fresh.edges, background=True)

    async def watch(ctx: Any) -> None:
        await fresh.watch(ctx, platform.enables[0])

    async def count_edges(ctx: Any) -> None:
        """Count the edges of the PLL since the lock, up to the first one of the gated clock."""
        while not ctx.get(design.started):
            await ctx.posedge(design.clock)
            if ctx.get(design.locked):
                edges.append(ctx.get(design.count))

    async def bench(ctx: Any) -> None:
        await ctx.delay((5 + rng.random()) * period * 1e-12)
        assert ctx.get(design.count) == 0
        ctx.set(design.locked, 1)
        await ctx.delay((20 + rng.random()) * period * 1e-12)
        assert ctx.get(design.count) > 10
        ctx.set(design.locked, 0)
        await ctx.delay((8 + rng.random()) * period * 1e-12)
        stopped = ctx.get(design.count)
        await ctx.delay(10 * period * 1e-12)
        assert ctx.get(design.count) == stopped

    simulator.add_testbench(watch, background=True)
    simulator.add_testbench(count_edges, background=True)
    simulator.add_testbench(bench)
    simulator.run()
    assert fresh.changes == 2
    assert [hz for _, hz in platform.constraints] == [1e8, 1e8]
    return fresh.late, len(edges)


def test_a_clock_starts_with_a_whole_pulse_whenever_the_lock_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's enable changes right after an edge of its clock, far from the one at which the gate takes it."""
    monkeypatch.setattr(ecp5_clock, "Instance", _Gate)
    runs = [start(seed) for seed in range(24)]
    assert all(late == [] for late, _ in runs)
    assert {edges for _, edges in runs} <= {3, 4, 5}
    assert len({edges for _, edges in runs}) > 1, "no lock was taken late"


def test_a_gate_without_a_synchronizer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ecp5_clock, "Instance", _Gate)
    monkeypatch.setattr(ecp5_clock, "FFSynchronizer", _Wire)
    assert all(late for late, _ in (start(seed) for seed in range(3)))


class _Cell(Elaboratable):  # type: ignore[misc]  # no types in amaranth
    """Stands in for the cells of a Zynq: a clock buffer, and a processing system without traffic."""

    clock: Signal  # clock of the processing system
    released: Signal
    reset: Signal  # reset of the fabric

    def __init__(self, kind: str, **ports: Any) -> None:
        self._kind, self._ports = kind, ports

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if self._kind == "BUFG":
            m.d.comb += self._ports["o_O"].eq(self._ports["i_I"])
        else:
            m.d.comb += [
                self._ports["o_FCLKCLK"].eq(_Cell.clock),
                self._ports["o_FCLKRESETN"].eq(_Cell.released),
                _Cell.reset.eq(ResetSignal("sync")),
            ]
        return m


def release(seed: int) -> tuple[list[int], int]:
    """Release and assert the reset of a Zynq's fabric at random times.

    Returns:
        What the reset of the fabric became elsewhere than after an edge, when it was released, and the number of edges
        between the two releases.
    """
    rng, period = random.Random(seed), 10_000
    _Cell.clock, _Cell.released, _Cell.reset = Signal(name="clock"), Signal(name="released"), Signal(name="reset")
    simulator = Simulator(zynq_top.ZynqTop(CONFIG, Copier(CONFIG)))
    system, edges = SimpleNamespace(clk=_Cell.clock, name="fabric"), 0
    fresh = _Fresh(_Cell.clock, rising=False)
    simulator.add_process(Clock(period=period, jitter=0.2, seed=seed).process(system))
    simulator.add_testbench(fresh.edges, background=True)

    async def watch(ctx: Any) -> None:
        await fresh.watch(ctx, _Cell.reset)

    async def bench(ctx: Any) -> None:
        nonlocal edges
        for _ in range(2):
            await ctx.delay((5 + rng.random()) * period * 1e-12)
            assert ctx.get(_Cell.reset)
            ctx.set(_Cell.released, 1)
            edges = 0
            while ctx.get(_Cell.reset):
                await ctx.posedge(_Cell.clock)
                edges += 1
            await ctx.delay((5 + rng.random()) * period * 1e-12)
            assert not ctx.get(_Cell.reset)
            ctx.set(_Cell.released, 0)
            await ctx.delay(1e-12)
            assert ctx.get(_Cell.reset), "it does not wait for the clock, which may have stopped"

    simulator.add_testbench(watch, background=True)
    simulator.add_testbench(bench)
    simulator.run()
    return fresh.late, edges


@pytest.mark.rtl
def test_the_fabric_of_a_zynq_leaves_its_reset_right_after_an_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zynq_top, "Instance", _Cell)
    assert [release(seed) for seed in range(2)] == [([], 4)] * 2


@pytest.mark.rtl
def test_a_reset_that_is_released_between_two_edges_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zynq_top, "Instance", _Cell)
    monkeypatch.setattr(zynq_top, "ResetSynchronizer", _Wire)
    assert release(0)[0]
