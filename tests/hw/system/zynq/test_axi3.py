"""Compare the signals of AXI3 with a table of the standard's, and test which widths are accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from amaranth.lib.wiring import Signature

from edgedec.hw.system.zynq.axi3 import axi3_read, axi3_write

WIDTHS: dict[str, Any] = {"address_bits": 32, "data_bytes": 8, "id_bits": 6}
ADDRESS = {
    "id": 6,
    "addr": 32,
    "len": 4,
    "size": 3,
    "burst": 2,
    "lock": 2,
    "cache": 4,
    "prot": 3,
    "valid": 1,
    "ready": 1,
}
READ = {"id": 6, "data": 64, "resp": 2, "last": 1, "valid": 1, "ready": 1}
WRITE = {"id": 6, "data": 64, "strb": 8, "last": 1, "valid": 1, "ready": 1}
ANSWER = {"id": 6, "resp": 2, "valid": 1, "ready": 1}


def named(**channels: dict[str, int]) -> dict[str, int]:
    return {f"{channel}{name}": width for channel, widths in channels.items() for name, width in widths.items()}


@pytest.mark.parametrize(
    ("make", "widths"),
    [(axi3_read, named(ar=ADDRESS, r=READ)), (axi3_write, named(aw=ADDRESS, w=WRITE, b=ANSWER))],
)
def test_signals_have_the_widths_of_the_standard(make: Callable[..., Signature], widths: dict[str, int]) -> None:
    members = make(**WIDTHS).members
    assert {name: member.shape for name, member in members.items()} == widths
    beats = [member for name, member in members.items() if name.endswith("size")]
    assert [member.init for member in beats] == [3]


@pytest.mark.parametrize("make", [axi3_read, axi3_write])
@pytest.mark.parametrize(("name", "least", "most"), [("address_bits", 12, 64), ("id_bits", 1, 32)])
def test_the_ends_of_a_range_are_accepted(make: Callable[..., Signature], name: str, least: int, most: int) -> None:
    for value in (least, most):
        make(**WIDTHS | {name: value})
    for value in (least - 1, most + 1):
        with pytest.raises(ValueError, match=f"^{name} must be an integer from {least} to {most}, not {value}$"):
            make(**WIDTHS | {name: value})
