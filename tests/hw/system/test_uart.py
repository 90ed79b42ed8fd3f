"""Test which lines a receiver and a transmitter accept; test_host_link.py sends bytes over them."""

from __future__ import annotations

import pytest

from edgedec.hw.system.uart import UartReceiver, UartTransmitter


@pytest.mark.parametrize("make", [UartReceiver, UartTransmitter])
def test_a_bit_takes_four_cycles_at_least(make: type[UartReceiver | UartTransmitter]) -> None:
    make(clock_hz=4000.0, baud=1000)
    make(clock_hz=4000.0, baud=1)
    for baud in (1001, 0, -1):
        with pytest.raises(ValueError, match=f"^baud must be at most a quarter of the clock 4000 Hz, not {baud}$"):
            make(clock_hz=4000.0, baud=baud)
