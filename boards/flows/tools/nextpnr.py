"""The open tools for an ECP5: yosys, nextpnr-ecp5 and ecppack."""

from __future__ import annotations

from edgedec.boards.flows.ecp5.project import check_design, command, write_project
from edgedec.boards.flows.ecp5.run import read_results, run_project
from edgedec.boards.flows.ecp5.tool import LABEL, find_tools
from edgedec.boards.flows.interface import same_board as adapt_board

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
