"""Run the prefetcher's RTL with the model of the KV260's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.isa.striping import stripe
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.sim.ddr.memory import DdrMemory
from edgedec.sim.ddr.reader import Range, read
from tests.hw.support.bench_streams import run

_PORTS, _PORT_BYTES = 4, 16


def serve(component: Prefetcher, memory: DdrMemory) -> Any:
    """Connect the model to the component's buses, as a background process of ``run``."""
    buses = [getattr(component, f"bus{port}") for port in range(_PORTS)]

    async def process(ctx: Any) -> None:
        while True:
            for bus, out in zip(buses, memory.outputs, strict=True):
                ctx.set(bus.arready, out.ar_ready)
                ctx.set(bus.rvalid, out.r_valid)
                ctx.set(bus.rlast, out.r_last)
                ctx.set(bus.rresp, out.r_response)
                ctx.set(bus.rdata, int.from_bytes(bytes(out.r_data[:_PORT_BYTES]), "little"))
            signals = [getattr(bus, name) for bus in buses for name in ("arvalid", "araddr", "arlen", "rready")]
            _, _, *samples = await ctx.tick().sample(*signals)
            for port, driven in enumerate(memory.inputs):
                valid, address, length, ready = samples[4 * port : 4 * port + 4]
                driven.ar_valid, driven.ar_address, driven.ar_beats, driven.r_ready = valid, address, length + 1, ready
            memory.cycle()

    return process


@pytest.mark.nightly
def test_ports_that_were_delayed_come_together_again() -> None:
    """Delay a port by the time of 1,100 beats; afterwards all of them read at nearly the rate of the bus.

    Ports that are 64 KiB apart use different rows of one bank: they lose a tenth or more, and stay apart.
    """
    beats, first = 7000, 2500
    image = np.random.default_rng(1).integers(0, 256, beats * 64, np.uint8)
    component = Prefetcher(
        beat_bytes=64, ports=_PORTS, address_bits=24, count_bits=16, depth=4096, style="auto", max_burst=64
    )
    memories = [DdrMemory(contents=stripe(image, ports=_PORTS, port_bytes=_PORT_BYTES)), DdrMemory()]
    for memory in memories:
        memory.inject_stall(0, first_cycle=700, cycles=1100)
    ranges = [Range(start=0, beats=first), Range(start=first, beats=beats - first)]
    cycles: dict[str, list[int]] = {}
    collected = run(
        component,
        {"ranges": [{"start": entry.start, "beats": entry.beats} for entry in ranges]},
        {"beats": beats, "error": 0},
        background=[serve(component, memories[0])],
        cycles=cycles,
    )
    assert collected["beats"] == image.reshape(-1, 64).tolist()
    rtl = [cycles["beats"][first - 1], cycles["beats"][-1]]
    assert rtl[1] - rtl[0] < 1.03 * (beats - first)
    assert read(memories[1], ranges).finished == pytest.approx(rtl, rel=0.01)


@pytest.mark.nightly
def test_the_model_of_the_stream_is_as_fast_as_the_rtl() -> None:
    """Read weights, constants, and keys and values of several heads, like a layer."""
    heads = [Range(start=100_000 + 1536 * run, beats=192) for run in (0, 2, 1, 4, 3, 6, 5, 7)]
    ranges = [Range(start=80, beats=192), Range(start=272, beats=1300), Range(start=1572, beats=1), *heads]
    ranges += [Range(start=1573, beats=77), Range(start=1650, beats=1300)]
    component = Prefetcher(
        beat_bytes=64, ports=_PORTS, address_bits=24, count_bits=16, depth=1024, style="auto", max_burst=64
    )
    cycles: dict[str, list[int]] = {}
    beats = sum(entry.beats for entry in ranges)
    run(
        component,
        {"ranges": [{"start": entry.start, "beats": entry.beats} for entry in ranges]},
        {"beats": beats, "error": 0},
        background=[serve(component, DdrMemory())],
        cycles=cycles,
    )
    last = np.cumsum([entry.beats for entry in ranges]) - 1
    modelled = read(DdrMemory(), ranges, depth=1024)
    assert modelled.finished == pytest.approx([cycles["beats"][beat] for beat in last], rel=0.01, abs=20)
