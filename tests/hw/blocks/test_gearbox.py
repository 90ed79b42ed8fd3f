from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.blocks.gearbox import Gearbox
from edgedec.reference.integer_profile.numbers import I64
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, to_words


def expected(x: I64, columns: int, blocks: int) -> list[dict[str, Any]]:
    padded = np.zeros((x.shape[0], max(blocks * columns, x.shape[1])), np.int64)
    padded[:, : x.shape[1]] = x
    return [
        {"codes": padded[:, i * columns : (i + 1) * columns].T.tolist(), "last": int(i == blocks - 1)}
        for i in range(blocks)
    ]


def geared(vectors: list[I64], blocks: list[int], columns: int, lanes: int, **how: Any) -> list[dict[str, Any]]:
    inputs: dict[str, list[Any]] = {"input": [word for x in vectors for word in to_words(x, lanes)], "blocks": blocks}
    return run(
        Gearbox(slots=vectors[0].shape[0], columns=columns, lanes=lanes), inputs, {"output": sum(blocks)}, **how
    )["output"]


@pytest.mark.nightly(sample=10)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(
    ("slots", "columns", "lanes"),
    [
        (1, 4, 5),
        (2, 8, 5),
        (1, 16, 5),
        (3, 16, 1),
        (1, 1, 5),
        (1, 5, 5),
        (1, 3, 7),
        (1, 10, 4),
        (8, 8, 5),
        (1, 1, 1),
        (2, 8, 1),
    ],
)
def test_vectors_of_every_length_are_cut_into_blocks(
    slots: int, columns: int, lanes: int, idle: float, stall: float
) -> None:
    rng = np.random.default_rng(columns)
    longest = 2 * columns * lanes + 2 if slots < 8 else 50
    widths = [*range(1, longest, 1 + (longest > 50)), columns, 1]
    vectors = [rng.integers(-127, 128, (slots, width)) for width in widths]
    blocks = [-(-width // columns) for width in widths]
    collected = geared(vectors, blocks, columns, lanes, idle=idle, stall=stall, limit=100_000)
    assert collected == [block for x, n in zip(vectors, blocks, strict=True) for block in expected(x, columns, n)]


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("lanes", [1, 5])
@pytest.mark.parametrize(("slots", "columns"), [(1, 64), (8, 64), (2, 32)])
def test_the_sizes_of_the_engine_are_cut_without_a_pause(slots: int, columns: int, lanes: int) -> None:
    rng = np.random.default_rng(1)
    widths = [320, 63, 64, 65, 1, 5 * columns + 7] if slots < 8 else [193, 64]
    vectors = [rng.integers(-127, 128, (slots, width)) for width in widths]
    blocks = [-(-width // columns) for width in widths]
    cycles: dict[str, list[int]] = {}
    collected = geared(vectors, blocks, columns, lanes, cycles=cycles)
    assert collected == [block for x, n in zip(vectors, blocks, strict=True) for block in expected(x, columns, n)]
    gaps = np.diff(cycles["output"][: blocks[0]])
    assert gaps.max() <= -(-columns // lanes) + 2


@pytest.mark.parametrize("lanes", [1, 5])
def test_vectors_may_be_shorter_or_longer_than_their_blocks(lanes: int) -> None:
    rng = np.random.default_rng(2)
    cases = [(1, 3), (40, 2), (16, 0), (5, 1), (33, 1), (8, 4), (7, 1)]  # width, blocks of 8
    vectors = [rng.integers(-127, 128, (2, width)) for width, _ in cases]
    collected = geared(vectors, [n for _, n in cases], 8, lanes)
    assert collected == [block for x, (_, n) in zip(vectors, cases, strict=True) for block in expected(x, 8, n)]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"slots": 1, "columns": 65}, "columns must be an integer from 1 to 64, not 65"),
        ({"slots": 0, "columns": 64}, "slots must be an integer from 1 to 8, not 0"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Gearbox(**parameters)
