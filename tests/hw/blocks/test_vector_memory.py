from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator

from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.reference.integer_profile.numbers import I64
from tests.hw.support.bench_streams import plain
from tests.hw.support.make_vectors import awkward, to_words

Span = tuple[int, int]


def written_and_read(
    memory: VectorMemory, vectors: list[tuple[I64, list[Span]]], lanes: int, idle: float, stall: float
) -> list[list[dict[str, Any]]]:
    """Write each vector, then read its spans with gaps; return the words by vector."""
    rng = np.random.default_rng(int(10 * idle + stall))
    read_words: list[list[dict[str, Any]]] = []
    lengths = [sum(length for _, length in spans) for _, spans in vectors]

    async def drive(ctx: Any) -> None:
        for i, (x, spans) in enumerate(vectors):
            words = to_words(x, lanes)
            for word in words:
                ctx.set(memory.write.payload, word)
                ctx.set(memory.write.valid, 1)
                assert ctx.get(memory.write.ready)
                await ctx.tick()
                ctx.set(memory.write.valid, 0)
                while rng.random() < idle:
                    await ctx.tick()
            assert ctx.get(memory.written) == len(words)
            for start, length in spans:
                while rng.random() < idle:
                    await ctx.tick()
                ctx.set(memory.reads.payload, {"start": start, "length": length})
                ctx.set(memory.reads.valid, 1)
                await ctx.tick().until(memory.reads.ready)
                ctx.set(memory.reads.valid, 0)
            for _ in range(2000):
                if len(read_words) > i and len(read_words[i]) >= lengths[i]:
                    break
                await ctx.tick()
            for _ in range(5):
                await ctx.tick()

    async def collect(ctx: Any) -> None:
        offered_word: Any = None
        read_words.append([])
        while True:
            ready = rng.random() >= stall
            ctx.set(memory.output.ready, ready)
            _, _, valid, payload = await ctx.tick().sample(memory.output.valid, memory.output.payload)
            assert offered_word is None or (valid and plain(payload) == offered_word)
            offered_word = plain(payload) if valid and not ready else None
            if valid and ready:
                while len(read_words[-1]) == lengths[len(read_words) - 1]:
                    read_words.append([])
                read_words[-1].append(plain(payload))

    simulator = Simulator(memory)
    simulator.add_clock(1e-6)
    simulator.add_testbench(collect, background=True)
    simulator.add_testbench(drive)
    simulator.run()
    return read_words


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.6), (0.4, 0.4)])
@pytest.mark.parametrize(("slots", "lanes", "depth"), [(1, 5, 8), (8, 1, 7), (2, 1, 16), (1, 1, 1)])
def test_reads_replay_the_written_vector(slots: int, lanes: int, depth: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng(depth)
    vectors = []
    for count in (depth, max(1, depth // 2), depth):
        starts = rng.integers(0, count, 6).tolist()
        spans = [(0, count), (0, count), *((s, int(rng.integers(0, count - s + 1))) for s in starts), (count - 1, 1)]
        vectors.append((awkward(rng, slots, count * lanes - (lanes > 2)), spans))
    memory = VectorMemory(width=27, slots=slots, depth=depth, lanes=lanes)
    read_back = written_and_read(memory, vectors, lanes, idle, stall)
    for (x, spans), words_read in zip(vectors, read_back, strict=True):
        words = to_words(x, lanes)
        want = [
            {"values": words[i]["values"], "last": int(i == start + length - 1)}
            for start, length in spans
            for i in range(start, start + length)
        ]
        assert words_read == want


def test_latency_and_throughput_are_as_documented() -> None:
    memory = VectorMemory(width=8, slots=1, depth=8)
    valids: list[int] = []

    async def drive(ctx: Any) -> None:
        ctx.set(memory.output.ready, 1)
        ctx.set(memory.reads.valid, 1)
        ctx.set(memory.reads.payload, {"start": 0, "length": 4})
        count = 0
        for _ in range(16):
            _, _, ready, valid = await ctx.tick().sample(memory.reads.ready, memory.output.valid)
            valids.append(valid)
            count += ready
            if count == 3:
                ctx.set(memory.reads.valid, 0)

    simulator = Simulator(memory)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()
    assert valids == [0] * 3 + [1] * 12 + [0]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"depth": 0}, "depth must be an integer from 1 to 65536, not 0"),
        ({"depth": 4, "slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"depth": 4, "style": "big"}, "style must be 'block' or 'ultra', not 'big'"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        VectorMemory(**{"width": 8, "slots": 1, **parameters})
