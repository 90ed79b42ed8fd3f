from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from edgedec.hw.blocks.shared_heads import LOG_BITS, together_log2
from edgedec.hw.config import AcceleratorConfig

GROUPS = (*range(1, 17), 24, 32, 127, 128)


@pytest.mark.parametrize("slots", range(1, 9))
def test_as_many_heads_attend_together_as_the_configuration_says(slots: int) -> None:
    """Compare every pass with the numbers that programs are compiled for; a head's rows are the tokens, rounded up."""
    config = AcceleratorConfig(slots=slots, shared=True)
    group, tokens = Signal(8), Signal(4)
    together, stride = Signal(LOG_BITS), Signal(LOG_BITS)
    m = Module()
    m.d.comb += [
        out.eq(value) for out, value in zip((together, stride), together_log2(config, group, tokens), strict=True)
    ]

    async def bench(ctx: Any) -> None:
        for of_pass in range(1, slots + 1):
            rows = next(log2 for log2 in range(4) if 1 << log2 >= of_pass)
            for heads in GROUPS:
                ctx.set(group, heads)
                ctx.set(tokens, of_pass)
                assert 1 << ctx.get(together) == config.together(heads, of_pass), (heads, of_pass)
                assert ctx.get(stride) == rows, (heads, of_pass)

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
