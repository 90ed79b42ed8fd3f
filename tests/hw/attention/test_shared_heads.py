"""Compare heads that attend together, before and after attention, with rows that Python puts side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.attention.shared_heads import HeadSplitter, SharedQueries
from edgedec.reference.integer_profile.numbers import I64
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import to_words


def side_by_side(x: I64, *, head_dim: int, chunk: int, together: int, stride: int) -> list[Any]:
    """Return the items of x [slots, heads * head_dim]: row ``(j << stride) + t`` is row t of the j-th head of an item."""
    slots, items = len(x), []
    for first in range(0, x.shape[1], head_dim << together):
        for start in range(first, first + head_dim, chunk):
            item = np.zeros((chunk, slots), np.int64)
            for row in range(min(slots, 1 << together + stride)):
                head, its_row = divmod(row, 1 << stride)
                at = start + head * head_dim
                item[:, row] = x[its_row, at : at + chunk]
            items.append(item.tolist())
    return items


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("slots", "heads", "head_dim", "chunk", "passes"),
    [
        (8, 8, 2, 2, [(2, 1), (3, 0)]),  # a head is one chunk
        (4, 4, 4, 2, [(1, 1), (2, 0)]),
        (3, 4, 6, 2, [(1, 0), (0, 2)]),
    ],
)
def test_queries_of_heads_that_attend_together_are_side_by_side(
    slots: int, heads: int, head_dim: int, chunk: int, passes: list[tuple[int, int]], stall: float
) -> None:
    """Deliver all heads of a vector twice, with other numbers of heads together and of rows of each."""
    x = np.random.default_rng(head_dim).integers(-128, 128, (slots, heads * head_dim))
    component = SharedQueries(width=8, slots=slots, depth=x.shape[1], head_dim=head_dim, chunk=chunk)
    expected = [
        item
        for together, stride in passes
        for item in side_by_side(x, head_dim=head_dim, chunk=chunk, together=together, stride=stride)
    ]

    async def write_and_attend(ctx: Any) -> None:
        ctx.set(component.write.valid, 1)
        for word in to_words(x):
            ctx.set(component.write.payload, word)
            await ctx.tick()
        ctx.set(component.write.valid, 0)
        for together, stride in passes:
            fields = {"heads": heads, "group": 1 << together, "together": together, "stride": stride}
            ctx.set(component.attends.payload, fields)
            ctx.set(component.attends.valid, 1)
            await ctx.tick().until(component.attends.ready)
            ctx.set(component.attends.valid, 0)

    collected = run(component, {}, {"items": len(expected)}, stall=stall, background=[write_and_attend], limit=2000)
    assert collected["items"] == expected


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(("slots", "together", "stride"), [(8, 2, 1), (8, 3, 0), (4, 1, 1), (3, 0, 2)])
def test_outputs_of_heads_that_attended_together_leave_one_after_the_other(
    slots: int, together: int, stride: int, stall: float
) -> None:
    head_dim, groups, heads = 3, 2, 1 << together
    x = np.random.default_rng(slots).integers(-(1 << 26), 1 << 26, (slots, groups * head_dim))
    cycles: dict[str, list[int]] = {}
    collected = run(
        HeadSplitter(slots=slots, head_dim=head_dim),
        {"input": to_words(x)},
        {"output": groups * heads * head_dim},
        stall=stall,
        cycles=cycles,
        settings={"together": together, "stride": stride},
    )
    apart = np.zeros((slots, groups, heads, head_dim), np.int64)
    for row in range(min(slots, heads << stride)):
        head, its_row = divmod(row, 1 << stride)
        apart[its_row, :, head] = x[row].reshape(groups, head_dim)
    assert collected["output"] == to_words(apart.reshape(slots, -1))
    if not stall:
        assert cycles["output"][:head_dim] == cycles["input"][:head_dim]
        if heads > 1:
            assert cycles["output"][head_dim] - cycles["output"][head_dim - 1] == 4
