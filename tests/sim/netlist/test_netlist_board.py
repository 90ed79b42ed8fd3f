"""Run the bench of a system's gateware on the netlist that yosys makes of it: same tests, same harness."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.verify.cocotb_runner import missing_tools

if missing_tools() or find_compiler() is None:
    pytest.skip(f"missing: {missing_tools() or 'a C++ compiler'}", allow_module_level=True)

from edgedec.hw.system.sdram_system import UartSystem
from edgedec.sim.boards.uart_board import BoardTerminal, UartBoard, build
from edgedec.sim.netlist.synthesis import synthesized
from tests.hw.support.fake_accelerator import Copier

# The tests, and the fixture ``device`` that they use; they run on this module's ``terminal``.
from tests.sim.boards.test_uart_board import (  # noqa: F401
    BAUD,
    CHIP,
    CONFIG,
    MEMORY_HZ,
    device,
    test_memory_crosses_the_line_in_both_directions,
    test_the_device_describes_itself,
)

pytestmark = pytest.mark.nightly  # synthesis takes half a minute, once


def with_ones(netlist: Path, folder: Path) -> Path:
    """Return the netlist with ones for undefined bits, on which nothing may depend."""
    text = netlist.read_text("utf-8")
    path = folder / "ones.il"
    path.write_text(re.sub(r"\b(\d+')([01x]+)\b", lambda match: match[1] + match[2].replace("x", "1"), text), "utf-8")
    assert "1'x" in text
    return path


@pytest.fixture(scope="module", params=["netlist", "netlist with ones"])
def terminal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoardTerminal]:
    system = UartSystem(CONFIG, Copier(CONFIG), chip=CHIP, memory_hz=MEMORY_HZ, baud=BAUD, simulated=True)
    netlist = synthesized(system)
    if request.param != "netlist":
        netlist = with_ones(netlist, tmp_path_factory.mktemp("netlist"))
    board = UartBoard(build(system, netlist=netlist), CONFIG, chip=CHIP, memory_hz=MEMORY_HZ, baud=BAUD)
    with BoardTerminal(board) as terminal:
        yield terminal
    assert terminal.failure is None
