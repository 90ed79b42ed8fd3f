"""Test what the data path tells its units and a simulation, without a pass: what a window hides, and the traced ports.

``tests/hw/test_accelerator.py`` runs whole passes.
"""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.datapath import TRACED, Datapath

SMALL: dict[str, Any] = {
    "hidden": 12,
    "width": 20,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 4,
    "beat_bytes": 8,
    "ports": 1,
    "slots": 2,
}


def test_traced_ports_have_all_bits_of_an_item() -> None:
    """Count whether it is transferred, 2 slots of a word, of 8 columns of codes and of a scale, and what ends vectors."""
    datapath = Datapath(AcceleratorConfig(**SMALL), trace=True)
    bits = {name: len(getattr(datapath, f"trace_{name}")) for name in TRACED}
    assert bits == {
        "matrix": 1 + 2 * 32 + 1,
        "codes": 1 + 2 * 8 * 8 + 1,
        "scales": 1 + 2 * 24,
        "attention": 1 + 2 * 27 + 1,
        "residual": 1 + 2 * 27 + 1,
    }


@pytest.mark.parametrize("ring", [0, 1])
def test_a_row_sees_as_many_positions_as_its_window_has(ring: int) -> None:
    """Compare with the positions that are not further back than the window; attention counts from a ring's first one."""
    datapath, m = Datapath(AcceleratorConfig(**SMALL, context=256, window=8)), Module()
    # Attention is not in the module, so that it takes ATTEND when the bench says so.
    datapath._attend(m)
    attends, parameters, path = datapath.attends, datapath.parameters, datapath._attention
    first = 20 * ring
    cases = [(window, at) for window in (0, 1, 2, 8) for at in (first + 8, first + 9, first + 40)]
    cases += [] if ring else [(window, at) for window in (1, 2, 8) for at in range(9)]

    async def bench(ctx: Any) -> None:
        ctx.set(path.attends.ready, 1)
        ctx.set(datapath.layers.ready, 1)
        ctx.set(attends.valid, 1)
        ctx.set(attends.p.ring, ring)
        ctx.set(parameters.ring_first, 20)
        for window, at in cases:
            ctx.set(attends.p.window, window)
            ctx.set(parameters.committed, first + 5)
            ctx.set(parameters.positions, [at, at + 1])
            await ctx.tick()
            seen = ctx.get(path.visibility)
            assert seen.committed == 5
            for slot, position in enumerate((at, at + 1)):
                in_window = [one for one in range(position + 1) if window == 0 or one > position - window]
                assert seen.first[slot] == max(in_window[0] - first, 0), (window, position)

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
