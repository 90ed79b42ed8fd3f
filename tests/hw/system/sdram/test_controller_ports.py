"""Test how many ports an SDRAM's controller has; test_controller.py moves data through them."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.system.sdram.chip import IS42S16160G
from edgedec.hw.system.sdram.controller import SdramController

OTHERS: dict[str, Any] = {"chip": IS42S16160G, "clock_hz": 80e6, "data_bytes": 4}


@pytest.mark.parametrize("name", ["reads", "writes"])
def test_there_are_from_one_to_four_ports_of_a_kind(name: str) -> None:
    for ports in (1, 4):
        SdramController(**OTHERS | {name: ports})
    for ports in (0, 5):
        with pytest.raises(ValueError, match=f"^{name} must be an integer from 1 to 4, not {ports}$"):
            SdramController(**OTHERS | {name: ports})
