"""Test the top of the OrangeCrab: its clock and pins, its RTLIL, and its agreement with the board's data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgedec.boards.flows.ecp5.orangecrab_top import MEMORY_BYTES, OrangeCrabTop, beside, clocks, platform
from edgedec.boards.orangecrab_85f import BOARD
from edgedec.errors import UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.system.block_ram import blocks
from tests.hw.support.fake_accelerator import Copier

pytest.importorskip("amaranth_boards")
CONFIG = AcceleratorConfig(beat_bytes=8, ports=1, slots=1, ultra=False, clock_hz=BOARD.clock_hz)


def prepared(top: OrangeCrabTop, device: str = "LFE5U-85F") -> tuple[str, str]:
    """Return RTLIL and constraints."""
    files: Any = platform(device).prepare(top, name="top").files

    def text(name: str) -> str:
        return str(files[name] if isinstance(files[name], str) else files[name].decode())

    return text("top.il"), text("top.lpf")


@pytest.mark.rtl
def test_every_part_is_in_the_rtlil() -> None:
    text, pins = prepared(OrangeCrabTop(CONFIG, Copier(CONFIG), baud=BOARD.baud or 0))
    assert text.count("\\EHXPLLL") == 1
    for name, pin in {
        "uart_0__rx__io": "N17",
        "uart_0__tx__io": "M18",
        "clk_0__io": "A9",
        "button_0__io": "J17",
        "program_0__io": "V17",
        "rgb_led_0__r__io": "K4",
    }.items():
        assert f'LOCATE COMP "{name}" SITE "{pin}";' in pins
    assert 'IOBUF PORT "uart_0__rx__io" IO_TYPE=LVCMOS33 PULLMODE=UP;' in pins
    assert '"program_0__io" IO_TYPE=LVCMOS33' in pins
    assert text.count("cell \\IB ") == 3
    assert text.count("cell \\OBZ ") == 5
    assert "FREQUENCY NET" in pins


def test_the_system_can_be_a_module_of_its_own() -> None:
    text, _ = prepared(OrangeCrabTop(CONFIG, Copier(CONFIG), module="edgedec_system"))
    assert text.count("cell \\edgedec_system") == 1
    assert len(text) < 100_000, "nothing of it is in there"


def test_the_data_of_the_board_equal_the_top() -> None:
    assert BOARD.memory_bytes == MEMORY_BYTES
    assert BOARD.memory_bram36 is not None
    assert blocks(MEMORY_BYTES, BOARD.port_bytes) == 2 * BOARD.memory_bram36
    assert BOARD.memory_peak_bytes_s == BOARD.port_bytes * BOARD.clock_hz
    assert clocks(CONFIG).output_hz == (BOARD.clock_hz,) == (90e6,)
    assert beside(CONFIG)["memory"].bram18 == 0, "it is not counted twice"


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no OrangeCrab .* with a LFE5U-45F"):
        platform("LFE5U-45F")
    with pytest.raises(UsageError, match=r"no PLL of the ECP5 makes 80\.1 MHz of 48 MHz"):
        OrangeCrabTop(replace(CONFIG, clock_hz=80.1e6), None)
    with pytest.raises(ValueError, match="ports must be 1 with one memory, not 2"):
        OrangeCrabTop(replace(CONFIG, ports=2), None)
