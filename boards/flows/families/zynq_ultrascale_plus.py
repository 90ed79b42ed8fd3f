"""Zynq UltraScale+, by AMD's Vivado."""

from __future__ import annotations

from edgedec.boards.flows.vivado.project import check_design, command, write_project
from edgedec.boards.flows.vivado.run import read_results, run_project
from edgedec.boards.flows.vivado.tool import LABEL, find_tools

__all__ = ["LABEL", "check_design", "command", "find_tools", "read_results", "run_project", "write_project"]
