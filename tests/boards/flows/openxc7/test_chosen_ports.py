"""Check that the accelerator that is chosen for a board fits the ports of its processing system."""

from __future__ import annotations

import pytest

from edgedec.boards import find_board
from edgedec.boards.flows.openxc7.project import CLOCK_HZ, adapt_board
from edgedec.hw.plan.choose_board import config_for_board
from tests.edgedec.reference.integer_profile.support.make_models import tiny


@pytest.mark.parametrize("name", ["pynq-z2", "arty-z7-20"])
def test_a_slow_clock_does_not_ask_for_wider_ports(name: str) -> None:
    board = adapt_board(find_board(name))
    assert board.bandwidth_bytes_s == board.ports * board.port_bytes * CLOCK_HZ
    config = config_for_board(tiny("native")[2], board, context=64)
    assert (config.ports, config.port_bytes) == (4, 8)
