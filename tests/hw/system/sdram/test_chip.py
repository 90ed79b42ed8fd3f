"""Compare a chip's times in cycles with a table by hand, at clocks where each nanosecond of them counts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from edgedec.errors import UsageError
from edgedec.hw.system.sdram.chip import IS42S16160G, SdramChip

TIMES: dict[str, float] = {
    **{"rcd_ns": 20, "rp_ns": 20, "rc_ns": 63, "ras_ns": 42, "rfc_ns": 70, "rrd_ns": 14, "wr_ns": 15, "mrd_ns": 14},
    **{"startup_ns": 200_000, "refreshes": 8192, "refresh_ns": 64e6, "cas": 3, "most_hz": 143e6},
}


def test_the_chip_has_its_times_and_its_size() -> None:
    fields = asdict(IS42S16160G)
    assert {name: fields[name] for name in TIMES} == TIMES
    assert (IS42S16160G.bytes, IS42S16160G.row_bytes) == (32 << 20, 1024)
    assert (IS42S16160G.bank_bits, IS42S16160G.row_bits, IS42S16160G.column_bits) == (2, 13, 9)


@pytest.mark.parametrize(
    ("clock_hz", "cycles"),
    [
        (50e6, {"rcd": 1, "rc": 4, "ras": 3, "rfc": 4, "wr": 1, "mrd": 2, "startup": 10_000, "refresh_interval": 390}),
        (80e6, {"rcd": 2, "rc": 6, "ras": 4, "rfc": 6, "rrd": 2, "mrd": 2, "startup": 16_000, "refresh_interval": 625}),
        (100e6, {"rcd": 2, "rp": 2, "rc": 7, "ras": 5, "rfc": 7, "rrd": 2, "wr": 2, "refresh_interval": 781}),
        (143e6, {"rcd": 3, "rp": 3, "rc": 10, "ras": 7, "rfc": 11, "rrd": 3, "wr": 3, "mrd": 3, "cas": 3}),
    ],
)
def test_minima_are_rounded_up_and_the_refresh_down(clock_hz: float, cycles: dict[str, int]) -> None:
    times = asdict(IS42S16160G.times(clock_hz))
    assert {name: times[name] for name in cycles} == cycles


def test_a_time_is_never_less_than_a_cycle_or_than_two_for_the_mode() -> None:
    times = asdict(IS42S16160G.times(1e6))
    assert [times[name] for name in ("rcd", "rp", "rc", "ras", "rfc", "rrd", "wr", "mrd")] == [1] * 7 + [2]


@pytest.mark.parametrize("clock_hz", [0.99e6, 143.1e6])
def test_a_clock_that_the_chip_does_not_take_is_refused(clock_hz: float) -> None:
    with pytest.raises(UsageError, match="takes a clock of 1 to 143 MHz with CAS latency 3"):
        IS42S16160G.times(clock_hz)


def test_a_chip_has_the_usual_refreshes_by_default() -> None:
    usual: dict[str, Any] = {name: 1.0 for name in TIMES if name.endswith("_ns") and name != "refresh_ns"}
    chip = SdramChip(name="test", most_hz=1e8, source="this test", **usual)
    assert (chip.refreshes, chip.row_bits, chip.bank_bits, chip.column_bits) == (8192, 13, 2, 9)
