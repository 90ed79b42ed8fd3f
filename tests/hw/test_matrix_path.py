"""Matrices from codes and beats to drained vectors, against the integer profile's linear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.hw.compiler.ternary_image import TernaryLayout
from edgedec.hw.matrix_path import MatrixPath
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.values import Scale
from tests.hw.matrices import TernaryMatrix, floats, random_matrix
from tests.hw.streams import run
from tests.hw.ternary import blocks_of
from tests.hw.vectors import PATTERNS, from_words

Vector = tuple[I64, Scale]


def some_vector(rng: np.random.Generator, slots: int, columns: int) -> Vector:
    mantissa = rng.integers(1 << 15, 1 << 16, slots) * (rng.random(slots) < 0.9)
    exponent = rng.integers(-20, 5, slots) * (mantissa > 0)
    return rng.integers(-127, 128, (slots, columns)), Scale(mantissa=mantissa, exponent=exponent)


def products(
    path: MatrixPath, matrices: list[TernaryMatrix], vectors: list[Vector], beat_bytes: int, **how: Any
) -> tuple[list[I64], list[I64]]:
    """Found and wanted."""
    inputs: dict[str, list[Any]] = {
        "matrices": [matrix.descriptor() for matrix in matrices],
        "codes": [block for codes, _ in vectors for block in blocks_of(codes, beat_bytes)],
        "scales": [floats(scale) for _, scale in vectors],
        "weights": [beat for matrix in matrices for beat in matrix.image()],
        "biases": [word for matrix in matrices for word in matrix.biases()],
    }
    words = sum(matrix.layout.words for matrix in matrices)
    found = run(path, inputs, {"output": words}, **how)["output"]
    used = np.cumsum([matrix.fresh for matrix in matrices]) - 1
    wanted = [matrix.times(*vectors[i]) for matrix, i in zip(matrices, used, strict=True)]
    return from_words(found, [matrix.layout.rows for matrix in matrices]), wanted


def assert_equal(found: list[I64], wanted: list[I64]) -> None:
    for i, (got, want) in enumerate(zip(found, wanted, strict=True)):
        assert np.array_equal(got, want), f"matrix {i}"


@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("beat_bytes", "slots"), [(8, 1), (8, 2), (16, 2)])
def test_matrices_of_all_kinds_in_a_row(beat_bytes: int, slots: int, idle: float, stall: float) -> None:
    rng = np.random.default_rng([beat_bytes, slots, int(10 * idle)])
    kinds = [(7, 3 * beat_bytes + 1, 1, 0), (23, beat_bytes, 2, 2), (5, 5 * beat_bytes - 3, 2, 2), (36, 3, 3, 1)]
    vectors = [some_vector(rng, slots, columns) for _, columns, _, _ in kinds]
    matrices = []
    for rows, columns, planes, group_blocks in kinds:
        for fresh in (True, False):  # each vector is used twice
            layout = TernaryLayout(
                beat_bytes=beat_bytes,
                tile_words=3,
                planes=planes,
                rows=rows + 4 * (not fresh),
                columns=columns,
                group_size=group_blocks * beat_bytes,
            )
            matrices.append(random_matrix(rng, layout, base=int(rng.integers(-10, 14)), wide=fresh, fresh=fresh))
    path = MatrixPath(beat_bytes=beat_bytes, slots=slots, tile_words=3, depth=5)
    assert_equal(*products(path, matrices, vectors, beat_bytes, idle=idle, stall=stall))


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_matrices_of_all_shapes(data: st.DataObject) -> None:
    slots, tile_words = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    scaling = data.draw(st.booleans())
    matrices, vectors = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        layout = TernaryLayout(
            beat_bytes=8,
            tile_words=tile_words,
            planes=data.draw(st.integers(1, 3)),
            rows=data.draw(st.integers(1, 31)),
            columns=data.draw(st.integers(1, 30)),
            group_size=data.draw(st.sampled_from([0, 8, 16])) if scaling else 0,
        )
        matrices.append(random_matrix(rng, layout, base=int(rng.integers(-20, 10))))
        vectors.append(some_vector(rng, slots, layout.columns))
    path = MatrixPath(beat_bytes=8, slots=slots, tile_words=tile_words, depth=4, scaling=scaling)
    chance = st.sampled_from([0.0, 0.3, 0.7])
    assert_equal(*products(path, matrices, vectors, 8, idle=data.draw(chance), stall=data.draw(chance)))


def test_a_beat_per_cycle_within_planes_tiles_and_groups() -> None:
    """Words of 20 a tile: tables of the next block are made meanwhile. Mantissas do not stop the stream either."""
    rng = np.random.default_rng(1)
    layout = TernaryLayout(beat_bytes=8, tile_words=20, planes=2, rows=200, columns=40, group_size=16)
    matrix, cycles = random_matrix(rng, layout, base=0), dict[str, list[int]]()
    path = MatrixPath(beat_bytes=8, slots=1, tile_words=20, depth=5)
    assert_equal(*products(path, [matrix], [some_vector(rng, 1, 40)], 8, cycles=cycles))
    beats = cycles["weights"]
    assert len(beats) == layout.beats == 2 * 2 * (5 * 20 + 3 * 20)
    assert beats[-1] - beats[20] == layout.beats - 21


def test_scales_may_come_long_after_the_codes() -> None:
    rng = np.random.default_rng(2)
    layout = TernaryLayout(beat_bytes=8, tile_words=2, planes=1, rows=33, columns=20)
    cycles: dict[str, list[int]] = {}
    path = MatrixPath(beat_bytes=8, slots=2, tile_words=2, depth=3)
    how = {"idle": {"scales": 0.995}, "cycles": cycles, "seed": 1}
    assert_equal(*products(path, [random_matrix(rng, layout, base=0)], [some_vector(rng, 2, 20)], 8, **how))
    assert cycles["scales"][0] > cycles["weights"][2]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beat_bytes": 4}, "beat_bytes must be at least 5 with scaling, not 4"),
        ({"beat_bytes": 9}, "beat_bytes must not be a multiple of 3, not 9"),
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"tile_words": 0}, "tile_words must be an integer from 1 to 65535, not 0"),
        ({"depth": 0}, "depth must be an integer from 1 to 65535, not 0"),
    ],
)
def test_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        MatrixPath(**{"beat_bytes": 8, "slots": 1, "tile_words": 2, "depth": 2, **parameters})
