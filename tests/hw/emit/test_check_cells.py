"""Test the cells that take the place of an assertion, parameter by parameter: yosys does not miss one that is wrong."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In

from edgedec.hw.blocks.contract import contract
from edgedec.hw.emit.rtlil import to_rtlil


class Checked(Component):
    """Assert that an input is high."""

    def __init__(self) -> None:
        super().__init__({"a": In(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        contract(m, self.a, "It is high")
        return m


@pytest.mark.parametrize(("kind", "inputs"), [("not", "A"), ("and", "AB"), ("or", "AB")])
def test_operands_of_the_cells_are_unsigned_bits(kind: str, inputs: str) -> None:
    text = to_rtlil(Checked(), checks="register")
    (cell,) = re.findall(
        rf"^  cell \${kind} \$violated_It_is_high_{kind}\n(.*?)^  end$", text, re.MULTILINE | re.DOTALL
    )
    parameters = re.findall(r"parameter \\(\S+) (\S+)", cell)
    signs = {f"{port}_SIGNED": "0" for port in inputs}
    assert dict(parameters) == signs | {f"{port}_WIDTH": "1" for port in f"{inputs}Y"}
    assert re.findall(r"connect \\(\S+)", cell) == [*inputs, "Y"]
