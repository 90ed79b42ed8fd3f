from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.matrix.mac_array import linear_sums_bits
from edgedec.hw.matrix.row_packer import RowPacker
from tests.hw.support.bench_streams import run


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("lanes", "slots", "width"), [(2, 1, 17), (8, 2, 19), (8, 3, 24), (64, 8, 22)])
@pytest.mark.parametrize("stall", [0.0, 0.5, 0.95])
def test_words_have_five_rows_and_fit_the_queue(lanes: int, slots: int, width: int, stall: float) -> None:
    """Deliver sums 12 cycles after their request without a way to stop them, so that places in the queue must be
    reserved.
    """
    rng, bits = np.random.default_rng([lanes, slots]), linear_sums_bits(lanes)
    values = rng.integers(-(1 << bits - 1), 1 << bits - 1, (40, 5, slots))
    values[0], values[1] = -(1 << bits - 1), (1 << bits - 1) - 1
    packer = RowPacker(lanes=lanes, slots=slots, width=width)
    waited = 0

    async def send(ctx: Any) -> None:
        nonlocal waited
        under_way: list[Any] = [None] * 12
        rows = [(row, i == 0) for word in values for i, row in enumerate(word)]
        while True:
            begins = bool(rows) and rows[0][1] and ctx.get(packer.room)
            may_begin = begins or (bool(rows) and not rows[0][1])
            waited += bool(rows) and not may_begin
            ctx.set(packer.starts, begins)
            under_way.append(rows.pop(0)[0] if may_begin else None)
            arrives = under_way.pop(0)
            ctx.set(packer.sums.valid, arrives is not None)
            if arrives is not None:
                ctx.set(packer.sums.payload, {"sums": arrives.tolist(), "last": 0})
            await ctx.tick()

    outputs = run(packer, {}, {"output": len(values)}, stall=stall, background=[send], seed=slots)["output"]
    assert np.array_equal(outputs, values)
    assert (waited > 0) == (stall > 0.9)  # a sink that keeps up costs no cycle


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^width must be an integer from 19 to 64, not 18$"):
        RowPacker(lanes=8, slots=1, width=18)
    with pytest.raises(ValueError, match=r"^slots must be an integer from 1 to 8, not 0$"):
        RowPacker(lanes=8, slots=0, width=19)
