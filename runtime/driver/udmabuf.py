"""Contiguous memory of the kernel module u-dma-buf, for boards without pynq.

The module gives each of its buffers a file /dev/NAME, which can be mapped, and a folder of settings. The host's cache is
used; what it holds of a range is written back or discarded by writing to these settings. Only buffers whose name begins with
``edgedec`` are taken, so that those of other programs are left alone.

Source: Readme of ikwzm/udmabuf, "Device file" and "Manual cache management with the CPU cache still being enabled".
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.device import CacheSettings
from edgedec.errors import DeviceError

__all__ = ["PREFIX", "UdmaBuf", "find_buffers", "make_buffers", "udmabuf_bytes"]

PREFIX = "edgedec"  # first letters of the names of the buffers that are taken
_SETTINGS = Path("sys/class/u-dma-buf")
_STEP_BYTES = 64 << 20  # unit of the sizes that are proposed, which holds the largest region of an image
_TO_DEVICE, _FROM_DEVICE = 1, 2  # values of sync_direction
_SYNC = ("sync_offset", "sync_size", "sync_direction", "sync_for_device", "sync_for_cpu")


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
        self._settings, self._files = settings, dict[str, int]()
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

    def cache_settings(self, start: int) -> CacheSettings | Literal["coherent"]:
        """Return the open files of the settings of the host's cache, for ranges that begin at ``start``.

        Raises:
            DeviceError: one cannot be opened for writing.
        """
        if self._coherent:
            return "coherent"
        for name in _SYNC:
            if name not in self._files:
                try:
                    self._files[name] = os.open(self._settings / name, os.O_WRONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise _unwritable(self._settings / name, error) from error
                weakref.finalize(self, os.close, self._files[name])
        offset, size, direction, for_device, for_cpu = (self._files[name] for name in _SYNC)
        return CacheSettings(
            offset=offset, size=size, direction=direction, for_device=for_device, for_cpu=for_cpu, start=start
        )

    def _synchronize(self, action: str, direction: int, start: int, size_bytes: int) -> None:
        if self._coherent or not size_bytes:
            return
        values = {"sync_offset": start, "sync_size": size_bytes, "sync_direction": direction, action: 1}
        for name, value in values.items():
            try:
                (self._settings / name).write_text(str(value))
            except OSError as error:
                raise _unwritable(self._settings / name, error) from error

    def _number(self, name: str, base: int) -> int:
        path = self._settings / name
        try:
            return int(path.read_text("ascii"), base)
        except (OSError, ValueError) as error:
            raise DeviceError(f"{path} cannot be read: {error}; load the kernel module u-dma-buf again") from error


def _unwritable(path: Path, error: OSError) -> DeviceError:
    return DeviceError(f"{path} cannot be written: {error.strerror}; run as root")


def udmabuf_bytes(system: Path = Path("/")) -> list[int]:
    """Return the bytes of each buffer whose name begins with ``PREFIX``, without those whose size cannot be read."""
    sizes = list[int]()
    for folder in (system / _SETTINGS).glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            sizes.append(int((folder / "size").read_text("ascii")))
    return sizes


def make_buffers(size_bytes: int) -> str:
    """Return what to do where a buffer of ``size_bytes`` is missing, for an error message."""
    size = -(-size_bytes // _STEP_BYTES) * _STEP_BYTES
    return (
        "load the kernel modules u-dma-buf and u-dma-buf-mgr, and make another buffer, with a number N of its own: echo "
        f"'create {PREFIX}N {size:#x}' > /dev/u-dma-buf-mgr"
    )


def find_buffers(system: Path = Path("/")) -> list[UdmaBuf]:
    """Return all buffers whose names begin with ``PREFIX``, by name. ``system`` is the root of the file system.

    Raises:
        DeviceError: there is none, or one cannot be used.
    """
    folders = sorted((system / _SETTINGS).glob(f"{PREFIX}*"))
    if not folders:
        raise DeviceError(f"{system / _SETTINGS} has no buffer whose name begins with {PREFIX}: {make_buffers(1)}")
    return [UdmaBuf(folder, system / "dev") for folder in folders]
