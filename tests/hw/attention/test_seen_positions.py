"""Test which positions the rows of an ATTEND see, by the definition that the interpreter has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.seen_positions import seen_positions
from edgedec.hw.blocks.instruction_layouts import layout
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.datapath import pass_parameters
from edgedec.hw.isa.instructions import Opcode
from edgedec.sim.interpreter.attention import visible

SMALL: dict[str, Any] = {"beat_bytes": 16, "ports": 1, "slots": 3, "head_dim": 16, "context": 62}


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("several", [False, True])
def test_rows_see_the_positions_of_the_definition(several: bool, window: int) -> None:
    """Let three rows of one sequence, or of three, see committed positions from a window's first one on."""
    config = AcceleratorConfig(**SMALL, sequences=3 if several else 1)
    shape = HeadShape.of(config)
    item, now = Signal(layout(Opcode.ATTEND)), Signal(pass_parameters(config))
    taken, m = Signal(), Module()
    seen = seen_positions(m, shape, item, now, taken, rings=False)
    committed = [9, 0, 14] if several else [9, 9, 9]
    size = shape.layout.positions
    places = [0, -(-9 // size) * size, -(-9 // size) * size] if several else [0, 0, 0]
    positions = [9, 0, 14] if several else [9, 10, 11]
    total = places[2] + committed[2]

    async def bench(ctx: Any) -> None:
        ctx.set(item.window, window)
        ctx.set(now.slots, 3)
        ctx.set(now.committed, total)
        for slot in range(3):
            ctx.set(now.positions[slot], positions[slot])
            if several:
                ctx.set(now.first[slot], places[slot])
                ctx.set(now.ends[slot], places[slot] + committed[slot])
        await ctx.tick().repeat(2)
        ctx.set(taken, 1)
        await ctx.tick()
        ctx.set(taken, 0)
        ctx.set(now.positions[0], 40)  # nothing changes until the next instruction
        await ctx.tick().repeat(2)
        parts = [(1, range(one)) for one in committed] if several else [(3, range(9))]
        expected = visible(parts, np.array(positions), np.eye(3, dtype=np.bool_), window, 0)
        assert (ctx.get(seen.committed), ctx.get(seen.own)) == (total, 3)
        for slot in range(3):
            end = ctx.get(seen.ends[slot]) if several else total
            first = ctx.get(seen.first[slot])
            found = [place for place in range(total) if first <= place < end]
            before = sum(committed[:slot]) if several else 0
            at = [places[slot] + int(index) - before for index in np.flatnonzero(expected[slot, :-3])]
            assert found == at

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
