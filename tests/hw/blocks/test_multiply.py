from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Fragment, Module, Signal, signed, unsigned
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.board import FAMILIES, Family
from edgedec.hw.blocks.multiply import STAGES, Multiplier, multiply
from edgedec.hw.emit.yosys import run_yosys, to_rtlil

SMALL = Family(name="small", multiplier_bits=3, source="a part with multipliers that small operands exceed")
USES = [(27, 16), (27, 18), (24, 18), (19, 17), (26, 17), (18, 18)]


def products(x_bits: int, y_bits: int, pairs: list[tuple[int, int]], platform: Any = None, hold: int = 1) -> list[int]:
    """Return the products of ``pairs``, one fed in every ``hold`` cycles, with ``enable`` high in one of each ``hold``."""
    component, actual = Multiplier(x_bits=x_bits, y_bits=y_bits), list[int]()

    async def bench(ctx: Any) -> None:
        for x, y in [*pairs, *[(0, 0)] * STAGES]:
            ctx.set(component.x, x)
            ctx.set(component.y, y)
            for phase in range(hold):
                ctx.set(component.enable, phase == 0)
                await ctx.tick()
            actual.append(ctx.get(component.product))

    simulator = Simulator(Fragment.get(component, platform))
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return actual[STAGES - 1 : STAGES - 1 + len(pairs)]


def signed_range(bits: int) -> range:
    return range(-(1 << bits - 1), 1 << bits - 1)


@pytest.mark.parametrize("platform", [None, SMALL])
@pytest.mark.parametrize(("x_bits", "y_bits"), [(5, 3), (4, 1), (6, 2), (1, 1), (3, 4)])
def test_all_small_products_are_exact(x_bits: int, y_bits: int, platform: Any) -> None:
    pairs = [(x, y) for x in signed_range(x_bits) for y in signed_range(y_bits)]
    assert products(x_bits, y_bits, pairs, platform) == [x * y for x, y in pairs]


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("x_bits", "y_bits"), USES)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_products_of_the_units_are_exact(data: st.DataObject, x_bits: int, y_bits: int, family: str) -> None:
    def operand(bits: int) -> st.SearchStrategy[int]:
        least, most = signed_range(bits)[0], signed_range(bits)[-1]
        edges = [
            least,
            least + 1,
            -1,
            0,
            1,
            most,
            *(1 << k for k in range(bits - 1)),
            *(-1 << k for k in range(bits - 1)),
        ]
        return st.sampled_from(edges) | st.integers(least, most)

    pairs = data.draw(st.lists(st.tuples(operand(x_bits), operand(y_bits)), min_size=20, max_size=60))
    assert products(x_bits, y_bits, pairs, FAMILIES[family]) == [x * y for x, y in pairs]


@pytest.mark.parametrize("platform", [None, SMALL])
def test_registers_load_only_while_enabled(platform: Any) -> None:
    pairs = [(x, y) for x in range(-16, 16, 5) for y in (-4, 3)]
    assert products(5, 3, pairs, platform, hold=3) == [x * y for x, y in pairs]


@pytest.mark.parametrize(
    ("x", "y"),
    [(unsigned(17), signed(27)), (signed(27), unsigned(17)), (unsigned(4), unsigned(5)), (signed(2), signed(2))],
)
def test_operands_of_all_signs_in_any_order(x: Any, y: Any) -> None:
    left, right, actual = Signal(x), Signal(y), list[int]()
    m = Module()
    product = multiply(m, "product", left, right)
    ends = [(-(1 << shape.width - 1) if shape.signed else 0, (1 << shape.width - shape.signed) - 1) for shape in (x, y)]
    pairs = [(a, b) for a in ends[0] for b in ends[1]]

    async def bench(ctx: Any) -> None:
        for a, b in pairs:
            ctx.set(left, a)
            ctx.set(right, b)
            await ctx.tick().repeat(STAGES)
            actual.append(ctx.get(product))

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert actual == [a * b for a, b in pairs]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "checks"),
    [
        # Nothing but registers drives a multiplier, and nothing but registers takes its products.
        (
            "ecp5",
            """synth_ecp5 -flatten -top top -run begin:map_luts
select -assert-count 2 t:MULT18X18D
select -set beside t:MULT18X18D %ci2 t:MULT18X18D %co2 %u w:* %d t:MULT18X18D %d
select -assert-any @beside
select -assert-none @beside t:$_DFF*_ %d t:TRELLIS_FF %d""",
        ),
        # The two multipliers contain all registers but those of the lowest bits of the product, and the adder.
        (
            "zynq-7000",
            """synth_xilinx -family xc7 -flatten -top top -noiopad -noclkbuf -run begin:map_luts
select -assert-count 2 t:DSP48E1
select -assert-count 17 t:FDRE
select -assert-none c:* t:DSP48E1 %d t:FDRE %d""",
        ),
        (
            "zynq-ultrascale+",
            """synth_xilinx -family xcup -flatten -top top -noiopad -noclkbuf -run begin:map_luts
select -assert-count 1 t:DSP48E2
select -assert-none c:* t:DSP48E2 %d t:FDRE %d""",
        ),
    ],
)
def test_registers_are_in_the_multipliers_or_next_to_them(family: str, checks: str, tmp_path: Path) -> None:
    (tmp_path / "design.il").write_text(to_rtlil(Multiplier(x_bits=27, y_bits=18), platform=FAMILIES[family]), "utf-8")
    run_yosys(f"read_rtlil design.il\n{checks}\n", tmp_path)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"x_bits": 28, "y_bits": 18}, "x_bits must be an integer from 1 to 27, not 28"),
        ({"x_bits": 27, "y_bits": 19}, "y_bits must be an integer from 1 to 18, not 19"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Multiplier(**parameters)
