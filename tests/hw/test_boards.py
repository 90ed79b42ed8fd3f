"""What the boards have, as their data sheets say: an estimate's verdict is no better than these."""

from __future__ import annotations

import pytest

from edgedec.hw.estimate import BOARDS

HAS = {
    "kv260": {"lut": 117_120, "ff": 234_240, "bram36": 144, "uram": 64, "dsp": 1248},  # AMD DS987
    "xc7z020": {"lut": 53_200, "ff": 106_400, "bram36": 140, "uram": 0, "dsp": 220},  # AMD DS190
    # Lattice FPGA-DS-02012: 208 EBR of 18 kbit, 156 multipliers 18 x 18; a slice has a register for each LUT.
    "ulx3s-85f": {"lut": 83_640, "ff": 83_640, "bram36": 208 // 2, "uram": 0, "dsp": 156},
}


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_what_its_data_sheet_says(name: str) -> None:
    assert dict(BOARDS[name].has) == HAS[name]


@pytest.mark.parametrize("name", BOARDS)
def test_the_part_of_it_that_an_accelerator_may_take(name: str) -> None:
    """The goals of the KV260, on every board."""
    assert dict(BOARDS[name].most) == {"lut": 0.75, "bram36": 0.75, "uram": 0.75, "dsp": 0.65}
