"""Test the parts of the benchmark of a serial line: a device with passes of a given time, and a line that holds answers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accelerator.serial_line import HeldTerminal, PacedDevice, TokenTime
from edgedec.runtime.devices.uart import open_device
from edgedec.runtime.driver.driver import Driver
from edgedec.sim.boards.link_server import LinkServer
from tests.runtime.driver.support.bench_session import embedding, ids, program
from tests.sim.support.make_small_top import CONFIG


def test_a_pass_crosses_a_line_that_holds_its_answers() -> None:
    """Check that the bytes of both directions are counted, and that a pass ends with the likeliest tokens."""
    server = LinkServer(PacedDevice(CONFIG, 1e-4), memory_bytes=1 << 18, granule=CONFIG.port_bytes)
    with HeldTerminal(server, baud=50_000_000, hold_s=1e-4) as line:
        device = open_device(CONFIG, port=line.path, patience_s=10.0)
        with Driver(device, program(), embedding()) as driver:
            before = line.line_s
            driver.forward(ids(1))
            assert driver.results(ids(0)).ids.shape == (1, CONFIG.top_k)
            assert line.line_s > before + 500 * 10 / 50_000_000
            driver.commit(np.zeros(1, np.int32))
            assert driver.length == 1
        assert device.link.retries == 0
        device.close()


def test_the_rest_of_a_token_is_what_no_part_explains() -> None:
    found = TokenTime(
        requests="RUN", output="likeliest", hold_ms=1, round_trips=2, token_ms=20, pass_ms=11.8, line_ms=4.2
    )
    assert (found.tokens_s, found.waits_ms) == pytest.approx((50, 4))
