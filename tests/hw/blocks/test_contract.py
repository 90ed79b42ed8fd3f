"""Test that an assertion of a component ends every kind of simulation and every proof, and leaves nothing in hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.hdl import Module, Signal
from amaranth.lib.wiring import Component, In, Out
from amaranth.sim import Simulator

from edgedec.hw.blocks.contract import contract
from edgedec.hw.emit.rtlil import VIOLATED, to_rtlil

MESSAGE = "An item comes only after room was offered"


class Counter(Component):
    """Count; two rules with the same words in one module."""

    def __init__(self, most: int) -> None:
        self._most = most
        super().__init__({"up": In(1), "count": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        seen = Signal()
        with m.If(self.up):
            m.d.sync += [self.count.eq(self.count + 1), seen.eq(1)]
            contract(m, self.count != self._most, MESSAGE)
        contract(m, ~seen | (self.count != 0), MESSAGE)
        return m


def run(component: Any, ups: Sequence[int]) -> None:
    async def bench(context: Any) -> None:
        for up in ups:
            context.set(component.up, up)
            await context.tick()

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_a_kept_contract_is_silent() -> None:
    run(Counter(9), [1] * 9 + [0] * 5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broken_contract_ends_a_simulation_with_its_words() -> None:
    with pytest.raises(AssertionError, match=MESSAGE):
        run(Counter(9), [1] * 11)


def test_hardware_has_no_trace_of_it() -> None:
    text = to_rtlil(Counter(9))
    assert "$check" not in text
    assert VIOLATED not in text


def test_each_assertion_becomes_a_register_of_its_own() -> None:
    text = to_rtlil(Counter(9), checks="register")
    assert "$check" not in text
    name = f"{VIOLATED}{MESSAGE.replace(' ', '_')}"
    assert text.count(f"  wire width 1 \\{name}\n") == text.count(f"  wire width 1 \\{name}_1\n") == 1
    assert to_rtlil(Counter(9), checks="keep").count("cell $check") == 2
