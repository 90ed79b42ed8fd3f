"""Read what the RTL of a board must be from its board bundle, or the folder of ``edgedec build-bitstream``."""

from __future__ import annotations

import re
import reprlib
from pathlib import Path

from edgedec.errors import BundleError, DeviceError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.runtime.accelerator.board_manifest import MANIFEST, read_json
from edgedec.runtime.driver.identity import Gateware

__all__ = ["BUILD", "check_build", "gateware_of_build"]

BUILD = "build.json"  # file of a build's folder that says which RTL the bitstream has
_MOST_BYTES = 4 << 20  # maximum size of the file


def check_build(folder: Path) -> Path:
    """Return the file of a folder that says which RTL was built.

    Raises:
        UsageError: the folder has none.
    """
    found = next((folder / name for name in (BUILD, MANIFEST) if (folder / name).is_file()), None)
    if found is None:
        raise UsageError(
            f"--device: build={folder} has no {BUILD} and no {MANIFEST}; name the folder -o of edgedec build-bitstream, or "
            "a board bundle"
        )
    return found


def gateware_of_build(folder: Path, config: AcceleratorConfig) -> Gateware:
    """Return the RTL that a build's folder, or a board bundle, names.

    Args:
        config: the accelerator that the program is for.

    Raises:
        UsageError: the folder is no build.
        BundleError: its file is damaged.
        DeviceError: an accelerator of another configuration was built there.
    """
    file = check_build(folder)
    content = read_json(file, _MOST_BYTES)
    identity = content.get("identity", content)  # board.json has its configuration beside the others
    configuration = identity.get("configuration") if isinstance(identity, dict) else None
    found = content.get("rtlil_hash")
    for name, value in (("rtlil_hash", found), ("configuration", configuration)):
        if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{16}", value):
            raise BundleError(f"{file}: {name} is {reprlib.repr(value)}; build the bitstream again")
    if configuration != f"{config.hash:016x}":
        raise DeviceError(
            f"{file} is of configuration {configuration}, this model has {config.hash:016x}: give --model, --board and "
            "--configuration as they were given to edgedec build-bitstream, or name the folder of this accelerator"
        )
    bitstream = next(iter(sorted(folder.glob("*.bit"))), folder)
    return Gateware(rtlil_hash=int(str(found), 16), file=file, bitstream=bitstream)
