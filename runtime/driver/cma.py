"""Contiguous memory of a board's Linux (CMA), the only memory that a device without address translation can use.

The amount is fixed at boot by the kernel's argument ``cma=``. If it is too small, the error message therefore states the
argument and where to add it. Both places are documented by the makers and by users of these boards; edgedec was not run on
either of them (docs/devices.md, "pynq").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import DeviceError

__all__ = ["MEMINFO", "Cma", "boot_argument", "read_cma", "shortage"]

MEMINFO = Path("/proc/meminfo")
_STEP_BYTES = 64 << 20  # granularity of the boot argument
_BITSTREAM_BYTES = 32 << 20  # memory that loading a bitstream takes for a moment; no bitstream of these parts is larger
_MANY_BYTES = 1 << 30  # amount above which a kernel may not find contiguous memory
_FIELD = re.compile(r"^(CmaTotal|CmaFree):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Cma:
    """The contiguous memory of a system.

    Members:
        total_bytes: memory that the kernel has reserved.
        free_bytes: the unused part of it, perhaps in several pieces.
    """

    total_bytes: int
    free_bytes: int


def read_cma(meminfo: Path = MEMINFO) -> Cma:
    """Return the contiguous memory of this system.

    Raises:
        DeviceError: the system does not report it, because its kernel has no contiguous memory.
    """
    try:
        fields = {name: 1024 * int(number) for name, number in _FIELD.findall(meminfo.read_text("ascii", "replace"))}
    except OSError as error:
        raise DeviceError(f"{meminfo} cannot be read ({error.strerror}): is this the board?") from error
    if "CmaTotal" not in fields or "CmaFree" not in fields:
        raise DeviceError(
            f"{meminfo} has no CmaTotal and CmaFree: this system's kernel has no contiguous memory (CONFIG_CMA); run on "
            "the board, with its maker's kernel"
        )
    return Cma(total_bytes=fields["CmaTotal"], free_bytes=fields["CmaFree"])


def boot_argument(needed_bytes: int, cma: Cma) -> str:
    """Return the boot argument that provides ``needed_bytes`` besides the present use, and room to load a bitstream."""
    total = needed_bytes + max(0, cma.total_bytes - cma.free_bytes) + _BITSTREAM_BYTES
    total = max(total, cma.total_bytes + _STEP_BYTES)  # the free memory may suffice, but is in pieces
    return f"cma={-(-total // _STEP_BYTES) * (_STEP_BYTES >> 20)}M"


def shortage(needed_bytes: int, cma: Cma, *, largest_bytes: int | None = None, root: Path = Path("/")) -> str:
    """Return the part of an error message that says what is missing and what to do.

    Args:
        needed_bytes: bytes of all pieces.
        largest_bytes: bytes of the largest piece; None: everything is one piece.
        root: the system's root.
    """
    pieces = "one piece" if largest_bytes is None else f"pieces of at most {_mib(largest_bytes)}"
    argument = boot_argument(needed_bytes, cma)
    text = (
        f"needs {_mib(needed_bytes)} of contiguous memory in {pieces}; {_mib(cma.free_bytes)} of {_mib(cma.total_bytes)} "
        f"are free (CMA): start the kernel with {argument}: {_where(argument, root)}"
    )
    if int(argument[4:-1]) << 20 > _MANY_BYTES:
        text += "; so much must lie in one piece below 4 GiB, so check afterwards that CmaTotal has this value"
    return text + ". Or use a smaller context"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def _where(argument: str, root: Path) -> str:
    """Return how to add the boot argument on the system at ``root``."""
    # Ubuntu for Kria: the boot script appends this to its own arguments.
    if (root / "etc/default/flash-kernel").exists():
        return (
            f'write LINUX_KERNEL_CMDLINE="{argument}" to /etc/default/flash-kernel (after existing arguments), run '
            "sudo flash-kernel, and switch the board off and on"
        )
    # A PYNQ image.
    if any((root / "boot" / name).exists() for name in ("boot.scr", "image.ub", "BOOT.BIN", "uEnv.txt")):
        return (
            f'run echo "bootargs=$(cat /proc/cmdline) {argument}" | sudo tee /boot/uEnv.txt (or change the existing line '
            "bootargs=), and switch the board off and on"
        )
    return (
        "add it to the kernel's arguments in /etc/default/flash-kernel (Ubuntu) or /boot/uEnv.txt (PYNQ), and restart"
    )
