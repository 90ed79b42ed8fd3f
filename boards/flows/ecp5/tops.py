"""The design round the system on a board with an ECP5: its module in this package, found by the board's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from edgedec.board import Board
from edgedec.errors import UnsupportedError, UsageError
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig

__all__ = ["Ecp5Part", "beside", "find_top", "part_of"]

_SIZE = re.compile(r"-\d+f$")  # boards that differ in their device have one top
_PART = re.compile(r"(LFE5U(?:M|M5G)?-(12|25|45|85)F)-([678])(BG|MG|TG|TQ)(\d{3})[CI]?")
_PACKAGES = {"BG": "CABGA", "MG": "CSFBGA", "TG": "TQFP", "TQ": "TQFP"}


@dataclass(frozen=True, kw_only=True)
class Ecp5Part:
    """A device by its ordering name.

    Members:
        device: the name up to the package.
        options: options of nextpnr-ecp5.
    """

    device: str
    options: tuple[str, ...]


def part_of(board: Board) -> Ecp5Part:
    """Raises:
    UsageError: it is no ECP5 that nextpnr knows.
    """
    match = _PART.fullmatch(board.part)
    if match is None:
        raise UsageError(
            f"board {board.name}: part must be an ECP5's ordering name as LFE5U-85F-6BG381C, not {board.part}"
        )
    device, size, grade, package, balls = match.groups()
    kind = {"LFE5UM-": "um-", "LFE5UM5G-": "um5g-"}.get(device[: device.index("-") + 1], "")
    return Ecp5Part(
        device=device,
        options=(f"--{kind}{size}k", "--package", f"{_PACKAGES[package]}{balls}", "--speed", grade),
    )


def find_top(board: Board) -> ModuleType:
    """The module ``NAME_top`` of this package, NAME being the board's without the size of its device, as ulx3s. It has

        TOP(config, accelerator, *, baud, module): the design for ``platform``; with a ``module``, the system is an
            instance of it; has ``system``, a SerialSystem, and ``domains``, as ``edgedec.hw.emit.black_box.BlackBox``
            takes them
        clocks(config): has ``output_hz`` of these domains; a UsageError if the board cannot make them
        platform(device): amaranth_boards' platform
        beside(config): what stands beside the accelerator

    Raises:
        UnsupportedError: there is none.
    """
    name = _SIZE.sub("", board.name).replace("-", "_")
    path = f"edgedec.boards.flows.ecp5.{name}_top"
    if find_spec(path) is None:
        raise UnsupportedError(
            f"nobody has written what is round the accelerator on {board.name}: clocks, pins, memory, host link. Write "
            f"boards/flows/ecp5/{name}_top.py with TOP, clocks, platform and beside, as ulx3s_top.py has them"
        )
    return import_module(path)


def beside(board: Board, config: AcceleratorConfig) -> Mapping[str, Resources]:
    """Return the estimate of what stands beside the accelerator, by submodule."""
    resources: Mapping[str, Resources] = find_top(board).beside(config)
    return resources
