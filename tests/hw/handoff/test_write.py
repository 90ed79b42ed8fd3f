"""The hand-off file that edgedec writes, as pynq's own parser reads it. What edgedec reads of it: tests/runtime/devices."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from edgedec.hw.handoff.write import CONTROLLER, FAMILIES, write_hwh
from edgedec.hw.isa.ip_core import HASH_PARAMETER, INSTANCE, VLNV
from edgedec.hw.isa.registers import REGISTER_MAP
from tests.sim.support.make_small_top import CONFIG

pytest.importorskip("pynq", reason="pynq is not installed; `.ci/environment board` installs it")


def parsed(path: Path, family: str, **options: Any) -> Any:
    write_hwh(CONFIG, path, family=family, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pynqmetadata.frontends import Metadata
        from pynqmetadata.views.runtime import RuntimeMetadataParser

        return RuntimeMetadataParser(Metadata(input=str(path)))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_pynq_reads_it(tmp_path: Path, family: str) -> None:
    system, found = FAMILIES[family], parsed(tmp_path / "a.hwh", family, clock_hz=100e6)
    block = found.ip_dict[INSTANCE]
    assert (block["type"], block["phys_addr"], block["fullpath"]) == (VLNV, system.accelerator_address, INSTANCE)
    assert int(block["parameters"][HASH_PARAMETER], 16) == CONFIG.hash
    assert found.family_ps == system.module
    clock = found.clock_dict[0]
    assert clock["enable"] == 1
    assert system.pll_hz / (clock["divisor0"] * clock["divisor1"]) == pytest.approx(100e6, rel=1e-3)
    assert [found.clock_dict[number]["enable"] for number in (1, 2, 3)] == [0, 0, 0]
    widths = {
        name: value for name, value in found.ip_dict[found.ps_name]["parameters"].items() if name.startswith("C_")
    }
    assert widths == {system.width.format(system.first_width + port): "32" for port in range(CONFIG.ports)}


def test_registers_are_the_tables(tmp_path: Path) -> None:
    registers = parsed(tmp_path / "a.hwh", "zynq-ultrascale+").ip_dict[INSTANCE]["registers"]
    assert len(registers) == sum(register.count for register in REGISTER_MAP.registers)
    for register in REGISTER_MAP.registers:
        last = registers[register.name if register.count == 1 else f"{register.name}_{register.count - 1}"]
        assert last["address_offset"] == register.offset + (register.count - 1) * register.bytes
        assert last["size"] == 8 * register.bytes
        found = {name: (field["bit_offset"], field["bit_width"]) for name, field in last["fields"].items()}
        assert found == {field.name: (lsb, field.bits) for field, lsb in register.positions()}


def test_interrupts(tmp_path: Path) -> None:
    with_one = parsed(tmp_path / "a.hwh", "zynq-ultrascale+")
    assert with_one.interrupt_pins["accelerator_0/interrupt"]["controller"] == CONTROLLER
    assert with_one.interrupt_controllers[CONTROLLER]["raw_irq"] == 121  # what PYNQ's images make a file for
    without = parsed(tmp_path / "a.hwh", "zynq-ultrascale+", interrupt=False)
    assert (without.interrupt_pins, without.interrupt_controllers) == ({}, {})
