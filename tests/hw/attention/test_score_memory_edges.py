"""Test the ends of what a score memory may hold: the least scores, and rows whose own keys do not fill their group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.score_memory import ScoreMemory
from edgedec.hw.isa.kv_layout import KvLayout
from tests.hw.attention.test_score_memory import SLOTS, feed, start

# groups of four positions; the least number of elements has the fewest bits in a score
LAYOUTS = {head_dim: KvLayout(beat_bytes=2 * head_dim, head_dim=head_dim, chunk=head_dim // 2) for head_dim in (2, 8)}
LEAST = -2047 * 127  # product of elements of a query of 12 bits and a key of 8 that point away from each other


def distances(
    scores: NDArray[np.int64], *, own: int, lanes: int, head_dim: int = 8
) -> tuple[list[list[int]], list[list[int]]]:
    """Return distances and visibility [positions][slots] of one head of four committed positions, padding included.

    The mask has all bits, also those of keys that the pass does not have.
    """
    layout, out = LAYOUTS[head_dim], list[Any]()
    component = ScoreMemory(HeadShape(**vars(layout), slots=SLOTS, context=8, lanes=lanes))

    async def bench(ctx: Any) -> None:
        mask = [[1] * SLOTS for _ in range(SLOTS)]
        ctx.set(component.visibility, {"committed": 4, "own": own, "first": [0] * SLOTS, "sinks": 0, "mask": mask})
        ctx.set(component.room, 1)
        await ctx.tick().repeat(4)  # the visibility is steady long before a pass begins
        await feed(ctx, component, layout, layout.positions // lanes, scores)
        for _ in range(len(scores) + 20):
            _, _, valid, item = await ctx.tick().sample(component.output.valid, component.output.payload)
            if valid:
                out.extend(zip(item.distances, item.visible, strict=True))

    start(component, bench)
    return [[int(d) for d in line] for line, _ in out], [[int(v) for v in line] for _, line in out]


@pytest.mark.parametrize("head_dim", LAYOUTS)
@pytest.mark.parametrize("lanes", [1, 4])
def test_the_least_scores_have_a_distance_of_zero_from_each_other(lanes: int, head_dim: int) -> None:
    scores = np.full((8, SLOTS), LEAST * head_dim)
    scores[1] += 5
    found, _ = distances(scores, own=SLOTS, lanes=lanes, head_dim=head_dim)
    assert found[:4] == [[5] * SLOTS, [0] * SLOTS, [5] * SLOTS, [5] * SLOTS]
    assert found[4 : 4 + SLOTS] == [[5] * SLOTS] * SLOTS


@pytest.mark.parametrize("head_dim", LAYOUTS)
def test_the_least_score_is_as_far_from_the_greatest_as_can_be(head_dim: int) -> None:
    scores = np.full((8, SLOTS), LEAST * head_dim)
    scores[1] *= -1
    found, _ = distances(scores, own=SLOTS, lanes=1, head_dim=head_dim)
    most = -2 * LEAST * head_dim
    assert found[:4] == [[most] * SLOTS, [0] * SLOTS, [most] * SLOTS, [most] * SLOTS]


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("own", [1, 2, SLOTS])
def test_no_row_sees_the_padding_after_the_own_keys(own: int, lanes: int) -> None:
    _, seen = distances(np.zeros((8, SLOTS), np.int64), own=own, lanes=lanes)
    assert seen == [[1] * SLOTS] * (4 + own) + [[0] * SLOTS] * (4 - own)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("apart", [3, 4])
def test_groups_may_end_as_far_apart_as_they_have_words(apart: int) -> None:
    """Send two groups of four positions and one chunk, whose words leave one after the other in four cycles."""
    component = ScoreMemory(HeadShape(beat_bytes=16, head_dim=4, chunk=4, slots=1, context=8))

    async def bench(ctx: Any) -> None:
        ctx.set(component.visibility.own, 1)
        for _ in range(2):
            ctx.set(component.input.valid, 1)
            await ctx.tick()
            ctx.set(component.input.valid, 0)
            await ctx.tick().repeat(apart - 1)

    if apart == 4:
        start(component, bench)
        return
    with pytest.raises(AssertionError, match="No group of scores ends before the one before it is stored"):
        start(component, bench)
