"""Run norm, quantizer, ternary linear and residual in a ring: compare steps with the integer profile, and count their
cycles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.blocks.payloads import words
from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.hw.compiler.ternary_image import TernaryLayout
from edgedec.hw.matrix.matrix_path import MatrixPath
from edgedec.hw.vector.quantize_path import QuantizePath
from edgedec.hw.vector.residual import Residual
from edgedec.reference.integer_profile.numbers import I64, saturate
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, from_words, to_words
from tests.hw.support.reference_matrices import Matrix, Norm, items_of, quantized, random_matrix, some_norm

_WIDE = 27


class Ring(Component):
    """Compute x -> x + linear(quantize(norm(x))) that many times; x comes from ``input`` once and leaves after each
    step.
    """

    def __init__(self, *, beat_bytes: int, slots: int, tile_words: int, width: int, steps: int) -> None:
        self._width, self._steps = width, steps
        depth = -(-width // beat_bytes)
        self._quantize = QuantizePath(beat_bytes=beat_bytes, slots=slots, depth=width)
        self._matrix = MatrixPath(beat_bytes=beat_bytes, slots=slots, tile_words=tile_words, depth=depth, int8=False)
        self._residual = Residual(slots=slots)
        self._kept = VectorMemory(width=_WIDE, slots=slots, depth=width)
        self._outer: dict[str, Component] = {
            **dict.fromkeys(("vectors", "gains", "eps"), self._quantize),
            **dict.fromkeys(("matrices", "weights", "rows"), self._matrix),
        }
        ports = {name: part.signature.members[name] for name, part in self._outer.items()}
        vector = words(_WIDE, slots)
        super().__init__({**ports, "input": In(vector), "output": Out(vector)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        quantize, matrix, residual, memory = self._quantize, self._matrix, self._residual, self._kept
        m.submodules += [quantize, matrix, residual, memory]
        for name, part in self._outer.items():
            connect(m, flipped(getattr(self, name)), getattr(part, name))
        connect(m, quantize.codes, matrix.codes)
        connect(m, quantize.scales, matrix.scales)
        wide, narrow = matrix.output, residual.input
        m.d.comb += [narrow.valid.eq(wide.valid), wide.ready.eq(narrow.ready), narrow.p.last.eq(wide.p.last)]
        for to, of in zip(narrow.p["values"], wide.p["values"], strict=True):
            m.d.comb += [to[slot].eq(of[slot]) for slot in range(len(of))]
        connect(m, memory.output, residual.addend)
        # x is in the memory; the sum takes its place, element by element after the read.
        has_input, sums, requested, step = Signal(), residual.output, Signal(), Signal(range(self._steps + 1))
        again = step + 1 != self._steps
        x_payload = Mux(has_input, sums.payload.as_value(), self.input.payload.as_value())
        accepts = quantize.input.ready | (has_input & ~again)
        m.d.comb += [
            memory.reads.p.length.eq(self._width),
            memory.reads.valid.eq(has_input & ~requested),
            quantize.input.payload.eq(x_payload),
            memory.write.payload.eq(x_payload),
            self.output.payload.eq(sums.payload),
            self.input.ready.eq(quantize.input.ready & ~has_input),
            quantize.input.valid.eq(Mux(has_input, sums.valid & again & self.output.ready, self.input.valid)),
            self.output.valid.eq(has_input & sums.valid & accepts),
            sums.ready.eq(has_input & self.output.ready & accepts),
            memory.write.valid.eq(Mux(has_input, sums.valid & sums.ready, self.input.valid & self.input.ready)),
        ]
        with m.If(self.input.valid & self.input.ready & self.input.p.last):
            m.d.sync += has_input.eq(1)
        with m.If(memory.reads.valid & memory.reads.ready):
            m.d.sync += requested.eq(1)
        with m.If(sums.valid & sums.ready & sums.p.last):
            m.d.sync += [requested.eq(0), step.eq(step + 1)]
        return m


def steps_of(
    rng: np.random.Generator, x: I64, layouts: list[TernaryLayout]
) -> tuple[list[Norm], list[Matrix], list[I64]]:
    """Return norms and matrices that keep the values large, and x after each step."""
    norms, matrices, results = [], [], []
    for layout in layouts:
        norms.append(some_norm(rng, layout.columns))
        codes, scale = quantized(x, norms[-1])
        exponents = scale.exponent[scale.mantissa > 0]
        matrices.append(random_matrix(rng, layout, base=int(exponents.max(initial=-200)) + 10))
        x = saturate(x + matrices[-1].times(codes, scale), _WIDE)
        results.append(x)
    return norms, matrices, results


def check(
    beat_bytes: int, slots: int, width: int, *, tile_words: int, planes: int = 1, group_blocks: int = 0, **how: Any
) -> tuple[TernaryLayout, dict[str, list[int]]]:
    """Compare three steps; return the cycles of each port."""
    rng = np.random.default_rng([beat_bytes, slots, width])
    layout = TernaryLayout(
        beat_bytes=beat_bytes,
        tile_words=tile_words,
        planes=planes,
        rows=width,
        columns=width,
        group_size=group_blocks * beat_bytes,
    )
    x = awkward(rng, slots, width)
    norms, matrices, results = steps_of(rng, x, [layout] * 3)
    inputs: dict[str, list[Any]] = {
        "vectors": [{"normed": 1, "blocks": layout.blocks}] * 3,
        "input": to_words(x),
        "gains": [item for norm in norms for item in items_of(norm.gain)],
        "eps": [norm.eps for norm in norms],
        "matrices": [matrix.descriptor() for matrix in matrices],
        "weights": [beat for matrix in matrices for beat in matrix.image()],
        "rows": [row for matrix in matrices for row in matrix.rows()],
    }
    cycles: dict[str, list[int]] = {}
    ring = Ring(beat_bytes=beat_bytes, slots=slots, tile_words=tile_words, width=width, steps=3)
    outputs = run(ring, inputs, {"output": 3 * width}, cycles=cycles, **how)["output"]
    for actual, want in zip(from_words(outputs, [width] * 3), results, strict=True):
        assert np.array_equal(actual, want)
    return layout, cycles


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("slots", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_steps_equal_the_profile(slots: int, idle: float, stall: float) -> None:
    check(8, slots, 37, tile_words=3, planes=2, group_blocks=2, idle=idle, stall=stall)


def bubbles(layout: TernaryLayout, cycles: dict[str, list[int]]) -> list[int]:
    """Return the cycles from the last beat of a matrix to the first of the next one, which depends on it."""
    beats = cycles["weights"]
    return [beats[i] - beats[i - 1] for i in range(layout.beats, len(beats), layout.beats)]


def dependency(beat_bytes: int, slots: int) -> int:
    """Return the expected ``bubbles``, component by component, without the rows that wait."""
    engine = {8: 5, 16: 6, 64: 8}[beat_bytes]
    sums, rows, drain, residual, to_block = engine + 3, 3 + 2, 13, 2, slots + 36 + beat_bytes + 4
    return sums + rows + drain + residual + to_block + beat_bytes // 8 + 2 + 13


def waiting(layout: TernaryLayout) -> int:
    """Return the rows of the only tile that wait when its last word arrives; words of at most five rows come one per
    cycle.
    """
    assert layout.words <= layout.tile_words
    return layout.rows - layout.words


@pytest.mark.rtl
@pytest.mark.parametrize(("beat_bytes", "slots"), [(8, 1), pytest.param(16, 2, marks=pytest.mark.nightly)])
def test_a_dependency_costs_as_many_cycles_as_its_parts(beat_bytes: int, slots: int) -> None:
    for width in (3 * beat_bytes + 1, 5 * beat_bytes - 2):
        layout, cycles = check(beat_bytes, slots, width, tile_words=-(-width // 5))
        assert bubbles(layout, cycles) == [dependency(beat_bytes, slots) + waiting(layout)] * 2


@pytest.mark.rtl
def test_rows_of_another_tile_do_not_wait() -> None:
    """Use two tiles of 4 words: while the second one's beats come, rows of the first leave."""
    layout, cycles = check(8, 1, 36, tile_words=4)
    assert layout.words == 8
    assert bubbles(layout, cycles) == [dependency(8, 1) + 4 * 4 - 4] * 2


@pytest.mark.nightly
def test_a_dependency_at_full_width_costs_166_cycles_and_the_rows_that_wait() -> None:
    layout, cycles = check(64, 8, 130, tile_words=26)
    assert bubbles(layout, cycles) == [dependency(64, 8) + waiting(layout)] * 2
    assert dependency(64, 8) == 166
