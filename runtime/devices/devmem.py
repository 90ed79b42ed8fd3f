"""A board without pynq: the accelerator's registers through /dev/mem, and memory of the kernel module u-dma-buf.

The bitstream must be loaded before, by the boot or the board's own tool. The clock is that of the hand-off file, and the
registers are polled, for only pynq knows the board's clocks and interrupts. This was not run on a board yet: tests run it
against a simulated accelerator, and against files in the place of the system's.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.device import BufferCache, CacheSettings, Kind
from edgedec.errors import BundleError, DeviceError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.read import Handoff, check_handoff, read_handoff
from edgedec.runtime.devices._board import FABRIC, BoardDevice, BoardParts, MappedRegisters, Words, check_loaded
from edgedec.runtime.devices._memory_ports import REGISTER_BYTES, set_ports
from edgedec.runtime.devices._waiting import HOST_CLOCK, WaitClock, Waiter, thread_loop
from edgedec.runtime.driver.first_fit import FirstFit
from edgedec.runtime.driver.lock import DeviceLock
from edgedec.runtime.driver.udmabuf import find_buffers, make_buffers

__all__ = ["DevmemBuffer", "DevmemDevice", "MemoryPiece", "map_words", "open_device"]

_LOG = logging.getLogger(__name__)
_PAGE_BYTES = 4096  # unit of buffers, so that no two of them share a line of the host's cache
_FABRIC = Path("sys/class/fpga_manager/fpga0/state")

U8 = NDArray[np.uint8]
MapWords = Callable[[int, int], Words]  # physical address, bytes


class MemoryPiece(Protocol):
    """A piece of contiguous memory, as ``edgedec.runtime.driver.udmabuf.UdmaBuf``."""

    address: int
    array: U8

    def flush(self, start: int, size_bytes: int) -> None:
        """Write the host's cache of a range back to memory."""

    def invalidate(self, start: int, size_bytes: int) -> None:
        """Discard the host's cache of a range."""

    def cache_settings(self, start: int) -> CacheSettings | Literal["coherent"] | None:
        """Return the settings of the host's cache from a byte on; None: ``flush`` and ``invalidate`` do it."""


