"""The time for which a serial port's adapter holds received bytes back, and a request to hold them no longer than needed.

An FTDI adapter sends a USB packet when it is full or when its latency timer ends, by default 16 ms after the last one, and
a short answer waits as long. Linux shows the timer as a file, and sets it to 1 ms for a port with ASYNC_LOW_LATENCY.

Source: Linux, drivers/usb/serial/ftdi_sio.c and include/uapi/linux/tty_flags.h.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["LEAST_MS", "ask_low_latency"]

LEAST_MS = 1  # shortest time of the timer, in ms
_LOG = logging.getLogger(__name__)
_SYSFS = Path("/sys/class/tty")
_GET, _SET = 0x541E, 0x541F  # TIOCGSERIAL, TIOCSSERIAL
_LOW_LATENCY = 1 << 13  # ASYNC_LOW_LATENCY, which a user without privileges may change
_SERIAL_STRUCT_BYTES = 128  # more than the size of Linux's struct serial_struct
_FLAGS_AT = 16  # its member ``flags``, an int
_RULE = 'ACTION=="add", SUBSYSTEM=="usb-serial", DRIVER=="ftdi_sio", ATTR{latency_timer}="1"'


def ask_low_latency(
    file: int,
    port: Path,
    *,
    sysfs: Path = _SYSFS,
    ioctl: Callable[[int, int, bytearray], Any] = fcntl.ioctl,
) -> int | None:
    """Ask the driver of a serial port to pass received bytes on at once, and warn if its timer stays longer.

    A port without such a setting is left as it is, without a message.

    Args:
        file: descriptor of the open port.
        port: its path, or a link to it.
        sysfs: folder in which Linux has a folder for each terminal.
        ioctl: the system call.

    Returns:
        The latency timer in ms; None if the port has none.
    """
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):  # a driver without the flag says so; the timer below decides
        serial = bytearray(_SERIAL_STRUCT_BYTES)
        ioctl(file, _GET, serial)
        (flags,) = struct.unpack_from("=I", serial, _FLAGS_AT)
        if not flags & _LOW_LATENCY:
            struct.pack_into("=I", serial, _FLAGS_AT, flags | _LOW_LATENCY)
            ioctl(file, _SET, serial)
    timer = sysfs / port.resolve().name / "device/latency_timer"
    held = _read(timer)
    if held is not None and held > LEAST_MS:
        with contextlib.suppress(OSError):  # the file is root's, unless a rule of udev changed that
            timer.write_text(f"{LEAST_MS}\n", "ascii")
        held = _read(timer)
    if held is not None and held > LEAST_MS:
        _LOG.warning(
            "%s holds each answer for up to %d ms (its latency timer), so tokens come slowly. Set it to %d ms, until the "
            "adapter is unplugged, with: echo %d | sudo tee %s; for good, with: echo '%s' | sudo tee "
            "/etc/udev/rules.d/99-ftdi-latency.rules, and plug it in again",
            port,
            held,
            LEAST_MS,
            LEAST_MS,
            timer,
            _RULE,
        )
    return held


def _read(timer: Path) -> int | None:
    """Return the timer in ms; None if there is none."""
    try:
        return int(timer.read_text("ascii"))
    except (OSError, ValueError):
        return None
