"""A board on a serial line: registers and memory are accessed by framed commands with checksums (docs/devices.md).

This was not run on a board yet. Tests run it over pseudo-terminals against an implementation of the device's side in Python,
and against the gateware in simulation.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Kind
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.link_protocol import LinkCommand
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.progress import Progress, silent
from edgedec.runtime.devices._link import Link
from edgedec.runtime.driver.lock import DeviceLock

__all__ = ["ARGUMENT", "UartBuffer", "UartDevice", "open_device"]

ARGUMENT = "port"  # argument of ``open_device`` that follows the colon in "uart:/dev/ttyUSB0"
_FIRST_SLICE_S, _LONGEST_SLICE_S = 1e-3, 0.1  # device time of one WAIT command, in seconds: the first, and the longest
_SHARE = 8  # ratio of the host's patience to the host time of a WAIT command; simulated time passes slowly
_REPORTED = 1 << 16  # size of a transfer from which on its progress is reported, in bytes
_STEP = 32  # blocks between two reports
_MOST_CYCLES = (1 << 32) - 1  # maximum number of cycles of a WAIT command

U8 = NDArray[np.uint8]


class UartBuffer:
    """A buffer in the memory of a board on a serial line, with a copy on the host.

    ``flush`` sends only the blocks that changed since they were last sent or fetched. Therefore data that the device wrote
    must be invalidated before the host flushes other data of the same block.

    Members:
        address: address on the board.
        array: uint8 [bytes], the host's copy.
    """

    def __init__(self, device: UartDevice, start: int, size_bytes: int, block_bytes: int) -> None:
        self._device, self.address, self._block = device, start, block_bytes
        padded = -(-size_bytes // block_bytes) * block_bytes
        self._host: U8 = np.zeros(padded, np.uint8)
        self._remote: U8 = np.zeros(padded, np.uint8)
        self._known = np.zeros(
            padded // block_bytes, np.bool_
        )  # blocks in which ``_remote`` equals the device's memory
        self.array = self._host[:size_bytes]

    def flush(self) -> None:
        """Send the changed blocks."""
        blocks = (-1, self._block)
        changed = (self._host.reshape(blocks) != self._remote.reshape(blocks)).any(axis=1) | ~self._known
        for block in self._device.send(self.address, self._host, np.flatnonzero(changed), self._block):
            at = slice(block * self._block, (block + 1) * self._block)
            self._remote[at] = self._host[at]
            self._known[block] = True

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        """Fetch the blocks of a range."""
        end = self.array.size if size_bytes is None else min(start + size_bytes, self.array.size)
        blocks = np.arange(start // self._block, -(-end // self._block)) if end > start else np.arange(0)
        for block, data in self._device.fetch(self.address, blocks, self._block):
            at = slice(block * self._block, (block + 1) * self._block)
            self._remote[at] = self._host[at] = data
            self._known[block] = True

    def close(self) -> None:
        """Free the buffer."""
        self._device.release(self.address)


class UartDevice:
    """A device of ``edgedec.device`` on a serial line.

    Members:
        link: the link, which counts retries.
    """

    name = "uart"

    def __init__(self, link: Link, lock: DeviceLock, progress: Progress = silent) -> None:
        self.link, self._lock, self._progress = link, lock, progress
        identity = link.identity
        self.kind: Kind = "simulated" if identity.simulated or link.pseudo else "measured"
        self.clock_hz = float(identity.clock_hz)
        self._first, self._size, self._block = identity.memory_address, identity.memory_bytes, identity.block_bytes
        self._allocated: dict[int, int] = {}  # address -> size in bytes
        self._slice_s = _FIRST_SLICE_S
        self._closed = False

    def read_register(self, offset: int) -> int:
        """Read a register; 0 beyond the register map."""
        self._check_open()
        if _checked(offset) >= REGISTER_MAP.bytes:
            return 0
        return int(struct.unpack("<I", self.link.ask(LinkCommand.READ_REGISTER, struct.pack("<I", offset)))[0])

    def write_register(self, offset: int, value: int) -> None:
        """Write a register; beyond the register map this does nothing."""
        self._check_open()
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        if _checked(offset) < REGISTER_MAP.bytes:
            self.link.ask(LinkCommand.WRITE_REGISTER, struct.pack("<II", offset, value))

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> UartBuffer:
        """Allocate a buffer in the board's memory, in whole blocks, at the first address where it fits."""
        self._check_open()
        if size_bytes < 1 or alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"no buffer to allocate: {size_bytes} bytes at a multiple of {alignment_bytes}")
        alignment, size = max(alignment_bytes, self._block), -(-size_bytes // self._block) * self._block
        at, end = self._first, self._first + self._size
        for start, allocated in [*sorted(self._allocated.items()), (end, 0)]:
            at += -at % alignment
            if at + size <= start:
                break
            at = max(at, start + allocated)
        else:
            free = self._size - sum(self._allocated.values())
            raise DeviceError(
                f"a buffer of {size_bytes} bytes does not fit the board's memory: {free} of {self._size} bytes are free; "
                "use a smaller context, or a smaller model"
            )
        self._allocated[at] = size
        return UartBuffer(self, at, size_bytes, self._block)

    def release(self, address: int) -> None:
        """Free the buffer at ``address``. A second call does nothing."""
        self._allocated.pop(address, None)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the interrupt, with timeouts counted by the device. After Ctrl-C, the next command ends the wait."""
        self._check_open()
        left = max(1, math.ceil(timeout_s * self.clock_hz))
        while True:
            cycles = min(left, max(1, int(self._slice_s * self.clock_hz)), _MOST_CYCLES)
            began = time.monotonic()
            waited, high = struct.unpack("<IB", self.link.ask(LinkCommand.WAIT, struct.pack("<I", cycles)))
            self._adjust_slice(waited, time.monotonic() - began)
            left -= waited
            if high or left <= 0:
                return bool(high)

    def _adjust_slice(self, cycles: int, seconds: float) -> None:
        """Set the device time of the next WAIT command, so that its answer arrives well within the host's patience.

        The last command waited for ``cycles`` and took ``seconds`` on the host. The time at most doubles.
        """
        allowed = cycles / self.clock_hz * self.link.patience_s / _SHARE / max(seconds, 1e-6)
        self._slice_s = min(max(allowed, _FIRST_SLICE_S / 100), 2 * self._slice_s, _LONGEST_SLICE_S)

    def send(self, address: int, data: U8, blocks: NDArray[np.intp], size: int) -> Iterator[int]:
        """Send ``blocks`` of ``data``, of ``size`` bytes each. Yield the number of each block that the device confirmed."""
        self._check_open()
        commands = (
            (
                LinkCommand.WRITE_MEMORY,
                struct.pack("<Q", address + int(n) * size) + data[n * size : (n + 1) * size].tobytes(),
            )
            for n in blocks
        )
        report = self._progress if len(blocks) * size >= _REPORTED else silent
        for done, (n, _) in enumerate(zip(blocks, self.link.exchange(commands), strict=True)):
            if done % _STEP == 0 or done + 1 == len(blocks):
                report("send, bytes", (done + 1) * size, len(blocks) * size)
            yield int(n)

    def fetch(self, address: int, blocks: NDArray[np.intp], size: int) -> Iterator[tuple[int, U8]]:
        """Read ``blocks`` of ``size`` bytes each and yield the number and the contents of each one."""
        self._check_open()
        commands = ((LinkCommand.READ_MEMORY, struct.pack("<QH", address + int(n) * size, size)) for n in blocks)
        for n, data in zip(blocks, self.link.exchange(commands), strict=True):
            yield int(n), np.frombuffer(data, np.uint8)

    def close(self) -> None:
        """Close the port and release the lock. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.link.close()
            self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"device {self.name} is closed; open it again")


def open_device(
    config: AcceleratorConfig,
    *,
    port: Path,
    baud: int = 3_000_000,
    patience_s: float = 0.0,
    progress: Progress = silent,
) -> UartDevice:
    """Open the board on a serial port. No other process can use it until the device is closed.

    Args:
        config: not used here; the driver compares it with the registers.
        port: path of the port, such as /dev/ttyUSB0; a pseudo-terminal belongs to a simulation.
        baud: baud rate for which the bitstream was built; it has no effect on a pseudo-terminal.
        patience_s: seconds without an answer after which a command is sent again; 0: half a second, or ten on a
            pseudo-terminal.
        progress: called during long transfers.

    Raises:
        DeviceError: the port does not exist, no device answers, or another process uses it.
        UsageError: the operating system does not support the baud rate.
    """
    lock = DeviceLock(f"uart-{port.resolve()}")
    try:
        return UartDevice(Link(port, baud, patience_s), lock, progress)
    except BaseException:
        lock.release()
        raise


def _checked(offset: int) -> int:
    if offset < 0 or offset % 4 or offset >= 1 << 32:
        raise UsageError(f"a register's offset must be a multiple of 4, not {offset:#x}")
    return offset
