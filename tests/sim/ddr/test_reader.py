"""Test the read stream with the memory model: the cost of a layer's traffic, and the effect of the ports' leads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import DeviceError, UsageError
from edgedec.sim.ddr.memory import DdrMemory
from edgedec.sim.ddr.parameters import KV260, DdrParameters
from edgedec.sim.ddr.reader import OtherMaster, Range, Write, read

pytestmark = pytest.mark.rtl  # the model of the memory is compiled

# beats: of the cache, of a layer of it, and of a head's keys or values
_CACHE, _LAYER_CACHE, _RUN = 1 << 22, 49_152, 1536


def layers(count: int, *, cached: int = 192) -> list[Range]:
    """Return the ranges of BitNet-0.73B in the default configuration, 128 positions before it; waits as in
    docs/accelerator.md.
    """
    at, ranges = 300, []

    def image(beats: int, wait: int = 0) -> None:
        nonlocal at
        ranges.append(Range(start=at, beats=beats, wait=wait))
        at += beats

    for layer in range(count):
        for wait in (140, 0, 0):  # q, k, v: the constants of their codes come first
            image(192)
            image(7392, wait)
        image(1)
        image(48)
        keys = [_CACHE + layer * _LAYER_CACHE + 2 * head * _RUN for head in range(16)]
        values = [start + _RUN for start in keys]
        order = [keys[0], *(start for pair in zip(keys[1:], values, strict=False) for start in pair), values[-1]]
        ranges += [Range(start=start, beats=cached, wait=300 * (i == 0)) for i, start in enumerate(order)]
        image(77)
        for beats, wait in ((7392, 180), (39336, 140), (77, 0), (19712, 140)):
            image(beats, wait)
    return ranges


def new_rows(ranges: list[Range], slots: int) -> list[Write]:
    """Return the writes of each layer: the keys of a pass, 16 bytes each, after k; then the values."""
    beats_read = np.cumsum([range_.beats for range_ in ranges])
    layer = len(layers(1))
    blocks = [64 * (_CACHE + first // layer * _LAYER_CACHE) for first in range(0, len(ranges), layer)]
    return [
        Write(
            due=int(beats_read[number * layer + matrix]),
            address=start + 64 * _RUN * (2 * head + value) + 96 * (slot // 4) + 4096 * (slot % 4) + 16 * chunk,
        )
        for number, start in enumerate(blocks)
        for matrix, value in ((3, 0), (5, 1))
        for head in range(16)
        for chunk in range(6)
        for slot in range(slots)
    ]


def least(ranges: list[Range]) -> int:
    """Return the cycles with a memory that is always ready."""
    return sum(range_.beats + range_.wait for range_ in ranges)


@pytest.mark.parametrize(("slots", "limit"), [(1, 1.02), (4, 1.03), (8, 1.045)])
def test_layers_are_read_at_the_rate_of_the_ports(slots: int, limit: float) -> None:
    """Allow for refreshes, which 2 KiB of a port do not bridge, and for writes, eight between two turns of the bus."""
    ranges = layers(3)
    result = read(DdrMemory(), ranges, new_rows(ranges, slots))
    assert result.most_lead == 16
    assert result.cycles < limit * least(ranges)
    assert result.finished[-1] == result.cycles
    assert list(result.finished) == sorted(result.finished)


def test_ports_that_drift_apart_lose_much() -> None:
    """Check the reason for which the prefetcher keeps them together; the loss depends on their places."""
    ranges = layers(3)
    free = [read(DdrMemory(), ranges, new_rows(ranges, slots), lead=None) for slots in (1, 4, 8)]
    assert max(result.most_lead for result in free) > 1024
    assert max(result.cycles for result in free) > 1.08 * least(ranges)


@pytest.mark.parametrize("seed", range(6))
def test_a_disturbance_costs_only_its_own_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranges, memory, lost_cycles = layers(1), DdrMemory(), 0
    for _ in range(3):
        port, first, cycles = int(rng.integers(4)), int(rng.integers(90_000)), int(rng.integers(100, 3000))
        memory.inject_stall(port, first_cycle=first, cycles=cycles)
        lost_cycles += cycles
    assert read(memory, ranges).cycles < 1.025 * least(ranges) + lost_cycles


@pytest.mark.parametrize("writes", [0, 4])
@pytest.mark.parametrize("rate", [100_000_000, 1_000_000_000])
def test_another_master_gets_its_rate_and_costs_more_than_its_bytes(rate: int, writes: int) -> None:
    ranges, memory = layers(1), DdrMemory(KV260.with_other_master())
    alone = read(DdrMemory(), ranges).cycles
    result = read(memory, ranges, other=OtherMaster(bytes_per_s=rate, write_one_in=writes))
    assert result.other_bytes == pytest.approx(rate * result.cycles / KV260.port_hz, abs=64 * 32)
    beats = sum(one.beats for one in ranges)
    assert memory.counts.reads + memory.counts.writes >= beats + result.other_bytes // 64
    assert 0 <= memory.counts.writes - (result.other_bytes // 64 // writes if writes else 0) <= 32
    # Its share of the bus, if its lines cost no more than the reader's, which have open rows.
    assert result.cycles > alone * (1 + rate / 16e9)
    assert result.cycles < alone * (1.8 if writes else 1.25)


def test_another_master_is_the_same_for_the_same_seed() -> None:
    def cycles(seed: int) -> int:
        memory = DdrMemory(KV260.with_other_master())
        return read(memory, layers(1), other=OtherMaster(bytes_per_s=500_000_000, seed=seed)).cycles

    assert cycles(1) == cycles(1) != cycles(2)
    assert cycles(2) == pytest.approx(cycles(1), rel=0.01)


def test_more_than_the_memory_can_give_is_asked_for_later() -> None:
    """Check that a master beyond the rate of its port takes what the port gives, and the reader still ends."""
    memory = DdrMemory(KV260.with_other_master())
    result = read(memory, layers(1), other=OtherMaster(bytes_per_s=8_000_000_000))
    assert 1e9 < result.other_bytes / result.cycles * KV260.port_hz < 4e9


def test_a_fast_memory_costs_beats_and_waits_only() -> None:
    memory = DdrMemory(KV260.flat(100_000_000_000))
    ranges = [Range(start=5, beats=0), Range(start=1000, beats=700, wait=30), Range(start=3, beats=50, wait=1000)]
    result = read(memory, ranges, lead=None)
    assert result.finished[1] + 1050 == result.finished[2] == result.cycles
    assert result.starved == result.cycles - 1780
    assert memory.counts.reads == 4 * (175 + 14)  # lines; the second range begins within one


def test_writes_go_in_batches_and_the_rest_at_the_end() -> None:
    memory = DdrMemory()
    writes = [Write(due=10 * i, address=1 << 20 | 64 * i) for i in range(100)]
    read(memory, [Range(start=0, beats=3000)], writes, batch=40)
    assert memory.counts.writes == 100
    assert memory.counts.turnarounds < 40
    assert read(DdrMemory(), [Range(start=0, beats=3)], [Write(due=4, address=0)]).cycles < 100  # never due


@pytest.mark.parametrize(
    ("ranges", "writes", "options", "message"),
    [
        ([Range(start=-1, beats=2)], [], {}, "range 0: start, beats and wait"),
        ([], [Write(due=0, address=8)], {}, "write 0: no burst of 16-byte beats"),
        ([], [Write(due=0, address=0, beats=257)], {}, "write 0: no burst"),
        ([], [], {"lead": 0}, "lead must be positive, not 0"),
        ([], [], {"depth": 0}, "depth must be positive, not 0"),
    ],
)
def test_bad_input_is_refused(ranges: list[Range], writes: list[Write], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(DdrMemory(), ranges, writes, **options)


@pytest.mark.parametrize(
    ("other", "parameters", "message"),
    [
        (OtherMaster(bytes_per_s=1), replace(KV260, controller_port=(0, 1, 1)), "needs a port of its own"),
        (OtherMaster(bytes_per_s=0), KV260, "must be positive"),
        (OtherMaster(bytes_per_s=1, outstanding=0), KV260, "must be positive"),
        (OtherMaster(bytes_per_s=1, address=8), KV260, "lines of 64 bytes"),
        (OtherMaster(bytes_per_s=1, size_bytes=63), KV260, "lines of 64 bytes"),
        (OtherMaster(bytes_per_s=1, write_one_in=-1), KV260, "lines of 64 bytes"),
    ],
)
def test_impossible_other_masters_are_refused(other: OtherMaster, parameters: DdrParameters, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(DdrMemory(parameters), [], other=other)


def test_a_write_over_4_kib_and_a_port_that_hangs_are_reported() -> None:
    with pytest.raises(DeviceError, match="crosses 4 KiB"):
        read(DdrMemory(), [Range(start=0, beats=2000)], [Write(due=0, address=4080, beats=2)])
    memory = DdrMemory()
    memory.inject_stall(2)
    with pytest.raises(DeviceError, match="not finished after 5000 cycles"):
        read(memory, [Range(start=0, beats=10)], limit_cycles=5000)
