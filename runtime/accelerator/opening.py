"""Opens the device that a run names, with what its program and its board say of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgedec.boards import find_board
from edgedec.device import Device, current_name, device_argument, device_options, open_device
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.hw.config import configuration_text
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.progress import Progress
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.driver.recording import Recorder
from edgedec.runtime.driver.recording_file import check_recording

# What may stand behind the device's path, in "uart:/dev/ttyUSB0,baud=115200".
_SETTABLE: Mapping[str, Callable[[str], float]] = {"baud": int, "patience_s": float}
_OPTION = re.compile(rf",({'|'.join(_SETTABLE)})=([^,]*)$")

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
    """The options of the device behind a ``--device`` name, which may be "replay:FILE" or "uart:PORT,baud=115200".

    Raises:
        UsageError: there is none of that name, or what it needs is not given, or something that it does not have.
    """
    name, _, file = device.partition(":")
    name = current_name(name)
    known = device_options(name)
    argument = device_argument(name)
    file, _ = _split(file, known)
    if bool(file) != (argument is not None):
        what = {"recording": "file"}.get(argument or "", argument)
        wanted = "no file: write " + name if what is None else f"a {what}: write {name}:{what.upper()}"
        raise UsageError(f"--device {name} takes {wanted}")
    if "bitstream" in known and options.board_bundle is None:
        raise UsageError(
            f"--device {name} needs a bitstream: give a board bundle with -m (docs/board-bundle.md says how one is made)"
        )
    return known


def _split(text: str, known: Sequence[str]) -> tuple[str, dict[str, float]]:
    """What stands behind a device's colon: a path, and numbers for those of its options that may be set there.

    Raises:
        UsageError: no number, or one that cannot be.
    """
    found: dict[str, float] = {}
    while (match := _OPTION.search(text)) is not None and match[1] in known:
        name, value = match.groups()
        try:
            number = _SETTABLE[name](value)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise UsageError(f"--device: {name} must be a number above 0, not {value!r}")
        text, found = text[: match.start()], {name: number, **found}
    return text, found


def opened(device: str, program: Program, options: AcceleratorOptions, *, progress: Progress) -> Device:
    """The device of a ``--device`` name, for a program.

    Raises:
        UsageError: as ``check_device``.
        ToolError, DeviceError: as ``edgedec.device.open_device``.
    """
    known, (name, _, rest) = check_device(device, options), device.partition(":")
    file, settings = _split(rest, known)
    if options.record is not None:
        check_recording(options.record)
    offered: dict[str, Any] = {
        "memory": memory_model(options),
        "bytes_per_second": int(find_board(options.board_name).bandwidth_bytes_s),
        "memory_bytes": laid_out(program.sizes, program.config.ports)[1],
        "progress": progress,
        "baud": find_board(options.board_name).baud,
        **settings,
    }
    argument = device_argument(name)
    if argument is not None:
        offered[argument] = Path(file)
    if options.board_bundle is not None:
        offered["bitstream"] = options.board_bundle.bitstream
    given = {option: offered[option] for option in known if offered.get(option) is not None}
    found = open_device(name, program.config, **given)
    try:
        if options.built:
            _check_configuration(found, program, options, device)
        return found if options.record is None else Recorder(found, options.record)
    except BaseException:
        found.close()
        raise


def _check_configuration(found: Device, program: Program, options: AcceleratorOptions, device: str) -> None:
    """Raises:
    DeviceError: what answers is an accelerator of another configuration than what was asked for.
    """
    offset = REGISTER_MAP["configuration_hash"].offset
    low, high = (found.read_register(offset + at) for at in (0, 4))
    there, wanted = low | high << 32, program.config.hash
    if there == wanted:
        return
    asked = configuration_text(options.size, options.overrides)
    ours = f"this model with --board {options.board_name} --configuration {asked}"
    if options.board_bundle is not None:
        ours = str(options.board_bundle.path)
    raise DeviceError(
        f"{device} is an accelerator of configuration {there:016x}, {ours} has {wanted:016x}: give --model, --board and "
        "--configuration as they were given to edgedec build-bitstream or simulate --terminal, or build it again"
    )