class _Words:
    """Words of physical memory. Each access is one of 32 bits."""

    def __init__(self, mapped: mmap.mmap, start: int, size_bytes: int) -> None:
        self.array = np.frombuffer(mapped, np.uint32, size_bytes // 4, start)

    def read(self, offset: int) -> int:
        return int(self.array[offset // 4])

    def write(self, offset: int, value: int) -> None:
        self.array[offset // 4] = value


def map_words(address: int, size_bytes: int, *, path: Path = Path("/dev/mem")) -> Words:
    """Map registers at a physical address.

    Raises:
        DeviceError: the file cannot be mapped.
    """
    start = address % mmap.ALLOCATIONGRANULARITY
    try:
        file = os.open(path, os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)  # O_SYNC maps registers without the cache
        try:
            return _Words(mmap.mmap(file, start + size_bytes, offset=address - start), start, size_bytes)
        finally:
            os.close(file)
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"{path} cannot be mapped at {address:#x}: {error}; run as root, with a kernel that has /dev/mem and lets it "
            "reach the fabric"
        ) from error


class _Pool:
    """Pieces of memory, of which buffers are parts."""

    def __init__(self, memories: Sequence[MemoryPiece]) -> None:
        self._pieces = [(memory, FirstFit(memory.address, memory.array.size)) for memory in memories]

    def take(self, size_bytes: int, alignment_bytes: int) -> tuple[MemoryPiece, FirstFit, int]:
        """Return a piece with room, its parts, and the address of the new part.

        Raises:
            DeviceError: no piece has room.
        """
        for memory, parts in self._pieces:
            address = parts.take(size_bytes, alignment_bytes)
            if address is not None:
                return memory, parts, address
        gaps = [gap for _, parts in self._pieces for gap in parts.gaps]
        raise DeviceError(
            f"a buffer needs {size_bytes} bytes in one piece; {sum(gaps)} of "
            f"{sum(memory.array.size for memory, _ in self._pieces)} bytes of u-dma-buf are free, the largest piece has "
            f"{max(gaps, default=0)}: {make_buffers(size_bytes)}; or use a smaller context"
        )


class DevmemBuffer:
    """A part of a piece of memory.

    Members:
        address: address on the device's bus.
        array: uint8 [bytes]; empty once the buffer is closed.
    """

    def __init__(self, pool: _Pool, size_bytes: int, alignment_bytes: int, held: list[Any]) -> None:
        self._whole, self._held = -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES, held
        memory, self._parts, self.address = pool.take(self._whole, max(alignment_bytes, _PAGE_BYTES))
        self._memory: MemoryPiece | None = memory
        self._first = self.address - memory.address
        self.array: U8 = memory.array[self._first :][:size_bytes]
        held.append(self)

    def flush(self) -> None:
        """Write the host's cache back to memory."""
        if self._memory is not None:
            self._memory.flush(self._first, self._whole)

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        """Discard the host's cache of a range, so that it reads the memory."""
        if self._memory is not None:
            size = self.array[start : None if size_bytes is None else start + size_bytes].size
            self._memory.invalidate(self._first + start, size)

    @property
    def cache_settings(self) -> CacheSettings | Literal["coherent"] | None:
        """The settings of the host's cache of the buffer; None: ``flush`` and ``invalidate`` do it."""
        return None if self._memory is None else self._memory.cache_settings(self._first)

    def close(self) -> None:
        """Free the memory. A second call does nothing."""
        if self._memory is not None:
            self._memory, self.array = None, np.zeros(0, np.uint8)
            self._parts.release(self.address)
            self._held.remove(self)


class DevmemDevice(BoardDevice):
    """A device of ``edgedec.device`` on a board. Call ``open_device`` to open one."""

    name = "devmem"

    def __init__(self, parts: BoardParts, pool: _Pool, waiter: Waiter, clock_hz: float, kind: Kind) -> None:
        super().__init__(parts, waiter, clock_hz, kind)
        self._pool = pool

    def allocate(self, size_bytes: int, *, alignment_bytes: int = _PAGE_BYTES) -> DevmemBuffer:
        """Allocate a buffer. It is cacheable, so that the host reads results at full speed."""
        self._check_room(size_bytes, alignment_bytes)
        return DevmemBuffer(self._pool, size_bytes, alignment_bytes, self._parts.buffers)

    def _cache_settings(self, buffer: DevmemBuffer) -> BufferCache:
        return buffer.cache_settings


def open_device(
    config: AcceleratorConfig,
    *,
    bitstream: Path,
    words: MapWords = map_words,
    memories: Sequence[MemoryPiece] | None = None,
    clock: WaitClock = HOST_CLOCK,
    lock_folder: Path | None = None,
    system: Path = Path("/"),
    kind: Kind = "measured",
) -> DevmemDevice:
    """Open the accelerator that is in the fabric.

    The .hwh file is checked first. Then the board is locked, and a pass that the previous owner left running is stopped.

    Args:
        config: configuration that the bitstream must have.
        bitstream: .bit or .bin file that was loaded; its .hwh file has the same stem.
        words: maps registers.
        memories: pieces of contiguous memory; None: all of u-dma-buf that are for edgedec.
        clock: clock of waits; a simulated board has its own.
        lock_folder: folder of lock files; None: the system's.
        system: root of the file system with /sys and /dev.
        kind: kind of the figures, "simulated" if the accelerator is.

    Raises:
        BundleError: the .hwh file is missing or damaged, or has another configuration, or no clock.
        DeviceError: another process uses the board, no bitstream is loaded or another one, or registers or memory cannot be
            mapped.
    """
    handoff = read_handoff(bitstream.with_suffix(".hwh"))
    check_handoff(handoff, config)
    if handoff.clock_hz is None:
        raise BundleError(f"{handoff.path} does not say how fast the accelerator's clock is; build it again")
    lock = DeviceLock(FABRIC, folder=lock_folder)
    try:
        _check_fabric(system / _FABRIC, bitstream)
        registers = MappedRegisters(words(handoff.address, handoff.size_bytes), handoff.size_bytes)
        check_loaded(registers, bitstream, handoff)
        registers.settle(clock)  # before it gets any memory
        _set_ports(handoff, words)
        pool = _Pool(find_buffers(system) if memories is None else memories)
        waiter = Waiter(registers.is_high, None, thread_loop(), clock)
        return DevmemDevice(BoardParts(registers, lock, clock), pool, waiter, handoff.clock_hz, kind)
    except BaseException:
        lock.release()
        raise


def _check_fabric(state: Path, bitstream: Path) -> None:
    """Check that the fabric is loaded. Without a bitstream an access to its addresses stops the whole board.

    Raises:
        DeviceError: it is not.
    """
    try:
        found = state.read_text("ascii").strip()
    except OSError:
        _LOG.warning("%s cannot be read, so nothing says whether the fabric is loaded", state)
        return
    if found != "operating":
        raise DeviceError(
            f"{state} says {found!r}: no bitstream is loaded; load {bitstream} with the board's tool first, as "
            "`fpgautil -b FILE` of Xilinx' images"
        )


def _set_ports(handoff: Handoff, words: MapWords) -> None:
    """Set the ports to memory, which are idle now. The accelerator works without, but perhaps slower."""
    try:
        found = set_ports(
            handoff.system,
            handoff.memory_ports,
            lambda address, offset, value: words(address, REGISTER_BYTES).write(offset, value),
        )
    except DeviceError as error:
        _LOG.warning("the ports to memory keep their settings: %s", str(error))
        return
    if not found:
        _LOG.warning("%s names no ports to memory whose settings are known", handoff.path)
