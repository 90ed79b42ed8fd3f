from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.matrix.code_memory import CodeMemory
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS
from tests.hw.support.reference_ternary import blocks_of


def replayed(memory: CodeMemory, slots: int, columns: int, lengths: list[int], times: int, **how: Any) -> None:
    """Replay vectors of several blocks, each read several times, the last time without its last block."""
    rng = np.random.default_rng(0)
    vectors = [blocks_of(rng.integers(-127, 128, (slots, n * columns)), columns) for n in lengths]
    passes, expected = [], []
    for blocks in vectors:
        for time in range(times):
            count = max(1, len(blocks) - (time > 0 and time == times - 1))
            passes.append({"fresh": int(time == 0), "blocks": count})
            expected += [{**block, "last": int(i == count - 1)} for i, block in enumerate(blocks[:count])]
    inputs: dict[str, list[Any]] = {"write": [block for blocks in vectors for block in blocks], "passes": passes}
    assert run(memory, inputs, {"output": len(expected)}, **how)["output"] == expected


@pytest.mark.rtl(sample=4)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("slots", "columns", "pieces"), [(1, 4, 1), (2, 8, 2), (1, 8, 8), (3, 5, 1)])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_vector_is_read_as_often_as_requested(
    slots: int, columns: int, pieces: int, times: int, idle: float, stall: float
) -> None:
    memory = CodeMemory(slots=slots, columns=columns, depth=5, pieces=pieces)
    replayed(memory, slots, columns, [3, 1, 5, 2], times, idle=idle, stall=stall)


def test_writing_does_not_wait_for_reading() -> None:
    cycles: dict[str, list[int]] = {}
    memory = CodeMemory(slots=1, columns=8, depth=5, pieces=4)
    replayed(memory, 1, 8, [5], 1, stall=0.95, cycles=cycles)
    assert cycles["write"][-1] - cycles["write"][0] == 4 * 4
    assert cycles["output"][-1] > cycles["write"][-1] + 20


@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_latency_and_throughput_are_as_documented(pieces: int) -> None:
    cycles: dict[str, list[int]] = {}
    memory = CodeMemory(slots=1, columns=8, depth=5, pieces=pieces)
    replayed(memory, 1, 8, [4], 2, cycles=cycles)
    write_cycle = cycles["write"][0] - (pieces - 1)  # taken with its last piece
    assert cycles["output"][0] - write_cycle == pieces + 2
    assert cycles["output"][4] - cycles["passes"][1] >= pieces + 2
    assert cycles["output"][6] - cycles["output"][5] == pieces + 2


def test_a_block_is_one_piece_unless_told_otherwise() -> None:
    whole, parts = CodeMemory(slots=1, columns=8, depth=4), CodeMemory(slots=1, columns=8, depth=4, pieces=1)
    assert whole.resources == parts.resources
    CodeMemory(slots=1, columns=3, depth=4)  # more pieces would have to divide 3 columns


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"pieces": 3}, "pieces must be a power of two that divides 8 columns, not 3"),
        ({"columns": 6, "pieces": 4}, "pieces must be a power of two that divides 6 columns, not 4"),
        ({"style": "x"}, "style must be one of block, ultra, distributed, not 'x'"),
        ({"depth": 0}, "depth must be an integer from 1 to 65536, not 0"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        CodeMemory(**{"slots": 1, "columns": 8, "depth": 2, **parameters})
