from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.board import FAMILIES
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.read import read_handoff
from edgedec.hw.handoff.write import FAMILIES as SYSTEMS
from edgedec.hw.handoff.write import write_hwh
from edgedec.runtime.devices._memory_ports import MEMORY_PORTS, REGISTER_BYTES, set_ports

CONFIG = AcceleratorConfig(beat_bytes=16, ports=2, slots=1, tile_rows=40, width=256, hidden=128)


@pytest.mark.parametrize(
    ("system", "ports", "addresses", "commands"),
    [
        ("zynq_ultra_ps_e", ["S_AXI_HP0_FPD", "S_AXI_HP3_FPD"], [0xFD38_0000, 0xFD3B_0000], 15),
        ("zynq_ultra_ps_e", ["S_AXI_HPC1_FPD"], [0xFD37_0000], 15),
        ("processing_system7", ["S_AXI_HP1", "S_AXI_HP2"], [0xF800_9000, 0xF800_A000], 7),
    ],
)
def test_ports_are_set(system: str, ports: list[str], addresses: list[int], commands: int) -> None:
    written: list[tuple[int, int, int]] = []
    assert set_ports(system, ports, lambda *words: written.append(words)) == len(ports)
    values = [(0x04, commands), (0x18, commands), (0x08, 0), (0x1C, 0)]
    assert written == [(address, offset, value) for address in addresses for offset, value in values]
    assert all(offset + 4 <= REGISTER_BYTES for _, offset, _ in written)


def test_what_is_unknown_is_left_alone() -> None:
    def write(*_: int) -> None:
        raise AssertionError("a register was written")

    assert set_ports("another_system", ["S_AXI_HP0_FPD"], write) == 0
    assert set_ports("zynq_ultra_ps_e", ["S_AXI_LPD"], write) == 0


@pytest.mark.parametrize("family", sorted(SYSTEMS))
def test_the_ports_of_a_hand_off_file_are_known(tmp_path: Path, family: str) -> None:
    path = tmp_path / "system.hwh"
    write_hwh(CONFIG, path, family=family)
    handoff = read_handoff(path)
    known = MEMORY_PORTS[handoff.system].addresses
    assert [name in known for name in handoff.memory_ports] == [True] * CONFIG.ports
    assert family in FAMILIES
