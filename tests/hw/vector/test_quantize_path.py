"""Compare vectors to codes, normed and not, with the integer profile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator

from edgedec.hw.vector.quantize_path import QuantizePath
from edgedec.reference.integer_profile.numbers import I64
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, to_words
from tests.hw.support.reference_matrices import Norm, floats, items_of, quantized, some_norm
from tests.hw.support.reference_ternary import blocks_of


def check(path: QuantizePath, vectors: list[I64], norms: list[Norm | None], beat_bytes: int, **how: Any) -> None:
    present = [norm for norm in norms if norm is not None]
    expected = [quantized(x, norm) for x, norm in zip(vectors, norms, strict=True)]
    blocks = [blocks_of(codes, beat_bytes) for codes, _ in expected]
    inputs: dict[str, list[Any]] = {
        "vectors": [{"normed": int(n is not None), "blocks": len(b)} for n, b in zip(norms, blocks, strict=True)],
        "input": [word for x in vectors for word in to_words(x)],
        "gains": [word for norm in present for word in items_of(norm.gain)],
        "eps": [norm.eps for norm in present],
    }
    collected = run(path, inputs, {"codes": sum(map(len, blocks)), "scales": len(vectors)}, **how)
    assert collected["codes"] == [block for vector in blocks for block in vector]
    assert collected["scales"] == [floats(scale) for _, scale in expected]


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("beat_bytes", "slots"), [(8, 1), (16, 2), (4, 3)])
def test_vectors_of_all_kinds_equal_the_profile(beat_bytes: int, slots: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng([beat_bytes, slots, int(10 * idle)])
    widths = [7, 23, 5, 1, 40, 16, 33]
    vectors = [awkward(rng, slots, width) for width in widths]
    norms = [some_norm(rng, width) if rng.integers(2) else None for width in widths]
    path = QuantizePath(beat_bytes=beat_bytes, slots=slots, depth=max(widths))
    check(path, vectors, norms, beat_bytes, idle=idle, stall=stall)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("normed", [False, True])
def test_latency_is_as_documented(normed: bool) -> None:
    rng = np.random.default_rng(3)
    cycles: dict[str, list[int]] = {}
    slots, width = 2, 80
    norm = some_norm(rng, width) if normed else None
    path = QuantizePath(beat_bytes=16, slots=slots, depth=width)
    check(path, [awkward(rng, slots, width)], [norm], 16, cycles=cycles)
    assert cycles["input"][-1] - cycles["input"][0] == width - 1
    assert cycles["codes"][0] - cycles["input"][-1] == slots + 16 + 36 + 4 * normed
    assert cycles["codes"][-1] - cycles["codes"][0] <= 4 * (16 + 2)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beat_bytes": 65}, "beat_bytes must be an integer from 1 to 64, not 65"),
        ({"slots": 0}, "slots must be an integer from 1 to 8, not 0"),
        ({"depth": 0}, "depth must be an integer from 1 to 65536, not 0"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        QuantizePath(**{"beat_bytes": 8, "slots": 1, "depth": 2, **parameters})


def test_the_writer_of_taps_is_idle_until_a_word_comes_and_after_its_beat() -> None:
    path, beats = QuantizePath(beat_bytes=4, slots=1, depth=2, taps_port_bytes=4), list[list[int]]()

    async def bench(ctx: Any) -> None:
        for port in (path.requests, path.data, path.codes, path.scales):
            ctx.set(port.ready, 1)
        ctx.set(path.vectors.payload, {"normed": 0, "blocks": 1, "tap": 1, "tap_norm": 0, "tap_page": 1})
        ctx.set(path.vectors.valid, 1)
        await ctx.tick().until(path.vectors.ready)
        ctx.set(path.vectors.valid, 0)
        assert ctx.get(path.taps_idle) == 1
        ctx.set(path.input.payload, {"values": [[7]], "last": 1})
        ctx.set(path.input.valid, 1)
        await ctx.tick().until(path.input.ready)
        ctx.set(path.input.valid, 0)
        assert ctx.get(path.taps_idle) == 0
        for _ in range(20):
            _, _, valid, beat = await ctx.tick().sample(path.data.valid, path.data.payload)
            beats.extend([list(beat)] if valid else [])
        assert beats == [[7, 0, 0, 0]]
        assert ctx.get(path.taps_idle) == 1

    simulator = Simulator(path)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
