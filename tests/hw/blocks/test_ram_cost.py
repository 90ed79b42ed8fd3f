"""Compare costs of memories with counts by hand."""

from __future__ import annotations

import pytest

from edgedec.hw.blocks.ram_cost import block_rams, distributed_luts, ultra_rams
from edgedec.hw.blocks.resources import Resources


@pytest.mark.parametrize(
    ("width", "depth", "luts"),
    [
        (14, 32, 8),
        (15, 32, 16),
        (7, 33, 8),
        (14, 33, 16),
        (8, 64, 16),
        (7, 65, 16 + 7),
        (7, 256, 32 + 7),
        (7, 257, 40 + 14),
    ],
)
def test_luts_of_memories(width: int, depth: int, luts: int) -> None:
    assert distributed_luts(width, depth) == luts


@pytest.mark.parametrize(("words", "bits"), [(512, 36), (1024, 18), (2048, 9), (4096, 4), (8192, 2), (16384, 1)])
def test_a_block_ram_holds_each_of_its_shapes_and_no_more(words: int, bits: int) -> None:
    assert (block_rams(bits, words), block_rams(bits, words + 1), block_rams(bits + 1, words)) == (1, 2, 2)


def test_an_ultra_ram_holds_4096_words_of_72_bits() -> None:
    assert [ultra_rams(*size) for size in ((72, 4096), (73, 4096), (72, 4097), (73, 4097))] == [1, 2, 2, 4]


def test_nothing_costs_nothing_and_sums_are_by_kind() -> None:
    assert Resources().counted() == {"lut": 0, "ff": 0, "bram36": 0, "uram": 0, "dsp": 0}
    one = Resources(lut=1, ff=2, bram18=3, uram=4, dsp=5)
    assert one + one == one * 2 == Resources(lut=2, ff=4, bram18=6, uram=8, dsp=10)
    assert one.counted()["bram36"] == 2
