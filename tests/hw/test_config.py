from __future__ import annotations

from typing import Any

import pytest

from edgedec.errors import UsageError
from edgedec.hw.config import AcceleratorConfig


def test_sizes_follow() -> None:
    config = AcceleratorConfig(beat_bytes=16, tile_rows=40)
    assert (config.groups, config.tile_words) == (6, 8)  # five groups of three columns, and one column
    assert AcceleratorConfig().groups == 22


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beat_bytes": 12}, "beat_bytes must be 4, 8, 16, 32 or 64, not 12"),
        ({"slots": 0}, "slots must be 1 to 8, not 0"),
        ({"slots": 9}, "slots must be 1 to 8, not 9"),
        ({"tile_rows": 12}, "tile_rows must be a positive multiple of 5, not 12"),
        ({"tile_rows": 0}, "tile_rows must be a positive multiple of 5, not 0"),
        ({"context": 0}, "context must be 1 to 65536, not 0"),
        ({"head_dim": 4096}, "head_dim must be 2 to 2048, not 4096"),
        ({"clock_hz": 0.0}, "clock_hz must be positive, not 0.0"),
    ],
)
def test_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        AcceleratorConfig(**changed)
