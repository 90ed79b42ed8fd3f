"""Run the test of whole tokens over a serial line on the netlist that yosys makes of the system."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.verify.cocotb_runner import missing_tools

if missing_tools() or find_compiler() is None:
    pytest.skip(f"missing: {missing_tools() or 'a C++ compiler'}", allow_module_level=True)

from edgedec.sim.boards import uart_board
from edgedec.sim.netlist.synthesis import synthesized
from tests.sim.boards.test_uart_tokens import test_tokens_over_the_line_equal_the_integer_model  # noqa: F401

pytestmark = pytest.mark.nightly  # synthesis takes minutes, once


@pytest.fixture(autouse=True)
def of_netlist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build from the netlist instead of the gateware."""
    build = uart_board.build

    def build_netlist(system: Any) -> Any:
        return build(system, netlist=synthesized(system))

    monkeypatch.setattr(uart_board, "build", build_netlist)
