from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.top_k import TopK
from edgedec.reference.integer_profile.head import top
from edgedec.reference.integer_profile.values import Logits
from tests.hw.streams import run
from tests.hw.vectors import PATTERNS, awkward

Array = np.ndarray[Any, Any]


def items(x: Array, ids: Array) -> list[dict[str, Any]]:
    """x [slots, n]."""
    count = x.shape[1]
    return [{"logits": x[:, i].tolist(), "id": int(ids[i]), "last": int(i == count - 1)} for i in range(count)]


@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("slots", "k", "sizes"), [(1, 1, [1, 7]), (8, 3, [40, 3]), (2, 8, [30, 9, 12]), (3, 5, [60])])
def test_equal_to_the_reference(slots: int, k: int, sizes: list[int], idle: float, stall: float) -> None:
    rng = np.random.default_rng(k)
    tables = [awkward(rng, slots, size, 32) for size in sizes]
    tables[-1] = rng.integers(-2, 3, tables[-1].shape)  # many equal ones
    cycles: dict[str, list[int]] = {}
    found = run(
        TopK(slots=slots, k=k),
        {"input": [item for x in tables for item in items(x, np.arange(x.shape[1]))]},
        {"output": k * len(tables)},
        idle=idle,
        stall=stall,
        cycles=cycles,
    )["output"]
    assert [item["last"] for item in found] == ([0] * (k - 1) + [1]) * len(tables)
    for at, x in enumerate(tables):
        part = found[at * k : (at + 1) * k]
        one = np.ones(slots, np.int64)
        ids = top(Logits(values=x, mantissa=one, exponent=one), k)
        assert np.array([item["ids"] for item in part])[: x.shape[1]].T.tolist() == ids.tolist()
        kept = np.array([item["logits"] for item in part])[: x.shape[1]].T
        assert kept.tolist() == np.take_along_axis(x, ids, axis=1).tolist()
    if not idle and not stall:
        assert cycles["output"][0] - cycles["input"][sizes[0] - 1] == 2
        assert cycles["input"][sizes[0] - 1] - cycles["input"][0] == sizes[0] - 1


def test_fewer_ids_than_asked_for() -> None:
    x, ids = np.array([[5, -7]]), np.array([3, 1 << 17])
    found = run(TopK(slots=1, k=4), {"input": items(x, ids)}, {"output": 4})["output"]
    assert [item["ids"][0] for item in found] == [3, 1 << 17, 0, 0]
    assert [item["logits"][0] for item in found] == [5, -7, -(1 << 31), -(1 << 31)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"k": 0}, "k must be an integer from 1 to 64, not 0"),
    ],
)
def test_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        TopK(**{"slots": 1, "k": 1, **changed})
