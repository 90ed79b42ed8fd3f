"""Test which widths a prefetcher has; test_prefetcher.py reads with them."""

from __future__ import annotations

import pytest

from edgedec.hw.memory.prefetcher import Prefetcher


def test_a_beat_has_a_power_of_two_bytes_from_four_to_sixty_four() -> None:
    for beat_bytes in (4, 8, 16, 32, 64):
        Prefetcher(beat_bytes=beat_bytes, ports=1)
    for beat_bytes in (2, 5, 31, 33, 128):
        with pytest.raises(ValueError, match=f"^beat_bytes must be 4, 8, 16, 32 or 64, not {beat_bytes}$"):
            Prefetcher(beat_bytes=beat_bytes, ports=1)
