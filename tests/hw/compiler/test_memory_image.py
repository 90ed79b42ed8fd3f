from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw.compiler.memory_image import MemoryImage


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
