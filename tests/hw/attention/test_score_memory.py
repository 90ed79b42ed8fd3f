"""Compare distances of two waiting heads with plain integers; test_attention_path.py runs whole layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.sim import Simulator

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.score_memory import ScoreMemory
from edgedec.hw.isa.kv_layout import KvLayout

COMMITTED, OWN, FIRST, SINKS = 5, 2, [0, 3, 5], 1
MASK = [[1, 0, 0], [1, 1, 0], [0, 1, 0]]
SLOTS, CONTEXT, IDLE = 3, 8, 20


def visible(slot: int) -> list[int]:
    """Return whether a slot sees each position that is streamed: the committed ones and its own, without padding."""
    return [int(at >= FIRST[slot] or at < SINKS) for at in range(COMMITTED)] + MASK[slot][:OWN]


def stored(layout: KvLayout) -> list[int]:
    """Return the places of the committed and own positions among those of all groups."""
    own = layout.groups(COMMITTED) * layout.positions
    return [*range(COMMITTED), *range(own, own + OWN)]


def start(component: Any, bench: Any) -> None:
    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


async def feed(ctx: Any, component: Any, layout: KvLayout, words: int, scores: Any) -> None:
    """Stream a head's scores [positions, slots] in halves, one chunk after the other, with the pause that is asked for."""
    for group in np.asarray(scores).reshape(-1, layout.positions, SLOTS):
        for chunk in range(layout.chunks):
            part = group // 2 if chunk == 0 else group - group // 2 if chunk == 1 else 0 * group
            ctx.set(component.input.payload, part.tolist())
            ctx.set(component.input.valid, 1)
            await ctx.tick()
            ctx.set(component.input.valid, 0)
        await ctx.tick().repeat(max(words - layout.chunks, 1))


@pytest.mark.parametrize(
    ("shape", "lanes"), [((16, 8, 4), 1), pytest.param((16, 8, 4), 4, marks=pytest.mark.rtl), ((4, 4, 2), 2)]
)
def test_two_heads_wait_and_a_third_one_breaks_the_rule(shape: tuple[int, int, int], lanes: int) -> None:
    layout = KvLayout(beat_bytes=shape[0], head_dim=shape[1], chunk=shape[2])
    component = ScoreMemory(HeadShape(**vars(layout), slots=SLOTS, context=CONTEXT, lanes=lanes))
    words = layout.positions // lanes
    places = stored(layout)
    rng = np.random.default_rng(lanes)
    positions = (layout.groups(COMMITTED) + layout.groups(OWN)) * layout.positions
    heads = rng.integers(-30_000, 30_000, (3, positions, SLOTS))
    distances, seen, ends = list[list[int]](), list[list[int]](), list[int]()

    async def bench(ctx: Any) -> None:
        settings = {"committed": COMMITTED, "own": OWN, "first": FIRST, "sinks": SINKS, "mask": MASK}
        ctx.set(component.visibility, settings)
        await ctx.tick().repeat(4)  # the visibility is steady long before a pass begins
        for scores in heads[:2]:
            await feed(ctx, component, layout, words, scores)
        await ctx.tick().repeat(IDLE)
        ctx.set(component.room, 1)
        for _ in range(2 * positions // lanes + IDLE):
            _, _, valid, item = await ctx.tick().sample(component.output.valid, component.output.payload)
            if valid:
                distances.extend([int(d) for d in lane] for lane in item.distances)
                seen.extend([int(v) for v in lane] for lane in item.visible)
                ends.append(int(item.last))
        ctx.set(component.room, 0)
        for scores in heads:
            await feed(ctx, component, layout, words, scores)

    with pytest.raises(AssertionError, match="A head is stored only once all distances"):
        start(component, bench)
    assert len(ends) == 2 * positions // lanes
    assert [at for at, last in enumerate(ends) if last] == [positions // lanes - 1, 2 * positions // lanes - 1]
    for number, scores in enumerate(heads[:2]):
        for slot in range(SLOTS):
            own = scores[places, slot]
            shown = np.array(visible(slot), bool)
            line = np.array(distances)[number * positions : (number + 1) * positions, slot][places]
            marks = np.array(seen)[number * positions : (number + 1) * positions, slot][places]
            assert marks.tolist() == shown.tolist()
            assert line[shown].tolist() == (own[shown].max() - own[shown]).tolist()
