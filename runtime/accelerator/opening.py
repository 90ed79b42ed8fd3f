"""Opening of the device that ``--device`` selects, with the options that its program and its board determine."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgedec import device as edgedec_device
from edgedec.boards import find_board
from edgedec.device import Device, device_argument, device_options
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.hw.config import AcceleratorConfig, configuration_text
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.progress import Progress
from edgedec.runtime.accelerator.board_manifest import MANIFEST
from edgedec.runtime.accelerator.built_from import check_build, gateware_of_build
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.driver.identity import Gateware
from edgedec.runtime.driver.recording import RecordingDevice
from edgedec.runtime.driver.recording_file import check_recording
from edgedec.runtime.driver.registers import Registers

# Options that may follow the device's path, as in "uart:/dev/ttyUSB0,baud=115200", and their types; "build" is the folder of
# the build that the device's RTL is of.
_NUMBERS: Mapping[str, Callable[[str], float]] = {"baud": int, "patience_s": float}
_BUILD = "build"
_OPTION = re.compile(rf",({'|'.join((*_NUMBERS, _BUILD))})=([^,]*)$")
_LOG = logging.getLogger(__name__)

__all__ = ["bandwidth", "check_device", "gateware", "memory_model", "open_device"]


def memory_model(options: AcceleratorOptions) -> str:
    """Return the memory model of a simulated device; for ``auto``, ``ddr`` if the board has one, and ``flat`` otherwise.

    Raises:
        UsageError: the options name ``ddr`` for a board whose memory was not measured, or the board does not exist.
    """
    modelled = find_board(options.board_name).memory_model is not None
    if options.memory == "ddr" and not modelled:
        raise UsageError(
            f"the memory of {options.board_name} was not measured, so there is no --memory ddr; use flat or ideal"
        )
    return ("ddr" if modelled else "flat") if options.memory == "auto" else options.memory


def bandwidth(options: AcceleratorOptions) -> float | None:
    """Return the bandwidth of long reads in bytes per second; None for the memory model ``ideal``, which has no limit."""
    return None if memory_model(options) == "ideal" else find_board(options.board_name).bandwidth_bytes_s


def check_device(device: str, options: AcceleratorOptions) -> list[str]:
    """Return the names of a device's options. ``device`` may be "replay:FILE" or "uart:PORT,baud=115200", for example.

    Raises:
        UsageError: no device has this name, or its file, port or board bundle is missing, or a file is given for a device
            that takes none.
    """
    name, _, file = device.partition(":")
    known = device_options(name)
    argument = device_argument(name)
    file, settings = _split(file, known)
    if _BUILD in settings:
        check_build(settings[_BUILD])
    if bool(file) != (argument is not None):
        kind = {"recording": "file"}.get(argument or "", argument)
        usage = "no file: write " + name if kind is None else f"a {kind}: write {name}:{kind.upper()}"
        raise UsageError(f"--device {name} takes {usage}")
    if "bitstream" in known and options.board_bundle is None:
        raise UsageError(
            f"--device {name} needs a bitstream: give a board bundle with -m (docs/building.md says how one is made)"
        )
    return known


def gateware(device: str, options: AcceleratorOptions, config: AcceleratorConfig) -> Gateware | None:
    """Return what a board must have been built from, as ``build=`` of the device or else the board bundle says.

    It is None for a simulation, whose RTL is this edgedec's, and for a board of whose build nothing is known.

    Args:
        config: the accelerator that the program is for.

    Raises:
        UsageError, BundleError, DeviceError: ``gateware_of_build`` raised it.
    """
    name, _, rest = device.partition(":")
    known = device_options(name)
    if not {"bitstream", "gateware"} & set(known):
        return None
    folder, bundle = _split(rest, known)[1].get(_BUILD), options.board_bundle
    if folder is not None:
        return gateware_of_build(folder, config)
    if bundle is None:
        return None
    return Gateware(rtlil_hash=bundle.rtlil_hash, file=bundle.path / MANIFEST, bitstream=bundle.bitstream)


def _split(text: str, known: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Split the text after a device's colon into a path and the values of options.

    Raises:
        UsageError: a value is not a number above 0, or no folder is named.
    """
    settings: dict[str, Any] = {}
    taken = {*known, *([_BUILD] if "gateware" in known else [])}
    while (match := _OPTION.search(text)) is not None and match[1] in taken:
        text, settings = text[: match.start()], {match[1]: _value(*match.groups()), **settings}
    return text, settings


def _value(name: str, text: str) -> float | Path:
    if name == _BUILD:
        if not text:
            raise UsageError("--device: build is empty; name the folder of the build")
        return Path(text)
    try:
        number = _NUMBERS[name](text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise UsageError(f"--device: {name} must be a number above 0, not {text!r}")
    return number


def open_device(device: str, program: Program, options: AcceleratorOptions, *, progress: Progress) -> Device:
    """Open the device that ``--device`` selects and check that it fits the program.

    Raises:
        UsageError: ``check_device`` raised it.
        ToolError: ``edgedec.device.open_device`` raised it.
        BundleError: what ``build=`` names is damaged.
        DeviceError: ``edgedec.device.open_device`` raised it, or the device has another configuration than the program, or
            other RTL than its build.
    """
    known, (name, _, rest) = check_device(device, options), device.partition(":")
    file, settings = _split(rest, known)
    built_from = gateware(device, options, program.config)
    if options.record is not None:
        check_recording(options.record)
    settable: dict[str, Any] = {
        "memory": memory_model(options),
        "bytes_per_second": int(find_board(options.board_name).bandwidth_bytes_s),
        "memory_bytes": laid_out(program.sizes, program.config.ports)[1],
        "progress": progress,
        "baud": find_board(options.board_name).baud,
        "gateware": built_from,
        **settings,
    }
    argument = device_argument(name)
    if argument is not None:
        settable[argument] = Path(file)
    if options.board_bundle is not None:
        settable["bitstream"] = options.board_bundle.bitstream
    arguments = {option: settable[option] for option in known if settable.get(option) is not None}
    opened = edgedec_device.open_device(name, program.config, **arguments)
    try:
        if options.built:
            _check_configuration(opened, program, options, device)
        if "gateware" in known and built_from is None and opened.kind == "measured":
            _LOG.warning(
                "nothing says which RTL %s must have, so its register rtlil_hash, %016x, is compared with nothing; write "
                "--device %s,build=FOLDER with the folder of its build",
                file,
                Registers(opened).read("rtlil_hash"),
                device,
            )
        return opened if options.record is None else RecordingDevice(opened, options.record)
    except BaseException:
        opened.close()
        raise


def _check_configuration(opened: Device, program: Program, options: AcceleratorOptions, device: str) -> None:
    """Compare the configuration of the device, whose name is ``device``, with that of the program.

    Raises:
        DeviceError: they differ.
    """
    offset = REGISTER_MAP["configuration_hash"].offset
    low, high = (opened.read_register(offset + at) for at in (0, 4))
    actual, expected = low | high << 32, program.config.hash
    if actual == expected:
        return
    configuration = configuration_text(options.size, options.overrides)
    model = f"this model with --board {options.board_name} --configuration {configuration}"
    if options.board_bundle is not None:
        model = str(options.board_bundle.path)
    raise DeviceError(
        f"{device} is an accelerator of configuration {actual:016x}, {model} has {expected:016x}: give --model, --board and "
        "--configuration as they were given to edgedec build-bitstream or simulate --terminal, or build it again"
    )
