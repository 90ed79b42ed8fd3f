"""Make the options of an accelerator from those of the command line."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.options import AcceleratorOptions, Generator

__all__ = ["accelerator_options"]


def accelerator_options(
    device: str, *, board: str | None, configuration: str | None, memory: str | None, record: Path | None = None
) -> AcceleratorOptions | None:
    """Return the options of the accelerator; None if the device is not one and no option is for one.

    Raises:
        UsageError: a value is wrong.
    """
    from edgedec.runtime.targets import is_accelerator

    if not is_accelerator(device) and all(value is None for value in (board, configuration, memory, record)):
        return None
    from edgedec.runtime.accelerator.options import LINE_BOARD, AcceleratorOptions, check_memory, parse_configuration

    line = device.partition(":")[0] == "uart"
    size, members = parse_configuration(configuration or ("board" if line else "small"))
    return AcceleratorOptions(
        board=board or (LINE_BOARD if line else ""),
        built=line,
        size=size,
        overrides=members,
        memory=check_memory(memory or "auto"),
        record=record,
        generator=_generator(),
    )


def _generator() -> Generator | None:
    if find_spec("amaranth") is None:
        return None
    from edgedec.boards import all_boards
    from edgedec.hw.plan.generator import HardwareGenerator

    return HardwareGenerator(all_boards())
