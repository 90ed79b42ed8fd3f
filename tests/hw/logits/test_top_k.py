from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.logits.top_k import TopK
from edgedec.reference.integer_profile.head import top
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.values import Logits
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward

EMPTY = (-(1 << 31), 0)


def items(x: I64, ids: I64) -> list[dict[str, int]]:
    """Return the items of x [slots, n], the slots in turn."""
    slots, count = x.shape
    return [
        {"logit": int(x[slot, i]), "id": int(ids[i]), "last": int((i, slot) == (count - 1, slots - 1))}
        for i in range(count)
        for slot in range(slots)
    ]


def expected_ranks(x: I64, ids: I64, k: int) -> list[tuple[int, int]]:
    """Return (logit, id) rank by rank, the slots in turn, by the reference's own order."""
    slots, count = x.shape
    ones = np.ones(slots, np.int64)
    order = top(Logits(values=x, mantissa=ones, exponent=ones), k)
    return [
        (int(x[slot, order[slot, rank]]), int(ids[order[slot, rank]])) if rank < count else EMPTY
        for rank in range(k)
        for slot in range(slots)
    ]


def tables(rng: np.random.Generator, slots: int, sizes: list[int]) -> list[I64]:
    """Draw equal logits with the last one largest, and growing ones, of which each id is inserted."""
    logit_tables = [awkward(rng, slots, size, 32) for size in sizes]
    logit_tables[-1] = rng.integers(-2, 3, logit_tables[-1].shape)
    return [*logit_tables[:-1], np.sort(logit_tables[0], axis=1), logit_tables[-1]]


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(
    ("slots", "k", "sizes"),
    [(1, 1, [7, 1]), (1, 4, [30, 9]), (2, 8, [30, 9, 12]), (3, 5, [20, 60]), (8, 3, [40, 3, 9])],
)
def test_the_likeliest_equal_the_reference(slots: int, k: int, sizes: list[int], idle: float, stall: float) -> None:
    tables_ = tables(np.random.default_rng(k), slots, sizes)
    ids = [np.cumsum(np.random.default_rng(slots).integers(1, 900, x.shape[1])) for x in tables_]
    collected = run(
        TopK(slots=slots, k=k),
        {"input": [item for x, names in zip(tables_, ids, strict=True) for item in items(x, names)]},
        {"output": k * slots * len(tables_)},
        idle=idle,
        stall=stall,
        settings={"last": slots - 1},
    )["output"]
    assert [item["last"] for item in collected] == ([0] * (k * slots - 1) + [1]) * len(tables_)
    results = [(item["logit"], item["id"]) for item in collected]
    assert results == [entry for x, names in zip(tables_, ids, strict=True) for entry in expected_ranks(x, names, k)]


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("slots", "latency", "pace"), [(1, 4, {3}), (2, 3, {1, 2}), (3, 2, {1}), (8, 2, {1})])
def test_a_logit_takes_a_cycle_without_gaps(slots: int, latency: int, pace: set[int]) -> None:
    x, ids, k, cycles = np.arange(40)[None].repeat(slots, axis=0), np.arange(40), 8, dict[str, list[int]]()
    outputs = run(
        TopK(slots=slots, k=k),
        {"input": items(x, ids)},
        {"output": k * slots},
        cycles=cycles,
        settings={"last": slots - 1},
    )["output"]
    assert [(item["logit"], item["id"]) for item in outputs] == expected_ranks(x, ids, k)
    assert set(np.diff(cycles["input"])) == pace
    assert cycles["output"][0] - cycles["input"][-1] == latency
    assert set(np.diff(cycles["output"])) == pace


def test_a_slot_may_return_after_one_cycle() -> None:
    """Use two slots, of which the same one comes again in every other cycle, so that a fresh insertion must be
    visible.
    """
    x = np.array([[5, 6, 7, 6, 8], [9, 9, 8, 9, 9]])
    for slots in (1, 2):
        outputs = run(
            TopK(slots=slots, k=3),
            {"input": items(x[:slots], np.arange(5))},
            {"output": 3 * slots},
            settings={"last": slots - 1},
        )["output"]
        assert [(item["logit"], item["id"]) for item in outputs[::slots]] == [(8, 4), (7, 2), (6, 1)]
        if slots == 2:
            assert [(item["logit"], item["id"]) for item in outputs[1::2]] == [(9, 0), (9, 1), (9, 3)]


@pytest.mark.parametrize(("slots", "turns"), [(8, 3), (5, 4)])
def test_slots_without_a_turn_have_no_entries(slots: int, turns: int) -> None:
    x, ids, k = awkward(np.random.default_rng(slots), turns, 30, 32), np.arange(30), 4
    outputs = run(
        TopK(slots=slots, k=k), {"input": items(x, ids)}, {"output": k * slots}, settings={"last": turns - 1}
    )["output"]
    found = np.array([(item["logit"], item["id"]) for item in outputs]).reshape(k, slots, 2)
    assert found[:, :turns].reshape(-1, 2).tolist() == [list(entry) for entry in expected_ranks(x, ids, k)]
    assert (found[:, turns:] == EMPTY).all()


@pytest.mark.parametrize("slots", [1, 3])
def test_fewer_ids_than_ranks_leave_empty_ranks(slots: int) -> None:
    """Check that nothing of the previous vocabulary follows them."""
    full, x, ids = np.full((slots, 6), 99), np.array([[5, -7]] * slots), np.array([3, 1 << 17])
    payloads = items(full, np.arange(6)) + items(x, ids)
    outputs = run(TopK(slots=slots, k=4), {"input": payloads}, {"output": 8 * slots}, settings={"last": slots - 1})[
        "output"
    ][4 * slots :]
    assert [item["id"] for item in outputs[::slots]] == [3, 1 << 17, 0, 0]
    assert [item["logit"] for item in outputs[::slots]] == [5, -7, -(1 << 31), -(1 << 31)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"k": 0}, "k must be an integer from 1 to 64, not 0"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        TopK(**{"slots": 1, "k": 1, **changes})
