"""Contiguous memory of a board's Linux (CMA): the only memory that a device without an address translation can be given.

How much there is, is settled when the system starts, by the kernel's argument ``cma=``; so whoever has too little is told
the argument and where it goes. Both places are documented by their makers and by users of these boards; edgedec has not
been run on either (docs/accelerator-devices.md, "pynq").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import DeviceError

__all__ = ["MEMINFO", "Cma", "boot_argument", "read_cma", "shortage"]

MEMINFO = Path("/proc/meminfo")
_STEP_BYTES = 64 << 20  # boot arguments are multiples of it
_BITSTREAM_BYTES = (
    32 << 20
)  # the loader of bitstreams takes as much for a moment: no bitstream of these parts is larger
_MANY_BYTES = 1 << 30  # of which it is uncertain that a kernel finds them in one piece
_FIELD = re.compile(r"^(CmaTotal|CmaFree):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Cma:
    """Members:
    total_bytes: that the kernel has set aside.
    free_bytes: of them that nobody has; perhaps in several pieces.
    """

    total_bytes: int
    free_bytes: int


def read_cma(meminfo: Path = MEMINFO) -> Cma:
    """What the system has.

    Raises:
        DeviceError: it does not say; then its kernel has no contiguous memory.
    """
    try:
        found = {name: 1024 * int(number) for name, number in _FIELD.findall(meminfo.read_text("ascii", "replace"))}
    except OSError as error:
        raise DeviceError(f"{meminfo} cannot be read ({error.strerror}): is this the board?") from error
    if "CmaTotal" not in found or "CmaFree" not in found:
        raise DeviceError(
            f"{meminfo} has no CmaTotal and CmaFree: this system's kernel has no contiguous memory (CONFIG_CMA); run on "
            "the board, with its maker's kernel"
        )
    return Cma(total_bytes=found["CmaTotal"], free_bytes=found["CmaFree"])


def boot_argument(needed_bytes: int, cma: Cma) -> str:
    """With which there would be ``needed_bytes`` besides what is in use now, and room to load a bitstream."""
    wanted = needed_bytes + max(0, cma.total_bytes - cma.free_bytes) + _BITSTREAM_BYTES
    wanted = max(wanted, cma.total_bytes + _STEP_BYTES)  # free, but in pieces
    return f"cma={-(-wanted // _STEP_BYTES) * (_STEP_BYTES >> 20)}M"


def shortage(needed_bytes: int, cma: Cma, *, root: Path = Path("/")) -> str:
    """What is missing and what to do; ``root``: of the system that this is for."""
    argument = boot_argument(needed_bytes, cma)
    text = (
        f"needs {_mib(needed_bytes)} of contiguous memory in one piece; {_mib(cma.free_bytes)} of {_mib(cma.total_bytes)} "
        f"are free (CMA): start the kernel with {argument}: {_where(argument, root)}"
    )
    if int(argument[4:-1]) << 20 > _MANY_BYTES:
        text += "; so much must lie in one piece below 4 GiB, so look whether CmaTotal has become that"
    return text + ". Or take a smaller context"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def _where(argument: str, root: Path) -> str:
    """Where the argument goes, by what the system looks like."""
    if (
        root / "etc/default/flash-kernel"
    ).exists():  # Ubuntu for Kria: its start script puts this behind its own arguments
        return (
            f'write LINUX_KERNEL_CMDLINE="{argument}" to /etc/default/flash-kernel (behind what is there already), run '
            "sudo flash-kernel, and switch the board off and on"
        )
    if any(
        (root / "boot" / name).exists() for name in ("boot.scr", "image.ub", "BOOT.BIN", "uEnv.txt")
    ):  # a PYNQ image
        return (
            f'run echo "bootargs=$(cat /proc/cmdline) {argument}" | sudo tee /boot/uEnv.txt (or change the line bootargs= '
            "that is there), and switch the board off and on"
        )
    return (
        "add it to the arguments of its start, /etc/default/flash-kernel (Ubuntu) or /boot/uEnv.txt (PYNQ), and restart"
    )
