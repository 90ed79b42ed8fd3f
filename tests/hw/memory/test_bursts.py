from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from edgedec.hw.memory.bursts import Bursts
from tests.hw.support.bench_streams import run


def cut(requests: list[tuple[int, int]], data_bytes: int, max_burst: int) -> list[dict[str, int]]:
    """Cut in the obvious way, beat by beat."""
    bursts = []
    for number, (address, size) in enumerate(requests):
        beats = sorted({byte // data_bytes for byte in range(address, address + size)})
        groups: list[list[int]] = []
        for beat in beats:
            start = beat * data_bytes
            if not groups or start % min(4096, max_burst * data_bytes) == 0:
                groups.append([])
            groups[-1].append(beat)
        for group in groups:
            bursts.append(
                {
                    "address": group[0] * data_bytes,
                    "len": len(group) - 1,
                    "request": number,
                    "first": int(group is groups[0]),
                    "final": int(group is groups[-1]),
                    "head": address % data_bytes,
                    "tail": (address + size - 1) % data_bytes,
                }
            )
    return bursts


@pytest.mark.rtl(sample=3)
@pytest.mark.parametrize(("data_bytes", "max_burst"), [(4, 16), (1, 2), (16, 1), (64, 256), (128, 32)])
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.5, 0.6)])
def test_cuts_equal_the_obvious_ones(data_bytes: int, max_burst: int, idle: float, stall: float) -> None:
    rng = random.Random(f"{data_bytes}")
    chunk = min(4096, data_bytes * max_burst)
    longest = min(6 * chunk, 9000)
    requests = [(rng.randrange(1 << 14), rng.randrange(longest)) for _ in range(24)]
    requests += [(chunk - 1, 2), (chunk - 1, 1), (chunk, chunk), (chunk - data_bytes, 2 * data_bytes), (5, 0), (0, 1)]
    requests += [(3 * chunk, 2 * chunk), (3 * chunk + 1, 2 * chunk - 1), ((1 << 16) - 1, 1)]
    expected = cut(requests, data_bytes, max_burst)
    cutter = Bursts(address_bits=16, data_bytes=data_bytes, length_bits=14, max_burst=max_burst)
    items = [{"address": address, "bytes": size} for address, size in requests]
    actual = run(cutter, {"requests": items}, {"bursts": len(expected)}, idle=idle, stall=stall)["bursts"]
    assert actual == expected


def test_latency_and_throughput_are_as_documented() -> None:
    cycles: dict[str, list[int]] = {}
    cutter = Bursts(address_bits=16, data_bytes=4, length_bits=14, max_burst=16)
    run(cutter, {"requests": [{"address": 0, "bytes": 256}] * 2}, {"bursts": 8}, cycles=cycles)
    first, second = cycles["requests"]
    assert cycles["bursts"] == [first + 2 + n for n in range(4)] + [second + 2 + n for n in range(4)]
    assert second + 2 == first + 2 + 4 + 1  # one idle cycle


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"address_bits": 11}, "address_bits must be an integer from 12 to 64, not 11"),
        ({"data_bytes": 3}, "data_bytes must be a power of two, 1 to 128, not 3"),
        ({"length_bits": 41}, "length_bits must be an integer from 1 to 40, not 41"),
        ({"max_burst": 24}, "max_burst must be a power of two, 1 to 256, not 24"),
        ({"max_burst": 512}, "max_burst must be a power of two, 1 to 256, not 512"),
        ({"max_burst": 0}, "max_burst must be a power of two, 1 to 256, not 0"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bursts(**{"address_bits": 32, "data_bytes": 16, "length_bits": 20, **parameters})


def test_busy_and_flush_follow_the_bursts() -> None:
    """Check that it is busy while a burst is left to offer or to accept, and that a flush drops what is not offered
    and clears the count.
    """
    cutter = Bursts(address_bits=16, data_bytes=4, length_bits=14, max_burst=4)
    bursts: list[tuple[int, int]] = []

    async def bench(ctx: Any) -> None:
        async def request(address: int, size: int) -> None:
            ctx.set(cutter.requests.payload, {"address": address, "bytes": size})
            ctx.set(cutter.requests.valid, 1)
            await ctx.tick().until(cutter.requests.ready)
            ctx.set(cutter.requests.valid, 0)

        async def take() -> None:
            ctx.set(cutter.bursts.ready, 1)
            payload = (await ctx.tick().sample(cutter.bursts.payload).until(cutter.bursts.valid))[0]
            ctx.set(cutter.bursts.ready, 0)
            bursts.append((payload.request, payload.address))

        assert not ctx.get(cutter.busy)
        await request(0, 16)
        assert ctx.get(cutter.busy)  # not yet offered
        assert not ctx.get(cutter.bursts.valid)
        await ctx.tick().repeat(4)
        assert ctx.get(cutter.busy)  # offered, and all is cut up
        await take()
        assert not ctx.get(cutter.busy)
        await request(64, 0)
        assert not ctx.get(cutter.busy)
        await request(256, 48)  # three bursts
        await ctx.tick().repeat(4)
        ctx.set(cutter.flush, 1)
        await ctx.tick().repeat(3)
        assert not ctx.get(cutter.requests.ready)
        assert ctx.get(cutter.busy)
        assert ctx.get(cutter.bursts.valid)  # an offered burst stays
        await take()
        assert not ctx.get(cutter.busy)
        await ctx.tick().repeat(3)
        assert not ctx.get(cutter.busy)
        ctx.set(cutter.flush, 0)
        await request(512, 4)
        await take()
        await request(1024, 4)
        ctx.set(cutter.flush, 1)  # in the cycle in which the burst would be offered
        await ctx.tick()
        ctx.set(cutter.flush, 0)
        await ctx.tick().repeat(3)
        assert not ctx.get(cutter.busy)

    simulator = Simulator(cutter)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert bursts == [(0, 0), (2, 256), (0, 512)]
