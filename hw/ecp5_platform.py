"""The pins of a board that comes with several ECP5, by amaranth_boards."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edgedec.errors import UsageError

__all__ = ["board_platform"]

_SIZES = ("12F", "25F", "45F", "85F")


def board_platform(module: str, name: str, device: str, *, title: str) -> Any:
    """A platform of ``amaranth_boards.module``.

    Args:
        name: of its classes, with {} for the size of the device.
        device: the part's name up to its package, as LFE5U-85F.
        title: of the board, for the message.

    Raises:
        UsageError: there is no such board; names the devices that it comes with.
    """
    boards = import_module(f"amaranth_boards.{module}")
    sizes = [size for size in _SIZES if hasattr(boards, name.format(size))]
    size = device.removeprefix("LFE5U-")
    if size not in sizes:
        known = ", ".join(f"LFE5U-{size}" for size in sizes)
        raise UsageError(f"there is no {title} with a {device}, but with {known}")
    return getattr(boards, name.format(size))()
