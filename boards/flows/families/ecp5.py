"""ECP5, by the open tools."""

from __future__ import annotations

from edgedec.boards.flows.ecp5.project import check_design, command, write_project
from edgedec.boards.flows.ecp5.run import read_results, run_project
from edgedec.boards.flows.ecp5.tool import LABEL, find_tools

__all__ = ["LABEL", "check_design", "command", "find_tools", "read_results", "run_project", "write_project"]
