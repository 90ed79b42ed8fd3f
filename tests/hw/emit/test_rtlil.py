"""Test that the text of a component is the same in every process, and Amaranth's own for one domain."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.back import rtlil
from amaranth.hdl import Cat, Module
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw.blocks.pipeline import copies
from edgedec.hw.emit.rtlil import to_rtlil
from edgedec.hw.emit.verilog import run_yosys

PRINTED = """
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out
from edgedec.hw.emit.rtlil import to_rtlil

class Several(Component):
    def __init__(self):
        super().__init__({"a": In(3), **{f"b{n}": Out(3) for n in range(5)}})

    def elaborate(self, platform):
        m = Module()
        for n, domain in enumerate(("fast", "sync", "memory", "link", "slow")):
            m.d[domain] += getattr(self, f"b{n}").eq(self.a)
        return m

print(to_rtlil(Several()))
"""


class Register(Component):
    """Register a value in ``domain``, or pass it on if it is None."""

    def __init__(self, domain: str | None) -> None:
        self._domain = domain or "comb"
        super().__init__({"a": In(3), "b": Out(3)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d[self._domain] += self.b.eq(self.a)
        return m


@pytest.mark.rtl
def test_the_text_does_not_depend_on_the_process() -> None:
    texts = {
        subprocess.run(
            [sys.executable, "-c", PRINTED],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    (text,) = texts
    ports = re.findall(r"(?m)^  wire width 1 input \d+ +\\(\S+)$", text)
    assert ports == [
        f"{domain}{end}" for domain in ("", "fast_", "link_", "memory_", "slow_") for end in ("clk", "rst")
    ]


@pytest.mark.parametrize("domain", [None, "sync", "other"])
def test_the_text_with_one_domain_is_amaranth_s(domain: str | None) -> None:
    assert to_rtlil(Register(domain)) == rtlil.convert(Register(domain), emit_src=False)


def test_a_clock_that_is_a_member_is_refused() -> None:
    class Odd(Component):
        def __init__(self) -> None:
            super().__init__({"clk": In(1), "b": Out(1)})

        def elaborate(self, platform: object) -> Module:
            m = Module()
            m.d.sync += self.b.eq(self.clk)
            return m

    with pytest.raises(ValueError, match="top has a member clk"):
        to_rtlil(Odd())


class Copied(Component):
    """Register a value in four copies of two bits, and each of them once more."""

    def __init__(self) -> None:
        super().__init__({"a": In(2), "b": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.b.eq(Cat(copies(m, self.a, 4, name="copy")))
        return m


@pytest.mark.rtl
def test_synthesis_does_not_merge_copies_of_a_register(tmp_path: Path) -> None:
    (tmp_path / "design.il").write_text(to_rtlil(Copied()), "utf-8")
    run_yosys("read_rtlil design.il\nopt_merge\nopt_clean\nselect -assert-count 4 a:keep=1 t:$dff %i", tmp_path)
    text = (tmp_path / "design.il").read_text("utf-8").replace("attribute \\keep 1\n", "")
    (tmp_path / "design.il").write_text(text, "utf-8")
    # Without the attribute, the four are merged into one.
    run_yosys("read_rtlil design.il\nopt_merge\nselect -assert-count 2 t:$dff", tmp_path)


def test_the_share_of_the_work_moves_and_never_falls() -> None:
    class Several(Component):
        def __init__(self) -> None:
            super().__init__({"a": In(3), **{f"b{n}": Out(3) for n in range(5)}})

        def elaborate(self, platform: object) -> Module:
            m = Module()
            for n in range(5):
                m.submodules[f"r{n}"] = part = Register("sync")
                m.d.comb += [part.a.eq(self.a), getattr(self, f"b{n}").eq(part.b)]
            return m

    seen: list[tuple[str, int]] = []
    to_rtlil(Several(), progress=lambda what, done, total: seen.append((what, done)))
    assert list(dict(seen)) == ["elaborating", "netlist", "RTLIL"]
    shares = [done for _, done in seen]
    assert shares == sorted(shares)
    assert len(set(shares)) > 8
