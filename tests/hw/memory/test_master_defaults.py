"""Check the parameters of both masters that callers may leave out, and the widths of the prefetcher."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.hw.memory.read_master import ReadMaster
from edgedec.hw.memory.write_master import WriteMaster


@pytest.mark.parametrize("make", [ReadMaster, WriteMaster])
def test_a_request_has_a_length_of_32_bits(make: Any) -> None:
    assert len(make(address_bits=40, data_bytes=16).requests.p.bytes) == 32


@pytest.mark.parametrize("beat_bytes", [4, 8, 16, 32, 64])
def test_the_stream_of_the_prefetcher_has_each_width(beat_bytes: int) -> None:
    assert len(Prefetcher(beat_bytes=beat_bytes, ports=1, depth=64).beats.payload) == beat_bytes


@pytest.mark.parametrize("make", [ReadMaster, WriteMaster])
def test_idle_has_one_bit(make: Any) -> None:
    """Check this because the prefetcher waits until all bits of its masters' ``idle`` are set."""
    assert len(make(address_bits=40, data_bytes=16).idle) == 1
