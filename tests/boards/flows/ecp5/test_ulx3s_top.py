"""Test the top of the ULX3S: its clocks, and that all parts become RTLIL."""

from __future__ import annotations

import re

import pytest

from edgedec.boards.flows.ecp5.pll import pll_settings
from edgedec.boards.flows.ecp5.ulx3s_top import MEMORY_HZ, Ulx3sTop
from edgedec.boards.ulx3s_85f import BOARD
from edgedec.hw.config import AcceleratorConfig
from tests.hw.support.fake_accelerator import Copier

CONFIG = AcceleratorConfig(beat_bytes=4, ports=1, slots=1, ultra=False, clock_hz=BOARD.clock_hz)


@pytest.mark.rtl
def test_every_part_is_in_the_rtlil() -> None:
    platform = pytest.importorskip("amaranth_boards.ulx3s").ULX3S_85F_Platform()
    top = Ulx3sTop(CONFIG, Copier(CONFIG), baud=BOARD.baud or 0)
    files = platform.prepare(top, name="top").files
    text, pins = (data if isinstance(data, str) else data.decode() for data in (files["top.il"], files["top.lpf"]))
    assert text.count("\\EHXPLLL") == 1
    assert "sdram_0__dq" in text
    assert "uart_0__rx" in text
    assert text.count("cell \\ODDRX1F") == 1
    assert "IFS1P3DX" not in text, "data are sampled at four phases, by registers in the fabric"
    assert len(re.findall(r"cell \\OFS1P3DX \\memory_dq\d+_o(?:ff)?(?:\$\d+)?$", text, re.MULTILINE)) == 2 * 16
    settings = dict(re.findall(r"parameter \\(CLKO\w+) (\d+)", text))
    assert [settings[f"CLKOS2_{name}"] for name in ("DIV", "CPHASE", "FPHASE")] == ["8", "9", "0"], "a quarter later"
    assert settings["CLKOS_DIV"] == "8"
    assert settings["CLKOS_CPHASE"] == "7"
    # The ESP32's pin is driven high; its other pins are left to the board.
    assert 'LOCATE COMP "esp32_0__gpio0__io" SITE "L2"' in pins
    driven = re.search(r"^module \\top\.wifi_gpio0$.*?^end$", text, re.DOTALL | re.MULTILINE)
    assert driven is not None
    assert re.search(r"connect \\A 1'1\s+connect \\B 1'0\s+connect \\Y \\o$", driven[0], re.MULTILINE)
    assert set(re.findall(r"esp32_0__\w+?__io", text)) == {"esp32_0__gpio0__io"}


def test_the_clocks_of_the_board_are_possible() -> None:
    settings = pll_settings(25e6, (BOARD.clock_hz, MEMORY_HZ))
    assert settings.output_hz == (80e6, 100e6)
    assert settings.vco_hz == 800e6
    assert BOARD.memory_peak_bytes_s >= 2 * MEMORY_HZ
