"""Test the names in RTLIL: Amaranth's numbers do not occur in them, and a person can find the signal in the source."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.hdl import Const, Module, Signal
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.accelerator import Accelerator
from edgedec.hw.blocks.pipeline import carried, delayed, reduced
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit.rtlil import to_rtlil
from edgedec.sim.synthesis.estimate_parts import CONFIGS

NAMELESS = re.compile(r"(?:signal|like|signature|late)(?:_\d+|__\w+)?")  # names of what was not assigned to a variable


class Adder(Component):
    """Add one to a value after a register."""

    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.b.eq(self.a + 1)
        return m


class Outer(Component):
    """Contain what Amaranth names with a number: equal names, anonymous submodules, registers of a helper."""

    def __init__(self) -> None:
        super().__init__({"x": In(4), "y": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.first = first = Adder()
        second = Adder()
        m.submodules += second
        m.submodules.table = table = Memory(shape=4, depth=4, init=[])
        port = table.read_port(domain="comb")
        m.d.comb += [first.a.eq(self.x), second.a.eq(first.b), port.addr.eq(second.b)]
        enable = Const(1)
        for _ in range(2):
            product = carried(m, enable, self.x * second.b)
            m.d.sync += self.y.eq(product[0] ^ port.data)
        held = delayed(m, enable, self.x, 3)
        total, _ = reduced(m, enable, [held, self.x, port.data], lambda a, b: a + b, name="total")
        m.d.sync += self.y[0].eq(total[0] ^ carried(m, enable, self.x, name="spare")[0] ^ held[1])
        m.d.comb += Signal(name="passed").eq(carried(m, enable, self.x))
        return m


def wires(text: str, module: str) -> set[str]:
    body = text.split(f"module \\{module}\n")[1].split("\nend\n")[0]
    return set(re.findall(r"(?m)^  wire .*?\\(\S+)$", body))


def readable(text: str) -> None:
    names = re.findall(r"(?m)^(?: *wire .*| *cell \S+|module) \\(\S+)$", text)
    assert len(names) > 20
    assert [name for name in names if "$" in name or NAMELESS.fullmatch(name)] == []


class Ringed(Component):
    """Contain a submodule of the name of a port."""

    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.a = inner = Adder()
        m.d.comb += [inner.a.eq(self.a), self.b.eq(inner.b)]
        return m


def test_a_submodule_of_the_name_of_a_port_is_numbered() -> None:
    text = to_rtlil(Ringed())
    assert r"cell \top.a_0 \a_0" in text


def test_every_name_says_what_it_is() -> None:
    text = to_rtlil(Outer())
    readable(text)
    expected = {"product_0", "product_1", "held", "held_before_1", "held_before_2", "spare", "x_late", "first__b"}
    assert expected | {"adder__a", "table__read_addr", "total_level_1"} <= wires(text, "top")
    assert {"a", "b"} <= wires(text, "top.adder")


def test_a_name_that_is_taken_is_not_given_again() -> None:
    m = Module()
    inputs = [Signal(name=name) for name in ("clash", "clash", "clash_0", "part")]
    m.submodules.part = part = Module()
    outputs = [Signal(name=f"out{at}") for at in range(len(inputs))]
    part.d.comb += [output.eq(~given) for output, given in zip(outputs, inputs, strict=True)]

    class Clashing(Component):
        def __init__(self) -> None:
            super().__init__({f"port{at}": In(1) for at in range(len(inputs))} | {"y": Out(1)})

        def elaborate(self, platform: object) -> Module:
            m.d.comb += [given.eq(getattr(self, f"port{at}")) for at, given in enumerate(inputs)]
            m.d.comb += self.y.eq(outputs[0] ^ outputs[1] ^ outputs[2] ^ outputs[3])
            return m

    text = to_rtlil(Clashing())
    assert {"clash_0", "clash_1", "clash_2", "part_0"} <= wires(text, "top")


@pytest.mark.nightly
@pytest.mark.rtl
@pytest.mark.parametrize("config", [pytest.param(CONFIGS["tiny"].config, id="tiny")])
def test_no_name_of_an_accelerator_has_a_number_of_amaranths(config: AcceleratorConfig) -> None:
    readable(to_rtlil(Accelerator(config)))


@pytest.mark.nightly
@pytest.mark.rtl
def test_no_name_of_the_default_accelerator_has_a_number_of_amaranths() -> None:
    readable(to_rtlil(Accelerator(AcceleratorConfig())))
