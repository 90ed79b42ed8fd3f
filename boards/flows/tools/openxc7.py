"""The open tools for a Zynq-7000, experimental: yosys, nextpnr-xilinx and prjxray, as openXC7 brings them."""

from __future__ import annotations

from edgedec.boards.flows.openxc7.project import adapt_board, check_design, command, write_project
from edgedec.boards.flows.openxc7.run import read_results, run_project
from edgedec.boards.flows.openxc7.tool import LABEL, find_tools

__all__ = [
    "LABEL",
    "adapt_board",
    "check_design",
    "command",
    "find_tools",
    "read_results",
    "run_project",
    "write_project",
]
