"""Test that a component that is synthesized by itself has the same ports where it is used."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.back import rtlil
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out, Signature, connect, flipped

from edgedec.hw.emit.black_box import BlackBox

PORTS = {"a": In(3), "b": Out(4, init=1), "inner": Out(Signature({"x": In(2), "y": Out(5)}))}


class Small(Component):
    def __init__(self) -> None:
        super().__init__(PORTS)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.b.eq(self.a)
        m.d.other += self.inner.y.eq(self.inner.x)
        return m


class Around(Component):
    def __init__(self, component: Component) -> None:
        self._component = component
        super().__init__(PORTS)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        domains = {"sync": "", "other": "other_"}
        m.submodules.box = box = BlackBox(self._component, module="small", domains=domains)
        m.d.comb += [box.a.eq(self.a), self.b.eq(box.b)]
        connect(m, box.inner, flipped(self.inner))
        return m


def test_ports_and_domains_are_equal() -> None:
    small = Small()
    alone = rtlil.convert(small, name="small", emit_src=False)
    around = rtlil.convert(Around(small), name="top", emit_src=False)
    ports = set(re.findall(r"(?m)^  wire .*(?:input|output) \d+ +\\(\S+)$", alone))
    assert ports == {"clk", "rst", "other_clk", "other_rst", "a", "b", "inner__x", "inner__y"}
    (cell,) = re.findall(r"(?ms)^  cell \\small \\(\S+)\n(.*?)^  end$", around)
    assert cell[0] == "box"
    assert set(re.findall(r"connect \\(\S+) ", cell[1])) == ports
