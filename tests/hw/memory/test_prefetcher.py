from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from edgedec.hw.isa.striping import stripe
from edgedec.hw.memory.prefetcher import Prefetcher
from tests.hw.support.bench_streams import run
from tests.hw.support.fake_axi_memory import AxiMemory


def read(
    ranges: list[tuple[int, int]],
    *,
    beat_bytes: int,
    ports: int,
    stall: float = 0.0,
    bus_stalls: tuple[float, ...] = (0.0,) * 4,
    failing: tuple[frozenset[int], ...] = (frozenset(),) * 4,
    errors: int = 0,
    depth: int = 8,
    watch: Callable[[Prefetcher], Callable[[Any], Awaitable[None]]] | None = None,
) -> tuple[dict[str, list[Any]], list[list[int]], list[AxiMemory]]:
    """Return the outputs, what they should be, and the memories of the ports."""
    image = np.random.default_rng(1).integers(0, 256, 1 << 15, dtype=np.uint8)
    memory = bytearray(stripe(image, ports=ports, port_bytes=beat_bytes // ports).tobytes())
    component = Prefetcher(
        beat_bytes=beat_bytes, ports=ports, address_bits=20, count_bits=10, depth=depth, style="auto", outstanding=2
    )
    memories = [
        AxiMemory(
            getattr(component, f"bus{port}"),
            memory=memory,
            data_bytes=beat_bytes // ports,
            stall=bus_stalls[port],
            bad=failing[port],
            latency=4,
            seed=port,
        )
        for port in range(ports)
    ]
    beats = image.reshape(-1, beat_bytes).tolist()
    expected = [beat for start, count in ranges for beat in beats[start : start + count]]
    collected = run(
        component,
        {"ranges": [{"start": start, "beats": count} for start, count in ranges]},
        {"beats": len(expected), "error": errors},
        stall=stall,
        background=[*(model.serve_reads for model in memories), *([watch(component)] if watch else [])],
    )
    return collected, expected, memories


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("beat_bytes", "ports"), [(4, 1), (4, 4), (16, 2), (64, 4)])
@pytest.mark.parametrize("stall", [0.0, 0.6])
def test_ranges_over_lagging_ports_are_joined(beat_bytes: int, ports: int, stall: float) -> None:
    per_block = 4096 * ports // beat_bytes
    ranges = [(per_block - 1, 2), (3, 0), (0, 1), (17, 60), (per_block - 30, 50), (5, 5)]
    actual, expected, memories = read(
        ranges, beat_bytes=beat_bytes, ports=ports, stall=stall, bus_stalls=(0.0, 0.5, 0.2, 0.6)
    )
    assert actual["beats"] == expected
    assert all(sum(beats for _, beats in model.reads) == len(expected) for model in memories)


@pytest.mark.nightly(sample=2)
@pytest.mark.rtl
@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize(("lags", "limit"), [(0.0, 0), (0.7, 16)])
def test_no_port_runs_ahead_of_the_slowest(slow: int, lags: float, limit: int) -> None:
    leads: list[int] = []

    def watch(component: Prefetcher) -> Callable[[Any], Awaitable[None]]:
        buses = [getattr(component, f"bus{port}") for port in range(4)]

        async def count(ctx: Any) -> None:
            beats_per_port = [0] * 4
            while True:
                _, _, *accepted = await ctx.tick().sample(*(bus.rvalid & bus.rready for bus in buses))
                beats_per_port = [before + now for before, now in zip(beats_per_port, accepted, strict=True)]
                leads.append(max(beats_per_port) - min(beats_per_port))

        return count

    stalls = tuple(lags if port == slow else 0.0 for port in range(4))
    ranges = [(0, 60), (300, 9), (5, 100)]
    actual, expected, _ = read(ranges, beat_bytes=64, ports=4, depth=128, bus_stalls=stalls, watch=watch)
    assert actual["beats"] == expected
    assert max(leads) == limit


@pytest.mark.thorough
def test_an_error_names_port_and_range() -> None:
    failing = (frozenset[int](), frozenset({4096 + 9 * 8}), frozenset[int](), frozenset[int]())
    actual, expected, _ = read([(40, 2), (3, 0), (8, 4)], beat_bytes=16, ports=2, failing=failing, errors=1)
    assert actual["beats"] == expected
    assert actual["error"] == [{"port": 1, "request": 2, "response": 2}]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beat_bytes": 24}, "beat_bytes must be 4, 8, 16, 32 or 64, not 24"),
        ({"ports": 3}, "ports must be 1, 2 or 4, not 3"),
        ({"address_bits": 15}, "address_bits must be an integer from 16 to 64, not 15"),
        ({"count_bits": 0}, "count_bits must be an integer from 1 to 32, not 0"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Prefetcher(**{"beat_bytes": 64, "ports": 4, **parameters})
