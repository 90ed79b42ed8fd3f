"""Test the places of tapped values by hand: vector, norm and roots follow each other, each from a page on."""

from __future__ import annotations

import pytest

from edgedec.hw.compiler.output_places import TapPlaces, item_row_bytes, rows_end, tap_places
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction, Opcode

PAGE = 4096


@pytest.mark.parametrize(("slots", "size"), [(1, 4), (2, 8), (3, 16), (4, 16), (5, 32), (7, 32), (8, 32)])
def test_an_item_has_four_bytes_of_each_slot_and_a_power_of_two_of_them(slots: int, size: int) -> None:
    config = AcceleratorConfig(slots=slots)
    assert item_row_bytes(config) == size
    assert rows_end(config, 41) == PAGE + 41 * size


def places(slots: int, blocks: int, **fields: int) -> TapPlaces | None:
    """Return the places of a VECTOR from page 3 on, of ``blocks`` times 16 columns."""
    config = AcceleratorConfig(slots=slots, beat_bytes=16, taps=True)
    return tap_places(config, Instruction(Opcode.VECTOR, {"normed": 1, "blocks": blocks, "tap_page": 3, **fields}))


@pytest.mark.parametrize("blocks", [1, 16, 17])
def test_a_vector_and_its_norm_take_whole_pages(blocks: int) -> None:
    """Use 16 columns of 16 bytes in a block, so that 16 blocks fill a page; roots have 8 bytes for each of three slots."""
    columns, size = 256 * blocks, PAGE * (1 if blocks <= 16 else 2)
    vector, roots = 3 * PAGE, 3 * 8
    assert places(3, blocks) is None
    assert places(3, blocks, tap=1) == TapPlaces(
        vector=vector, norm=None, roots=None, begin=vector, end=vector + size, written=columns
    )
    assert places(3, blocks, tap_norm=1) == TapPlaces(
        vector=None, norm=vector, roots=vector + size, begin=vector, end=vector + size + PAGE, written=columns + roots
    )
    assert places(3, blocks, tap=1, tap_norm=1) == TapPlaces(
        vector=vector,
        norm=vector + size,
        roots=vector + 2 * size,
        begin=vector,
        end=vector + 2 * size + PAGE,
        written=2 * columns + roots,
    )
