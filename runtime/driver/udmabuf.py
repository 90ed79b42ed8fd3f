"""Contiguous memory of the kernel module u-dma-buf, for boards without pynq.

The module gives each of its buffers a file /dev/NAME, which can be mapped, and a folder of settings. The host's cache is
used; what it holds of a range is written back or discarded by writing to these settings. Only buffers whose name begins with
``edgedec`` are taken, so that those of other programs are left alone.

Source: Readme of ikwzm/udmabuf, "Device file" and "Manual cache management with the CPU cache still being enabled".
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError

__all__ = ["PREFIX", "UdmaBuf", "find_buffers", "make_buffers", "udmabuf_bytes"]

PREFIX = "edgedec"  # first letters of the names of the buffers that are taken
_SETTINGS = Path("sys/class/u-dma-buf")
_TO_DEVICE, _FROM_DEVICE = 1, 2  # values of sync_direction


class UdmaBuf:
    """A buffer of the module, mapped as long as ``array`` is referenced.

    Args:
        settings: the buffer's folder of settings; its name is that of the buffer.
        devices: folder of the device files.

    Members:
        address: physical address of its first byte.
        array: uint8 [bytes].

    Raises:
        DeviceError: a file is missing or damaged, or the rights do not suffice.
    """

    def __init__(self, settings: Path, devices: Path) -> None:
        self._settings = settings
        self.address, size = self._number("phys_addr", 16), self._number("size", 10)
        self._coherent = (settings / "dma_coherent").exists() and bool(self._number("dma_coherent", 10))
        path = devices / settings.name
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self.array: NDArray[np.uint8] = np.frombuffer(mmap.mmap(file, size), np.uint8)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            raise DeviceError(f"{path} cannot be mapped: {error}; run as root") from error

    def flush(self, start: int, size_bytes: int) -> None:
        """Write the host's cache of a range back to memory."""
        self._synchronize("sync_for_device", _TO_DEVICE, start, size_bytes)

    def invalidate(self, start: int, size_bytes: int) -> None:
        """Discard the host's cache of a range."""
        self._synchronize("sync_for_cpu", _FROM_DEVICE, start, size_bytes)

    def _synchronize(self, action: str, direction: int, start: int, size_bytes: int) -> None:
        if self._coherent or not size_bytes:
            return
        values = {"sync_offset": start, "sync_size": size_bytes, "sync_direction": direction, action: 1}
        for name, value in values.items():
            try:
                (self._settings / name).write_text(str(value))
            except OSError as error:
                raise DeviceError(
                    f"{self._settings / name} cannot be written: {error.strerror}; run as root"
                ) from error

    def _number(self, name: str, base: int) -> int:
        path = self._settings / name
        try:
            return int(path.read_text("ascii"), base)
        except (OSError, ValueError) as error:
            raise DeviceError(f"{path} cannot be read: {error}; load the kernel module u-dma-buf again") from error


def udmabuf_bytes(system: Path = Path("/")) -> int:
    """Return the bytes of all buffers whose names begin with ``PREFIX``; 0 if there is none, or a size cannot be read."""
    try:
        return sum(int((folder / "size").read_text("ascii")) for folder in (system / _SETTINGS).glob(f"{PREFIX}*"))
    except (OSError, ValueError):
        return 0


def make_buffers() -> str:
    """Return what to do where memory is missing, for an error message."""
    return (
        "load the kernel module u-dma-buf, and make as many buffers as the model needs, each by: echo 'create "
        f"{PREFIX}N 0x4000000' > /dev/u-dma-buf-mgr, with another number N"
    )


def find_buffers(system: Path = Path("/")) -> list[UdmaBuf]:
    """Return all buffers whose names begin with ``PREFIX``, by name. ``system`` is the root of the file system.

    Raises:
        DeviceError: there is none, or one cannot be used.
    """
    folders = sorted((system / _SETTINGS).glob(f"{PREFIX}*"))
    if not folders:
        raise DeviceError(f"{system / _SETTINGS} has no buffer whose name begins with {PREFIX}: {make_buffers()}")
    return [UdmaBuf(folder, system / "dev") for folder in folders]
