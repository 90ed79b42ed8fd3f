"""Check the parameters of both masters that callers may leave out."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.memory.read_master import ReadMaster
from edgedec.hw.memory.write_master import WriteMaster


@pytest.mark.parametrize("make", [ReadMaster, WriteMaster])
def test_a_request_has_a_length_of_32_bits(make: Any) -> None:
    assert len(make(address_bits=40, data_bytes=16).requests.p.bytes) == 32
