from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator

from edgedec.hw.matrix._table_walk import WALK
from edgedec.hw.matrix.table_builder import TableBuilder
from tests.hw.support.reference_ternary import blocks_of


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("beat_bytes", "slots"), [(4, 1), (5, 3), (8, 2), (16, 8)])
def test_every_entry_of_every_group_and_slot_is_written(beat_bytes: int, slots: int) -> None:
    rng = np.random.default_rng(beat_bytes)
    codes = rng.integers(-127, 128, (slots, 4 * beat_bytes))
    codes[0, :beat_bytes], codes[-1, beat_bytes : 2 * beat_bytes] = 127, -127
    component = TableBuilder(beat_bytes=beat_bytes, slots=slots)
    writes, transfer_cycles, filled = _build(component, blocks_of(codes, beat_bytes))
    assert len(writes) == 4 * len(WALK)
    for block in range(4):
        for cycle, address, entries in writes[block * len(WALK) : (block + 1) * len(WALK)]:
            columns = codes[:, block * beat_bytes : (block + 1) * beat_bytes]
            columns = np.pad(columns, ((0, 0), (0, -beat_bytes % 3))).reshape(slots, -1, 3)
            assert entries == (columns @ WALK[address]).T.tolist()
            assert cycle == 15 * block + 1 + address  # the documented latency and throughput
    assert transfer_cycles == [15 * block + 14 for block in range(4)]
    assert filled == [cycle - 2 for cycle in transfer_cycles]


def test_nothing_is_written_while_the_bank_is_in_use() -> None:
    component = TableBuilder(beat_bytes=4, slots=1)
    writes, transfer_cycles, _ = _build(component, blocks_of(np.full((1, 8), 5), 4), free=lambda now: now in (40, 90))
    assert [now for now, *_ in writes] == [*range(41, 55), *range(91, 105)]
    assert transfer_cycles == [54, 104]


def _build(component: Any, blocks: Any, free: Any = lambda now: True) -> tuple[list[Any], list[int], list[int]]:
    """Return the writes (cycle, address, entries), and the cycles of the blocks' transfers and of ``filled``."""
    writes: list[Any] = []
    transfer_cycles: list[int] = []
    filled: list[int] = []

    async def bench(ctx: Any) -> None:
        pending = list(blocks)
        for now in range(140):
            ctx.set(component.codes.valid, bool(pending))
            ctx.set(component.free, free(now))
            if pending:
                ctx.set(component.codes.payload, pending[0])
            if ctx.get(component.write):
                entries = [[ctx.get(entry) for entry in group] for group in component.entries]
                writes.append((now, ctx.get(component.address), entries))
            if ctx.get(component.filled):
                filled.append(now)
            if ctx.get(component.codes.ready) and pending:
                transfer_cycles.append(now)
                pending.pop(0)
            await ctx.tick()
        assert not pending

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return writes, transfer_cycles, filled


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beat_bytes": 2, "slots": 1}, "beat_bytes must be an integer from 4 to 64, not 2"),
        ({"beat_bytes": 9, "slots": 1}, "beat_bytes must not be a multiple of 3, not 9"),
        ({"beat_bytes": 8, "slots": 0}, "slots must be an integer from 1 to 8, not 0"),
        ({"beat_bytes": 8, "slots": 9}, "slots must be an integer from 1 to 8, not 9"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableBuilder(**parameters)
