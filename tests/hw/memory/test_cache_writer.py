from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import FIELDS, Opcode
from edgedec.hw.memory.cache_writer import CacheWriter
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS
from tests.hw.support.reference_cache import Cache, cache_config

# beat_bytes, ports, slots, head_dim: chunks of 4, 8 and 16 bytes; groups of 1, 2, 4 and 8 positions
SIZES = [
    *((4, 1, 1, 8), (8, 2, 2, 96), (16, 4, 3, 8), (16, 1, 8, 16)),
    *((32, 2, 8, 8), (64, 4, 3, 96), (64, 1, 2, 8), (64, 4, 8, 16)),
]


def copy_item(fields: dict[str, int]) -> dict[str, int]:
    return {"opcode": int(Opcode.COPY), **dict.fromkeys(FIELDS[Opcode.COPY], 0), **fields}


def apply(memory: bytearray, collected: dict[str, list[Any]], config: AcceleratorConfig) -> None:
    for request, beat in zip(collected["requests"], collected["data"], strict=True):
        address, size = request["address"], request["bytes"]
        lane = address % config.port_bytes
        assert size == config.chunk
        assert lane + size <= config.port_bytes
        memory[address : address + size] = bytes(beat[lane : lane + size])


def settings(cache: Cache, committed: int, *, own: int = 1, accepted: int = 0) -> dict[str, int]:
    return {"own": own, "committed": committed, "accepted": accepted, "kv_address": cache.address}


@pytest.mark.nightly(sample=8)
@pytest.mark.rtl
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("size", SIZES)
def test_new_rows_are_written(size: tuple[int, int, int, int], idle: float, stall: float) -> None:
    config = cache_config(*size)
    edges = ((0, config.slots), (22, 1)) if not idle and not stall else ()
    for committed, own in ((13, max(1, config.slots - 1)), *edges):
        cache = Cache(config, layers=2, kv_heads=3, context=31, seed=committed)
        memory = cache.memory()
        new_rows, layers, keys, values = cache.new_rows(own)
        count = own * (len(keys) + len(values))
        collected = run(
            CacheWriter(config),
            {"layers": layers, "new_keys": keys, "new_values": values},
            {"requests": count, "data": count},
            idle=idle,
            stall=stall,
            settings=settings(cache, committed, own=own),
        )
        apply(memory, collected, config)
        cache.codes[..., committed : committed + own, :] = new_rows[..., :own, :]
        assert memory == cache.memory()


def commit(cache: Cache, committed: int, accepted: int, **patterns: Any) -> None:
    copies, beats = cache.copy_beats(committed, accepted)
    memory = cache.memory()
    collected = run(
        CacheWriter(cache.config),
        {"copies": list(map(copy_item, copies)), "beats": beats},
        {"requests": len(beats), "data": len(beats)},
        settings=settings(cache, committed, accepted=accepted),
        **patterns,
    )
    apply(memory, collected, cache.config)
    count = cache.commit(committed, accepted)
    # Bytes after the last accepted position are not defined: they are unchanged.
    assert count == accepted.bit_count()
    assert memory == cache.memory()


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("accepted", range(16))
def test_every_subset_is_committed(accepted: int) -> None:
    config = cache_config(32, 2, 4, 24)
    for committed in (0, 9):
        commit(Cache(config, layers=2, kv_heads=2, context=17, seed=accepted), committed, accepted)


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("size", SIZES)
def test_commits_of_all_sizes(size: tuple[int, int, int, int], idle: float, stall: float) -> None:
    config = cache_config(*size)
    cache = Cache(config, layers=2, kv_heads=1, context=40)
    commit(cache, 21, 0b10110110 & ((1 << config.slots) - 1), idle=idle, stall=stall)


