"""Compare what vectors write to the output, through the quantizer that they pass, with what the interpreter writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator
from numpy.typing import NDArray

from edgedec.hw.compiler.output_places import tap_places
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction, Opcode
from edgedec.hw.logits.logits_path import PIECE_BEATS
from edgedec.hw.logits.tap_writer import TapQueue
from edgedec.hw.vector.quantize_path import QuantizePath
from edgedec.reference.integer_profile.numbers import I64, round_shift
from edgedec.reference.integer_profile.ops.rms_norm import root_mean_square, sums_of_squares
from edgedec.reference.integer_profile.values import Normed
from edgedec.sim.interpreter.taps import write_taps
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, to_words
from tests.hw.support.reference_matrices import Norm, floats, items_of, quantized, some_norm
from tests.hw.support.reference_ternary import blocks_of

PLANS = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 1), (1, 0))  # tap and tap_norm of the vectors
WIDTHS = (7, 70, 23, 33, 1, 5, 40)


def normed(x: I64, norm: Norm) -> Normed:
    """Return the product and the root of a norm by the profile."""
    small, big = sums_of_squares(x)
    root, exponent = root_mean_square(small + norm.eps, big)
    return Normed(y=round_shift(x * norm.gain, 15), root=root, exponent=exponent)


def written(requests: list[dict[str, int]], beats: list[list[int]], port_bytes: int, size: int) -> NDArray[np.uint8]:
    """Return a buffer of ``size`` bytes after the requests; no byte may be written twice."""
    buffer, seen, left = np.zeros(size, np.uint8), np.zeros(size, np.bool_), list(beats)
    for request in requests:
        count = request["bytes"] // port_bytes
        assert request["bytes"] % port_bytes == 0 < count <= PIECE_BEATS
        part = slice(request["offset"], request["offset"] + request["bytes"])
        assert not seen[part].any()
        buffer[part], seen[part] = np.array(left[:count], np.uint8).ravel(), True
        left = left[count:]
    assert not left
    return buffer


class Case:
    """Vectors with their plans, what they write, and what they become."""

    def __init__(self, slots: int, beat_bytes: int, port_bytes: int, seed: int) -> None:
        rng, self.port_bytes, self.beat_bytes = np.random.default_rng(seed), port_bytes, beat_bytes
        config = AcceleratorConfig(
            slots=slots, beat_bytes=beat_bytes, ports=beat_bytes // port_bytes, taps=True, top_k=4
        )
        self.vectors = [awkward(rng, slots, width) for width in WIDTHS]
        self.norms = [
            some_norm(rng, width) if tap_norm or rng.integers(2) else None
            for width, (_, tap_norm) in zip(WIDTHS, PLANS, strict=True)
        ]
        self.plans, self.expected, page, sizes = list[dict[str, int]](), np.zeros(1 << 20, np.uint8), 3, []
        for x, norm, (tap, tap_norm) in zip(self.vectors, self.norms, PLANS, strict=True):
            fields = {"blocks": -(-x.shape[1] // beat_bytes), "normed": int(norm is not None)}
            fields |= {"tap": tap, "tap_norm": tap_norm, "tap_page": page if tap or tap_norm else 0}
            self.plans.append(fields)
            one = Instruction(Opcode.VECTOR, fields)
            write_taps(config, one, self.expected, x, None if norm is None else normed(x, norm))
            places = tap_places(config, one)
            if places is not None:
                page = places.end >> 12
                sizes += [x.shape[1] * 4 << (slots - 1).bit_length()] * (tap + tap_norm) + [8 * slots] * tap_norm
        beats = [-(-size // port_bytes) for size in sizes]
        self.counts = {"requests": sum(-(-count // PIECE_BEATS) for count in beats), "data": sum(beats)}
        assert page << 12 <= self.expected.size

    def check(self, slots: int, **how: Any) -> None:
        """Run the vectors through the quantizer."""
        blocks = [
            blocks_of(quantized(x, norm)[0], self.beat_bytes) for x, norm in zip(self.vectors, self.norms, strict=True)
        ]
        scales = [floats(quantized(x, norm)[1]) for x, norm in zip(self.vectors, self.norms, strict=True)]
        present = [norm for norm in self.norms if norm is not None]
        inputs: dict[str, list[Any]] = {
            "vectors": self.plans,
            "input": [word for x in self.vectors for word in to_words(x)],
            "gains": [word for norm in present for word in items_of(norm.gain)],
            "eps": [norm.eps for norm in present],
        }
        path = QuantizePath(beat_bytes=self.beat_bytes, slots=slots, depth=max(WIDTHS), taps_port_bytes=self.port_bytes)
        outputs = {"codes": sum(map(len, blocks)), "scales": len(scales), **self.counts}
        collected = run(path, inputs, outputs, **how)
        assert collected["codes"] == [block for vector in blocks for block in vector]
        assert collected["scales"] == scales
        buffer = written(collected["requests"], collected["data"], self.port_bytes, self.expected.size)
        np.testing.assert_array_equal(buffer, self.expected)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(
    ("slots", "beat_bytes", "port_bytes"), [(1, 8, 4), (2, 16, 8), (3, 8, 8), (8, 16, 16), (1, 64, 16)]
)
def test_vectors_write_what_the_interpreter_writes(
    slots: int, beat_bytes: int, port_bytes: int, idle: float, stall: float
) -> None:
    Case(slots, beat_bytes, port_bytes, seed=slots).check(slots, idle=idle, stall=stall)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("lazy", ["requests", "data"])
def test_a_norm_waits_for_a_writer_that_takes_nothing_for_long(lazy: str) -> None:
    Case(2, 8, 4, seed=9).check(2, stall={lazy: 0.95}, limit=60_000)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("slots", "port_bytes", "pace"), [(1, 4, 1), (4, 16, 1), (8, 16, 2), (3, 4, 4)])
def test_an_element_takes_as_many_cycles_as_it_has_beats(slots: int, port_bytes: int, pace: int) -> None:
    x, cycles = np.zeros((slots, 40), np.int64), dict[str, list[int]]()
    count = 40 * pace
    run(
        TapQueue(slots=slots, port_bytes=port_bytes),
        {"offset": [4096], "input": to_words(x)},
        {"requests": -(-count // PIECE_BEATS), "data": count},
        cycles=cycles,
    )
    assert (cycles["input"][-1] - cycles["input"][0]) / 39 == pytest.approx(pace, abs=0.03 * pace)
    assert cycles["requests"][0] - cycles["input"][PIECE_BEATS // pace - 1] == 2


def test_two_pieces_wait_for_a_writer_that_takes_nothing() -> None:
    """Count beats of one element each: two pieces in the memory of the queue, two in its registers, and one before it."""
    queue, taken = TapQueue(slots=1, port_bytes=4), 0

    async def bench(ctx: Any) -> None:
        nonlocal taken
        ctx.set(queue.offset.valid, 1)
        ctx.set(queue.input.valid, 1)
        for _ in range(4 * PIECE_BEATS):
            _, _, ready = await ctx.tick().sample(queue.input.ready)
            taken += ready

    simulator = Simulator(queue)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert taken == 2 * PIECE_BEATS + 2 + 1
