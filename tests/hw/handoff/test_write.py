"""Read the hand-off file that edgedec writes with pynq's own parser, and a part of it as XML; test_read.py has edgedec's
reader.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from edgedec.hw.handoff.write import CONTROLLER, FAMILIES, _divisors, write_hwh
from edgedec.hw.isa.ip_core import HASH_PARAMETER, INSTANCE, VLNV
from edgedec.hw.isa.registers import REGISTER_MAP
from tests.sim.support.make_small_top import CONFIG


def parsed(path: Path, family: str, **options: Any) -> Any:
    pytest.importorskip("pynq", reason="pynq is not installed; `.ci/environment board` installs it")
    write_hwh(CONFIG, path, family=family, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pynqmetadata.frontends import Metadata
        from pynqmetadata.views.runtime import RuntimeMetadataParser

        return RuntimeMetadataParser(Metadata(input=str(path)))


def test_the_fastest_clock_within_a_thousandth_is_chosen() -> None:
    assert _divisors(1e9, 1e9) == (1, 1)
    assert _divisors(1e9, 5e8) == (2, 1)
    assert _divisors(1e9, 1e9 / 1.0005) == (1, 1)
    assert _divisors(1e9, 1e9 / 1.002) == (2, 1)
    assert _divisors(1e9, 1e9 / 63**2) == (63, 63)
    assert _divisors(1e9, 1e9 / 12) == (4, 3)  # and not (6, 2) or (12, 1): the more equal pair wins


@pytest.mark.parametrize(
    ("family", "clocks"),
    [("zynq-ultrascale+", ["249.997500", *["0.000000"] * 3]), ("zynq-7000", ["250.000000", *["0.000000"] * 3])],
)
def test_the_first_of_four_clocks_runs(tmp_path: Path, family: str, clocks: list[str]) -> None:
    """Divide the 1,499.985 MHz of one family and the 1,000 MHz of the other; the file has MHz."""
    write_hwh(CONFIG, tmp_path / "a.hwh", family=family, clock_hz=250e6)
    system, root = FAMILIES[family], ElementTree.parse(tmp_path / "a.hwh")
    values = {one.get("NAME"): one.get("VALUE") for one in root.iter("PARAMETER")}
    assert [values[system.frequency.format(number)] for number in range(4)] == clocks
    assert [values[system.enable.format(number)] for number in range(4)] == ["1", "0", "0", "0"]
    assert system.enable.format(4) not in values


@pytest.mark.parametrize("interrupt", [True, False])
def test_blocks_have_their_kinds_and_addresses(tmp_path: Path, interrupt: bool) -> None:
    write_hwh(CONFIG, tmp_path / "a.hwh", family="zynq-ultrascale+", interrupt=interrupt)
    root = ElementTree.parse(tmp_path / "a.hwh")
    kinds = {module.get("INSTANCE"): module.get("MODTYPE") for module in root.iter("MODULE")}
    system = FAMILIES["zynq-ultrascale+"]
    assert kinds == {INSTANCE: "accelerator", system.name: system.module} | (
        {CONTROLLER: "axi_intc"} if interrupt else {}
    )
    ranges = {
        one.get("INSTANCE"): (one.get("BASEVALUE"), one.get("HIGHVALUE"))
        for one in root.iter("MEMRANGE")
        if one.get("MEMTYPE") == "REGISTER"
    }
    assert ranges == {INSTANCE: ("0xa0000000", "0xa0000fff")} | (
        {CONTROLLER: ("0xa0010000", "0xa001ffff")} if interrupt else {}
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_pynq_reads_the_file(tmp_path: Path, family: str) -> None:
    system, metadata = FAMILIES[family], parsed(tmp_path / "a.hwh", family, clock_hz=100e6)
    block = metadata.ip_dict[INSTANCE]
    assert (block["type"], block["phys_addr"], block["fullpath"]) == (VLNV, system.accelerator_address, INSTANCE)
    assert int(block["parameters"][HASH_PARAMETER], 16) == CONFIG.hash
    assert metadata.family_ps == system.module
    clock = metadata.clock_dict[0]
    assert clock["enable"] == 1
    assert system.pll_hz / (clock["divisor0"] * clock["divisor1"]) == pytest.approx(100e6, rel=1e-3)
    assert [metadata.clock_dict[number]["enable"] for number in (1, 2, 3)] == [0, 0, 0]
    widths = {
        name: value for name, value in metadata.ip_dict[metadata.ps_name]["parameters"].items() if name.startswith("C_")
    }
    assert widths == {system.width.format(system.first_width + port): "32" for port in range(CONFIG.ports)}


def test_registers_equal_the_table(tmp_path: Path) -> None:
    registers = parsed(tmp_path / "a.hwh", "zynq-ultrascale+").ip_dict[INSTANCE]["registers"]
    assert len(registers) == sum(register.count for register in REGISTER_MAP.registers)
    for register in REGISTER_MAP.registers:
        last = registers[register.name if register.count == 1 else f"{register.name}_{register.count - 1}"]
        assert last["address_offset"] == register.offset + (register.count - 1) * register.bytes
        assert last["size"] == 8 * register.bytes
        offsets = {name: (field["bit_offset"], field["bit_width"]) for name, field in last["fields"].items()}
        assert offsets == {field.name: (lsb, field.bits) for field, lsb in register.positions()}


def test_interrupts_are_listed(tmp_path: Path) -> None:
    with_one = parsed(tmp_path / "a.hwh", "zynq-ultrascale+")
    assert with_one.interrupt_pins["accelerator_0/interrupt"]["controller"] == CONTROLLER
    assert with_one.interrupt_controllers[CONTROLLER]["raw_irq"] == 121  # PYNQ's images make a file for it
    without = parsed(tmp_path / "a.hwh", "zynq-ultrascale+", interrupt=False)
    assert (without.interrupt_pins, without.interrupt_controllers) == ({}, {})