@pytest.mark.rtl
def test_a_commit_after_its_pass_and_a_pass_after_that() -> None:
    config, committed = cache_config(16, 2, 3, 8), 5
    cache = Cache(config, layers=1, kv_heads=2, context=20)
    for accepted_slots in (0b101, 0b110, 0b111, 0b000):
        new_rows, layers, keys, values = cache.new_rows(3)
        memory = cache.memory()
        count = 3 * len(keys + values)
        collected = run(
            CacheWriter(config),
            {"layers": layers, "new_keys": keys, "new_values": values},
            {"requests": count, "data": count},
            settings=settings(cache, committed, own=3),
        )
        apply(memory, collected, config)
        cache.codes[..., committed : committed + 3, :] = new_rows
        assert memory == cache.memory()
        commit(cache, committed, accepted_slots)
        committed += accepted_slots.bit_count()
    assert committed == 12


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(("size", "ring"), [(SIZES[1], 1), (SIZES[3], 1), (SIZES[5], 0), (SIZES[7], 1)])
def test_rows_of_a_ring_are_written_and_moved_over_its_end(size: tuple[int, int, int, int], ring: int) -> None:
    """Check a layer that is a ring, and one that keeps all rows, on an accelerator with rings."""
    config = cache_config(*size, **{"context": 400, "window": 9})
    rows, accepted = config.cache_rows(ring), 0b10110110 & ((1 << config.slots) - 1)
    assert config.ring is not None
    for committed in (3, config.ring.rows - 2, 2 * config.ring.rows + 1):
        places = [rows.place(committed + slot) for slot in range(config.slots)]
        cache = Cache(config, layers=1, kv_heads=2, context=rows.rows, seed=committed)
        memory = cache.memory()
        new_rows, layers, keys, values = cache.new_rows(config.slots)
        now = settings(cache, committed, own=config.slots, accepted=accepted) | {"place": config.ring.place(committed)}
        items = {"layers": [layer | {"ring": ring} for layer in layers], "new_keys": keys, "new_values": values}
        count = config.slots * len(keys + values)
        outputs = {"requests": count, "data": count}
        apply(memory, run(CacheWriter(config), items, outputs, settings=now), config)
        cache.codes[..., places, :] = new_rows
        assert memory == cache.memory()
        copies, beats = cache.copy_beats(committed, accepted, places)
        outputs = {"requests": len(beats), "data": len(beats)}
        moved = [copy_item({**copy, "ring": ring}) for copy in copies]
        apply(memory, run(CacheWriter(config), {"copies": moved, "beats": beats}, outputs, settings=now), config)
        cache.commit(committed, accepted, places)
        assert memory == cache.memory()


@pytest.mark.parametrize("late", ["new_keys", "new_values"])
def test_rows_and_copies_do_not_wait_for_each_other(late: str) -> None:
    config = cache_config(16, 1, 2, 16)
    cache = Cache(config, layers=1, kv_heads=3, context=9)
    _, layers, keys, values = cache.new_rows(2)
    items = {"new_keys": keys, "new_values": values, late: []}
    collected = run(
        CacheWriter(config),
        {"layers": layers, **items},
        {"requests": 2 * len(keys), "data": 2 * len(keys)},
        settings=settings(cache, 3, own=2),
    )
    assert len({request["address"] for request in collected["requests"]}) == 2 * len(keys)


def watched(writer: CacheWriter) -> tuple[list[int], Callable[[Any], Awaitable[None]]]:
    """Return a list that a process fills with ``idle`` of each cycle, and the process."""
    idle: list[int] = []

    async def watch(ctx: Any) -> None:
        async for _, _, is_idle in ctx.tick().sample(writer.idle):
            idle.append(is_idle)

    return idle, watch


@pytest.mark.rtl
def test_a_chunk_takes_a_cycle_and_idle_follows() -> None:
    config = cache_config(16, 1, 8, 96)
    cache = Cache(config, layers=1, kv_heads=2, context=9)
    _, layers, keys, values = cache.new_rows(8)
    cycles: dict[str, list[int]] = {}
    writer = CacheWriter(config)
    idle, watch = watched(writer)
    count = 8 * len(keys + values)
    run(
        writer,
        {"layers": layers, "new_keys": keys, "new_values": values},
        {"requests": count, "data": count},
        settings=settings(cache, 1, own=8),
        cycles=cycles,
        background=[watch],
    )
    assert cycles["requests"][-1] - cycles["requests"][0] == count - 1
    last = cycles["data"][-1]
    assert not any(idle[1:last])
    assert idle[-1]


def test_a_copy_is_in_progress_until_its_last_beat() -> None:
    """Give the beats so late that for some cycles there is nothing but the copy."""
    config = cache_config(16, 1, 2, 16)
    cache = Cache(config, layers=1, kv_heads=2, context=9)
    copies, beats = cache.copy_beats(3, 0b10)
    cycles: dict[str, list[int]] = {}
    writer = CacheWriter(config)
    idle, watch = watched(writer)
    run(
        writer,
        {"copies": list(map(copy_item, copies)), "beats": beats},
        {"requests": len(beats), "data": len(beats)},
        settings=settings(cache, 3, accepted=0b10),
        idle={"beats": 0.95},
        cycles=cycles,
        background=[watch],
    )
    assert cycles["beats"][0] - cycles["copies"][0] > 10
    assert not any(idle[cycles["copies"][0] : cycles["data"][-1]])
    assert idle[-1]


def test_the_estimate_counts_the_codes() -> None:
    small, large = (CacheWriter(cache_config(16, ports, 8, 16)).resources for ports in (4, 1))
    assert small.lut < large.lut
    assert small.ff < large.ff  # slices hold them in registers


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^address_bits must be an integer from 16 to 64, not 8$"):
        CacheWriter(cache_config(16, 1, 1, 8), address_bits=8)
