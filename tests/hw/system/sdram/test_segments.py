"""Test into which pieces bursts can be cut; test_controller.py cuts them."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.system.sdram.segments import Segments
from tests.hw.support.bench_streams import run

OTHERS: dict[str, Any] = {"memory_bytes": 1 << 20, "data_bytes": 4}


def test_a_piece_is_a_power_of_two_of_beats() -> None:
    for chunk in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        Segments(**OTHERS, chunk=chunk, address_bits=20)
    for chunk in (0, 3, 7, 17, 255, 257, 512):
        with pytest.raises(ValueError, match=f"^chunk must be a power of two, 1 to 256, not {chunk}$"):
            Segments(**OTHERS, chunk=chunk, address_bits=20)


def test_addresses_reach_over_the_memory_and_have_sixty_four_bits_at_most() -> None:
    for bits in (20, 64):
        assert len(Segments(**OTHERS, chunk=4, address_bits=bits).bursts.p.address) == bits
    for bits in (19, 65):
        with pytest.raises(ValueError, match=f"^address_bits must be an integer from 20 to 64, not {bits}$"):
            Segments(**OTHERS, chunk=4, address_bits=bits)


@pytest.mark.parametrize(("start", "pieces"), [(0, [(0, 256, 1)]), (255, [(255, 1, 0), (256, 255, 1)])])
def test_the_longest_burst_is_one_piece_if_it_is_aligned(start: int, pieces: list[tuple[int, int, int]]) -> None:
    """Cut 256 beats, whose number has nine bits, by pieces of 256."""
    dut = Segments(**OTHERS, chunk=256, address_bits=20)
    found = run(dut, {"bursts": [{"address": 4 * start, "len": 255}]}, {"segments": len(pieces)})["segments"]
    assert [(one["address"], one["beats"], one["final"]) for one in found] == pieces
