from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.compiler.memory_image import REGION_BYTES, MemoryImage, cache_regions, image_regions
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Base, Instruction, Opcode


def test_segments_follow_each_other_and_are_padded_to_whole_beats() -> None:
    image = MemoryImage(4)
    starts = [image.add(2, lambda: np.arange(1, 6, dtype=np.uint8)), image.add(1, lambda: np.full((2, 2), 9, np.uint8))]
    assert (starts, image.beats) == ([0, 2], 3)
    assert image.build().tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 9, 9, 9, 9]


@pytest.mark.parametrize("size", [4, 9])
def test_a_segment_of_another_size_is_refused(size: int) -> None:
    image = MemoryImage(4)
    image.add(2, lambda: np.zeros(size, np.uint8))
    with pytest.raises(ValueError, match=f"^a segment of {size} bytes was announced with 2 beats$"):
        image.build()


def reads(*ranges: tuple[int, int]) -> list[Instruction]:
    """Return READs of the image from a first beat on, between one of the input and another instruction."""
    image = [Instruction(Opcode.READ, {"base": Base.IMAGE, "start": start, "beats": beats}) for start, beats in ranges]
    return [
        Instruction(Opcode.READ, {"base": Base.INPUT, "start": 3, "beats": 900}),
        *image,
        Instruction(Opcode.STOP, {}),
    ]


@pytest.mark.parametrize(
    ("ranges", "beats", "most", "ends"),
    [
        ([(0, 10), (10, 20)], 30, 30, [30]),
        ([(0, 10), (10, 20)], 30, 29, [10, 30]),
        ([(10, 20), (0, 10), (30, 5)], 35, 25, [10, 35]),  # not in the order of the image
        ([(0, 10), (10, 10), (20, 10), (30, 10)], 40, 20, [20, 40]),
        ([(0, 10), (5, 10), (15, 10)], 25, 12, [15, 25]),  # two that overlap stay together
        ([(0, 10), (0, 10), (10, 10)], 20, 10, [10, 20]),  # one that is read twice
        ([(0, 50), (50, 5)], 55, 20, [50, 55]),  # one that is larger than a region
        ([(0, 5), (5, 50), (55, 5)], 60, 20, [5, 55, 60]),
        ([(0, 8), (10, 8)], 20, 12, [10, 20]),  # beats that nobody reads
    ],
)
def test_an_image_is_divided_where_no_read_is_torn(
    ranges: list[tuple[int, int]], beats: int, most: int, ends: list[int]
) -> None:
    found = image_regions(reads(*ranges), beats, most)
    assert [region.stop for region in found] == ends
    assert [region.start for region in found] == [0, *ends[:-1]]


def test_any_image_is_divided_into_regions_that_fit() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        sizes = rng.integers(1, 30, rng.integers(1, 40)).tolist()
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        ranges = list(zip(starts, sizes, strict=True))
        rng.shuffle(ranges)
        most = int(rng.integers(max(sizes), 100))
        found = image_regions(reads(*((int(start), int(size)) for start, size in ranges)), sum(sizes), most)
        assert all(len(region) <= most for region in found)
        assert [beat for region in found for beat in region] == list(range(sum(sizes)))
        for start, size in ranges:
            assert sum(start in region and start + size - 1 in region for region in found) == 1
        assert len(found) <= 2 * -(-sum(sizes) // most), "none is nearly empty"


@pytest.mark.parametrize(("most", "ends"), [(12, [12]), (11, [8, 12]), (8, [8, 12]), (7, [4, 8, 12]), (3, [4, 8, 12])])
def test_a_cache_is_divided_between_its_layers(most: int, ends: list[int]) -> None:
    """Give three layers two heads each, whose keys and values are four runs; ``most`` and ``ends`` count runs."""
    config = AcceleratorConfig()
    run = config.cache_rows(0).run
    instructions = [
        Instruction(opcode, {"start": 4 * run * layer, "run": run, **fields})
        for layer in range(3)
        for opcode, fields in (
            (Opcode.CACHE, {"heads": 6, "group": 3}),
            (Opcode.ATTEND, {"heads": 6, "kv_heads": 2}),
            (Opcode.COPY, {"heads": 2}),
        )
    ]
    found = cache_regions(reads((0, 5)) + instructions, config, 12 * run, most * run)
    assert found == tuple(range(run * start, run * end) for start, end in zip([0, *ends], ends, strict=False))


def test_a_region_is_64_mib() -> None:
    assert REGION_BYTES == 64 << 20
