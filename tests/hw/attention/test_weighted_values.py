"""Compare sums and divisions of a few small heads with plain integers; test_attention_path.py runs whole layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.weighted_values import WeightedValues
from edgedec.hw.isa.kv_layout import KvLayout
from tests.hw.support.bench_streams import run
from tests.hw.support.reference_exponentials import rs

Array = np.ndarray[Any, Any]

COMMITTED, CONTEXT = 5, 8


@dataclass(frozen=True, kw_only=True)
class Head:
    """Hold probabilities u16 [positions, slots], codes int8 [positions, head_dim], and V u16 [head_dim]."""

    chances: Array
    values: Array
    scales: list[int]

    def expected(self) -> list[list[int]]:
        """Return the output [head_dim][slots]."""
        totals = self.chances.sum(axis=0)
        return [
            [self._element(int(total), int(n), scale) for total, n in zip(totals, row, strict=True)]
            for row, scale in zip(self.values.T @ self.chances, self.scales, strict=True)
        ]

    @staticmethod
    def _element(total: int, n: int, scale: int) -> int:
        if not total:
            return 0
        shift = max(total.bit_length() - 16, 0)
        mantissa = total << max(16 - total.bit_length(), 0) >> shift
        return rs(rs(n, shift) * rs(((1 << 32) - 1) // mantissa * scale, 16), 13)


def draw(layout: KvLayout, slots: int, committed: int, own: int) -> Head:
    """Draw a head whose first slot sees all positions alike, and whose last one sees nothing if there are several.

    The first slot's sums are as large as can be in the first two columns, one of them negative.
    """
    rng = np.random.default_rng(slots)
    positions = (layout.groups(committed) + layout.groups(own)) * layout.positions
    seen = [*range(committed), *(layout.groups(committed) * layout.positions + at for at in range(own))]
    chances = np.zeros((positions, slots), np.int64)
    chances[seen] = rng.integers(0, 1 << 16, (len(seen), slots))
    chances[seen, 0] = (1 << 16) - 1
    if slots > 1:
        chances[:, -1] = 0
    values = rng.integers(-127, 128, (positions, layout.head_dim))
    values[:, :2] = 127, -127
    scales = [0xFFFF, 0xFFFF, *rng.integers(0, 1 << 16, layout.head_dim - 2).tolist()]
    return Head(chances=chances, values=values, scales=scales)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("shape", "slots", "lanes", "out_lanes", "committed", "own"),
    [
        ((8, 4, 2), 3, 2, 1, COMMITTED, 2),
        ((4, 4, 4), 1, 1, 2, COMMITTED, 1),
        ((4, 6, 2), 5, 1, 2, COMMITTED, 2),
        ((8, 4, 4), 1, 1, 2, CONTEXT, 1),  # the cache is full
    ],
)
def test_heads_follow_the_formulas_and_the_next_begins_soon(
    shape: tuple[int, int, int], slots: int, lanes: int, out_lanes: int, committed: int, own: int
) -> None:
    """Run two heads; L of the second one is taken in the fourth cycle after the first one's sums have left."""
    layout = KvLayout(beat_bytes=shape[0], head_dim=shape[1], chunk=shape[2])
    head = draw(layout, slots, committed, own)
    other = Head(chances=head.chances[::-1], values=head.values, scales=head.scales[::-1])
    component = WeightedValues(
        HeadShape(**vars(layout), slots=slots, context=CONTEXT, lanes=lanes), out_lanes=out_lanes
    )
    drained = list[int]()

    async def columns(ctx: Any) -> None:
        await ctx.tick().repeat(4)  # the visibility is steady long before a pass begins
        now = 4
        port = component.columns
        for one in (head, other):
            products = one.chances[:, None, :] * one.values[:, :, None]  # [positions, head_dim, slots]
            sums = products.reshape(-1, layout.positions, layout.chunks, layout.chunk, slots).sum(axis=1)
            for item in sums.reshape(-1, layout.chunk, slots):
                ctx.set(port.payload, item.tolist())
                ctx.set(port.valid, 1)
                await ctx.tick()
                now += 1
            ctx.set(port.valid, 0)
            is_drained = False
            while not is_drained:
                _, _, is_drained = await ctx.tick().sample(component.drained)
                now += 1
            drained.append(now)

    words = [one.chances.reshape(-1, lanes, slots).tolist() for one in (head, other)]
    inputs: dict[str, list[Any]] = {
        "chances": [{"chances": w, "last": w is word[-1]} for word in words for w in word],
        "ends": [0, 1],
        "scales": [list(v) for one in (head, other) for v in np.array(one.scales).reshape(-1, out_lanes).tolist()],
    }
    cycles = dict[str, list[int]]()
    count = 2 * layout.head_dim // out_lanes
    settings = {"visibility": {"committed": committed, "own": own}}
    items = run(
        component, inputs, {"output": count}, settings=settings, background=[columns], cycles=cycles, limit=400
    )["output"]
    assert [row for item in items for row in item["values"]] == [*head.expected(), *other.expected()]
    assert [item["last"] for item in items] == [int(at == count - 1) for at in range(count)]
    assert cycles["ends"][1] == drained[0] + 4
