"""Opens the device that a run names, with what its program and its board say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgedec.boards.find import find_board
from edgedec.device import Device, device_argument, device_options, open_device
from edgedec.errors import UsageError
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.progress import Progress
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.accelerator.recording import Recorder
from edgedec.runtime.accelerator.recording_file import check_recording

__all__ = ["bandwidth", "check_device", "memory_model", "opened"]


def memory_model(options: AcceleratorOptions) -> str:
    """``ddr`` where the board's memory was measured, else ``flat``, unless another is asked for.

    Raises:
        UsageError: the board's memory was not measured, or there is no such board.
    """
    modelled = find_board(options.board_name).memory_model is not None
    if options.memory == "ddr" and not modelled:
        raise UsageError(
            f"the memory of {options.board_name} was not measured, so there is no --memory ddr; use flat or ideal"
        )
    return ("ddr" if modelled else "flat") if options.memory == "auto" else options.memory


def bandwidth(options: AcceleratorOptions) -> float | None:
    """Bytes in a second that the memory model gives to long reads; None: no limit."""
    return None if memory_model(options) == "ideal" else find_board(options.board_name).bandwidth_bytes_s


def check_device(device: str, options: AcceleratorOptions) -> list[str]:
    """The options of the device behind a ``--device`` name, which may be "replay:FILE" or "uart:PORT".

    Raises:
        UsageError: there is none of that name, or what it needs is not given.
    """
    name, _, file = device.partition(":")
    known = device_options(name)
    argument = device_argument(name)
    if bool(file) != (argument is not None):
        what = {"recording": "file"}.get(argument or "", argument)
        wanted = "no file: write " + name if what is None else f"a {what}: write {name}:{what.upper()}"
        raise UsageError(f"--device {name} takes {wanted}")
    if "bitstream" in known and options.board_bundle is None:
        raise UsageError(
            f"--device {name} needs a bitstream: give a board bundle with -m (docs/board-bundle.md says how one is made)"
        )
    return known


def opened(device: str, program: Program, options: AcceleratorOptions, *, progress: Progress) -> Device:
    """The device of a ``--device`` name, for a program.

    Raises:
        UsageError: as ``check_device``.
        ToolError, DeviceError: as ``edgedec.device.open_device``.
    """
    known, (name, _, file) = check_device(device, options), device.partition(":")
    if options.record is not None:
        check_recording(options.record)
    offered: dict[str, Any] = {
        "memory": memory_model(options),
        "bytes_per_second": int(find_board(options.board_name).bandwidth_bytes_s),
        "memory_bytes": laid_out(program.sizes, program.config.ports)[1],
        "progress": progress,
    }
    argument = device_argument(name)
    if argument is not None:
        offered[argument] = Path(file)
    if options.board_bundle is not None:
        offered["bitstream"] = options.board_bundle.bitstream
    found = open_device(name, program.config, **{option: offered[option] for option in known if option in offered})
    if options.record is None:
        return found
    try:
        return Recorder(found, options.record)
    except BaseException:
        found.close()
        raise
