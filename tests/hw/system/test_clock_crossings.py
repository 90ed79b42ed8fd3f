"""Test how values cross between clocks in whole systems, and a serial line whose two ends have clocks that jitter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from amaranth.hdl import Cat, DomainRenamer, Module, Signal
from amaranth.lib import stream
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.memory import axi_crossing
from edgedec.hw.system import uart
from edgedec.hw.system.block_ram_system import OnChipSystem
from edgedec.hw.system.sdram.chip import IS42S16160G
from edgedec.hw.system.sdram_system import UartSystem
from edgedec.hw.system.uart import UartReceiver, UartTransmitter
from edgedec.hw.system.zynq.zynq_system import ZynqSystem
from tests.hw.support.bench_clocks import Clock, jittering
from tests.hw.support.bench_crossings import crossings
from tests.hw.support.fake_accelerator import Copier

CONFIG = AcceleratorConfig(beat_bytes=4, ports=1, slots=1, ultra=False, clock_hz=50e6)
WIDE = replace(CONFIG, beat_bytes=8, burst_beats=16)
BAUD = 1_000_000
# Queues of each pair of crossings, each with the bits of its two counts.
QUEUES = {"read_crossing{}.ar": 4, "read_crossing{}.r": 5} | {f"write_crossing{{}}.{name}": 4 for name in ("aw", "b")}
QUEUES["write_crossing{}.w"] = 5


def with_sdram() -> UartSystem:
    return UartSystem(CONFIG, Copier(CONFIG), chip=IS42S16160G, memory_hz=100e6, baud=BAUD)


@pytest.mark.thorough
def test_all_values_between_two_clocks_cross_through_synchronizers_and_queues() -> None:
    system = with_sdram()
    found = crossings(system, inputs=[system.receive])
    assert found.faults == []
    queues = {name.format(port): bits for name, bits in QUEUES.items() for port in range(2)}
    assert found.synchronizers == {
        "receiver.synchronizer": (1, 2),
        "phase": (4, 2),
        "is_ready": (1, 2),
        **{f"{name}.{count}_crossing": (bits, 2) for name, bits in queues.items() for count in ("put", "taken")},
    }
    assert sorted(found.memories) == sorted(f"{name}.storage" for name in queues)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["block RAM", "zynq"])
def test_a_system_with_one_clock_has_no_crossing_but_the_line(kind: str) -> None:
    if kind == "zynq":
        found = crossings(ZynqSystem(WIDE, Copier(WIDE)))
    else:
        system = OnChipSystem(WIDE, Copier(WIDE), memory_bytes=1 << 14, baud=BAUD)
        found = crossings(system, inputs=[system.receive])
    assert (found.faults, found.memories) == ([], [])
    assert found.synchronizers == ({} if kind == "zynq" else {"receiver.synchronizer": (1, 2)})


class _OneStage(Component):
    """Stands in for FFSynchronizer with a single register."""

    def __init__(self, i: Any, o: Any, *, o_domain: str = "sync", init: int = 0, **_: Any) -> None:
        self._wires, self._domain, self._init = (i, o), o_domain, init
        super().__init__({})

    def elaborate(self, platform: Any) -> Module:
        m, (source, sink) = Module(), self._wires
        only = Signal(len(source), init=self._init)
        m.d[self._domain] += only.eq(source)
        m.d.comb += sink.eq(only)
        return m


class _NoStage(_OneStage):
    """Stands in for FFSynchronizer with a wire."""

    def elaborate(self, platform: Any) -> Module:
        m, (source, sink) = Module(), self._wires
        m.d.comb += sink.eq(source)
        return m


def _decoded(self: Any, m: Module, name: str, count: Signal, source: str, sink: str) -> Signal:
    """Cross after the decoding of the Gray code, so that one late bit reaches several registers."""
    gray, decoded, crossed = (Signal.like(count) for _ in range(3))
    m.d[source] += gray.eq(count ^ (count >> 1))
    m.d.comb += decoded.eq(Cat(gray[bit:].xor() for bit in range(len(count))))
    m.submodules[f"{name}_crossing"] = FFSynchronizer(decoded, crossed, o_domain=sink, reset_less=False)
    return crossed


def _plain(self: Any, m: Module, name: str, count: Signal, source: str, sink: str) -> Signal:
    """Let the other clock read a count as it is."""
    return count


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "one stage at the line": lambda patch: patch.setattr(uart, "FFSynchronizer", _OneStage),
    "no stage at the line": lambda patch: patch.setattr(uart, "FFSynchronizer", _NoStage),
    "one stage at the counts": lambda patch: patch.setattr(axi_crossing, "FFSynchronizer", _OneStage),
    "no stage at the counts": lambda patch: patch.setattr(axi_crossing, "FFSynchronizer", _NoStage),
    "counts after logic": lambda patch: patch.setattr(axi_crossing._Crossing, "_other", _decoded),
    "plain counts": lambda patch: patch.setattr(axi_crossing._Crossing, "_other", _plain),
}


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_crossing_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[name](monkeypatch)
    system = with_sdram()
    assert crossings(system, inputs=[system.receive]).faults


class _Line(Component):
    """A transmitter in the clock "host", and a receiver in "sync"."""

    def __init__(self, host_hz: float, clock_hz: float, baud: int) -> None:
        self._transmitter = UartTransmitter(clock_hz=host_hz, baud=baud)
        self._receiver = UartReceiver(clock_hz=clock_hz, baud=baud)
        super().__init__(
            {"bytes": In(stream.Signature(8)), "received": Out(stream.Signature(8, always_ready=True))},
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.transmitter = DomainRenamer("host")(self._transmitter)
        m.submodules.receiver = self._receiver
        connect(m, flipped(self.bytes), self._transmitter.bytes)
        connect(m, self._receiver.bytes, flipped(self.received))
        m.d.comb += self._receiver.line.eq(self._transmitter.line)
        return m


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize("cycles", [6, 8.3, 20])  # cycles of the receiver's clock in a bit
@pytest.mark.parametrize("gap", [0.0, 0.02])  # chance in a cycle that the next byte begins
def test_bytes_arrive_over_a_line_whose_ends_have_clocks_that_jitter(cycles: float, gap: float) -> None:
    """Check all bytes, with edges of the line that are taken a cycle late at random, in every phase of the two clocks."""
    host_hz, clock_hz = 160e6, 50e6  # the bits of the other end begin at its own cycles, which should be short
    line = _Line(host_hz, clock_hz, round(clock_hz / cycles))
    clocks = {
        "sync": Clock(period=1e12 / clock_hz, jitter=0.03, drift=0.004, seed=1),
        "host": Clock(period=1.003e12 / host_hz, jitter=0.03, drift=0.004, seed=2),
    }
    rng, received = random.Random(f"{cycles} {gap}"), list[int]()
    sent = [0x00, 0xFF, 0x55, 0xAA, *rng.randbytes(60)]
    simulator, platform = jittering(line, clocks)

    async def give(ctx: Any) -> None:
        await ctx.tick("host").repeat(30)
        for byte in sent:
            while gap and rng.random() > gap:
                await ctx.tick("host")
            ctx.set(line.bytes.payload, byte)
            ctx.set(line.bytes.valid, 1)
            await ctx.tick("host").until(line.bytes.ready)
            ctx.set(line.bytes.valid, 0)
        await ctx.tick("sync").repeat(round(20 * cycles))

    async def take(ctx: Any) -> None:
        async for _, _, valid, byte in ctx.tick().sample(line.received.valid, line.received.payload):
            if valid:
                received.append(byte)

    simulator.add_testbench(take, background=True)
    simulator.add_testbench(give)
    simulator.run()
    assert received == sent
    assert platform.changes > platform.late > platform.changes / 4
