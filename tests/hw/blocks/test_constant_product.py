from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Module, Signal
from amaranth.sim import Simulator

from edgedec.hw.blocks.constant_product import product


def test_products_with_all_small_constants_are_exact() -> None:
    """Up to eight set bits, so that levels with an odd number of summands occur, too."""
    x, m, factors = Signal(5), Module(), [*range(40), 127, 187, 255]
    results = [Signal(16, name=f"times_{factor}") for factor in factors]
    m.d.comb += [result.eq(product(x, factor)) for result, factor in zip(results, factors, strict=True)]

    async def bench(ctx: Any) -> None:
        for value in range(32):
            ctx.set(x, value)
            assert [ctx.get(result) for result in results] == [value * factor for factor in factors]

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()


def test_a_product_with_zero_is_a_bit() -> None:
    assert product(Const(3, 2), 0).shape().width == 1
