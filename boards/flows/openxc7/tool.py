"""The tools of openXC7 on this machine: yosys, nextpnr-xilinx, prjxray's programs and their databases."""

from __future__ import annotations

from collections.abc import Mapping

from edgedec.boards.flows.openxc7 import build_script
from edgedec.errors import ToolError

__all__ = ["LABEL", "find_places", "find_tools"]

LABEL = "openXC7 (experimental)"


def find_tools() -> Mapping[str, str]:
    """Raises:
    ToolError: a program is missing or too old; says how to get it.
    """
    try:
        return {tool.name: tool.version for tool in build_script.find_programs().values()}
    except build_script.MissingError as error:
        raise ToolError(str(error)) from None


def find_places(part: str) -> None:
    """Check that the databases of a part are there.

    Raises:
        ToolError: one is not; says how to get it.
    """
    try:
        build_script.find_chipdb(part)
        build_script.find_database(part)
    except build_script.MissingError as error:
        raise ToolError(str(error)) from None
