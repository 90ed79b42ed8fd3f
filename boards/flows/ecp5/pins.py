"""Platforms of boards that are sold with several sizes of ECP5, from amaranth_boards."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edgedec.errors import UsageError

__all__ = ["board_platform"]

_SIZES = ("12F", "25F", "45F", "85F")  # sizes of the device, as part names spell them


def board_platform(module: str, name: str, device: str, *, title: str) -> Any:
    """Return a platform of ``amaranth_boards.module``.

    Args:
        name: name of its classes, with {} in place of the device's size.
        device: name of the part without its package, for example LFE5U-85F.
        title: name of the board for the message.

    Raises:
        UsageError: amaranth_boards has no such board; the message names the devices that it has.
    """
    boards = import_module(f"amaranth_boards.{module}")
    sizes = [size for size in _SIZES if hasattr(boards, name.format(size))]
    size = device.removeprefix("LFE5U-")
    if size not in sizes:
        known = ", ".join(f"LFE5U-{size}" for size in sizes)
        raise UsageError(f"there is no {title} with a {device}, only with {known}")
    return getattr(boards, name.format(size))()
