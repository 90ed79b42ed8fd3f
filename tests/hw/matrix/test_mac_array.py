from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.matrix.mac_array import MacArray, WorkKind, score_bits
from tests.hw.support.bench_streams import run


def beats(rng: np.random.Generator, count: int, lanes: int) -> np.ndarray[Any, Any]:
    values = rng.integers(-128, 128, (count, lanes))
    values[: count // 4] = rng.choice([-128, 127], (count // 4, 1))
    return values


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(
    ("lanes", "slots", "chunk"), [(2, 1, 1), (4, 8, 4), (8, 2, 2), (16, 3, 8), (8, 1, 8), (16, 2, 4)]
)
@pytest.mark.parametrize("idle", [0.0, {"codes": 0.7, "weights": 0.0}, 0.4])
def test_linear_products_are_exact(lanes: int, slots: int, chunk: int, idle: Any) -> None:
    rng = np.random.default_rng(lanes)
    sizes = [1, 1, 5, 2, 7]  # rows of each block
    blocks = rng.integers(-127, 128, (len(sizes), lanes, slots))
    blocks[0], blocks[1] = 127, -127
    weights = beats(rng, sum(sizes), lanes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    last = np.append(owner[1:] != owner[:-1], True)
    cycles: dict[str, list[int]] = {}
    collected = run(
        MacArray(lanes=lanes, slots=slots, chunk=chunk),
        {
            "codes": [{"codes": block.tolist(), "last": 0} for block in blocks],
            "weights": [{"values": w.tolist(), "last": int(end)} for w, end in zip(weights, last, strict=True)],
        },
        {"sums": len(weights), "scores": 0, "columns": 0},
        idle=idle,
        cycles=cycles,
    )["sums"]
    assert [item["sums"] for item in collected] == np.einsum("nl,nls->ns", weights, blocks[owner]).tolist()
    assert [item["last"] for item in collected] == last.tolist()
    if not idle:
        assert np.subtract(cycles["sums"], cycles["weights"]).tolist() == [3 + lanes.bit_length() - 1] * len(collected)
        assert np.ptp(cycles["weights"]) == len(weights) - 1  # one per cycle, across blocks


@pytest.mark.rtl(sample=3)
@pytest.mark.parametrize("idle", [0.0, 0.5])
@pytest.mark.parametrize(
    ("lanes", "slots", "chunk"), [(2, 2, 1), (4, 1, 4), (8, 2, 2), (16, 2, 4), (8, 1, 8), (32, 1, 8), (32, 1, 4)]
)
def test_scores_columns_and_linear_in_turn_are_exact(lanes: int, slots: int, chunk: int, idle: float) -> None:
    rng = np.random.default_rng(lanes)
    count, positions, query_bits = 40, lanes // chunk, 12
    values, weights = beats(rng, count, lanes), beats(rng, 12, lanes)
    kinds = rng.choice([WorkKind.SCORES, WorkKind.COLUMNS], count)
    limit = (1 << (query_bits - 1)) - 1
    queries, chances = (
        rng.integers(-limit, limit + 1, (count, lanes, slots)),
        rng.integers(0, 65536, (count, lanes, slots)),
    )
    queries[:6], chances[:6] = rng.choice([-limit, limit], (6, 1, 1)), 65535
    scored = kinds == WorkKind.SCORES
    operands = np.where(scored[:, None, None], queries, chances)
    block = rng.integers(-127, 128, (lanes, slots))
    collected = run(
        MacArray(lanes=lanes, slots=slots, chunk=chunk, query_bits=query_bits),
        {
            "codes": [{"codes": block.tolist(), "last": 1}],
            "weights": [{"values": w.tolist(), "last": 0} for w in weights],
            "work": [
                {"values": v.tolist(), "operands": o.tolist(), "kind": k}
                for v, o, k in zip(values, operands, kinds, strict=True)
            ],
        },
        {"scores": int(scored.sum()), "columns": int((~scored).sum()), "sums": len(weights)},
        idle=idle,
    )
    products = values[:, :, None] * operands
    assert collected["scores"] == products[scored].reshape(-1, positions, chunk, slots).sum(2).tolist()
    assert collected["columns"] == products[~scored].reshape(-1, chunk, positions, slots).sum(2).tolist()
    assert [item["sums"] for item in collected["sums"]] == (weights @ block).tolist()


def test_queries_have_12_bits_unless_they_are_given() -> None:
    assert len(MacArray(lanes=8, slots=1, chunk=4).scores.payload[0][0]) == score_bits(12, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lanes": 12}, "lanes must be a power of two, not 12"),
        ({"lanes": 128}, "lanes must be an integer from 2 to 64, not 128"),
        ({"slots": 0}, "slots must be an integer from 1 to 8, not 0"),
        ({"chunk": 3}, "chunk must be a power of two, not 3"),
        ({"chunk": 16}, "chunk must be an integer from 1 to 8, not 16"),
        ({"query_bits": 17}, "query_bits must be an integer from 8 to 16, not 17"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        MacArray(**{"lanes": 8, "slots": 2, "chunk": 4, **changes})
