"""AMD's Vivado, for Zynq-7000 and Zynq UltraScale+."""

from __future__ import annotations

from edgedec.boards.flows.interface import same_board as adapt_board
from edgedec.boards.flows.vivado.project import check_design, command, write_project
from edgedec.boards.flows.vivado.run import read_results, run_project
from edgedec.boards.flows.vivado.tool import LABEL, find_tools

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
