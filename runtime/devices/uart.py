"""A board behind a serial line: registers and memory over framed, checked commands (docs/uart-link.md).

Not run on a board yet: tests run this file over pseudo-terminals, against the protocol's other side in Python and against
the gateware's in simulation.
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

ARGUMENT = "port"  # what "uart:/dev/ttyUSB0" gives
_FIRST_SLICE_S, _LONGEST_SLICE_S = 1e-3, 0.1  # of the device's time in one command
_SHARE = 8  # of the host's patience, in which a wait is to be answered: a simulation's seconds are long
_REPORTED = 1 << 16  # bytes that are sent together, from which on it is said how far they are
_STEP = 32  # blocks between two such reports
_MOST_CYCLES = (1 << 32) - 1

U8 = NDArray[np.uint8]


class UartBuffer:
    """``flush`` sends the blocks in which something is not as it was last sent or fetched: what the device has written has
    to be invalidated before the host flushes something else there.
    """

    def __init__(self, device: UartDevice, start: int, size_bytes: int, block_bytes: int) -> None:
        self._device, self.address, self._block = device, start, block_bytes
        padded = -(-size_bytes // block_bytes) * block_bytes
        self._host: U8 = np.zeros(padded, np.uint8)
        self._there: U8 = np.zeros(padded, np.uint8)
        self._known = np.zeros(padded // block_bytes, np.bool_)  # whether ``_there`` is what the device has
        self.array = self._host[:size_bytes]

    def flush(self) -> None:
        blocks = (-1, self._block)
        changed = (self._host.reshape(blocks) != self._there.reshape(blocks)).any(axis=1) | ~self._known
        for block in self._device.send(self.address, self._host, np.flatnonzero(changed), self._block):
            at = slice(block * self._block, (block + 1) * self._block)
            self._there[at] = self._host[at]
            self._known[block] = True

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        end = self.array.size if size_bytes is None else min(start + size_bytes, self.array.size)
        blocks = np.arange(start // self._block, -(-end // self._block)) if end > start else np.arange(0)
        for block, data in self._device.fetch(self.address, blocks, self._block):
            at = slice(block * self._block, (block + 1) * self._block)
            self._there[at] = self._host[at] = data
            self._known[block] = True

    def close(self) -> None:
        self._device.release(self.address)


class UartDevice:
    """A device of edgedec.device.

    Members:
        link: for its count of retries.
    """

    name = "uart"

    def __init__(self, link: Link, lock: DeviceLock, progress: Progress = silent) -> None:
        self.link, self._lock, self._progress = link, lock, progress
        identity = link.identity
        self.kind: Kind = "simulated" if identity.simulated or link.pseudo else "measured"
        self.clock_hz = float(identity.clock_hz)
        self._first, self._size, self._block = identity.memory_address, identity.memory_bytes, identity.block_bytes
        self._taken: dict[int, int] = {}  # first byte -> size
        self._slice_s = _FIRST_SLICE_S
        self._closed = False

    def read_register(self, offset: int) -> int:
        self._check_open()
        if _checked(offset) >= REGISTER_MAP.bytes:
            return 0
        return int(struct.unpack("<I", self.link.ask(LinkCommand.READ_REGISTER, struct.pack("<I", offset)))[0])

    def write_register(self, offset: int, value: int) -> None:
        self._check_open()
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        if _checked(offset) < REGISTER_MAP.bytes:
            self.link.ask(LinkCommand.WRITE_REGISTER, struct.pack("<II", offset, value))

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> UartBuffer:
        self._check_open()
        if size_bytes < 1 or alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"no buffer to allocate: {size_bytes} bytes at a multiple of {alignment_bytes}")
        alignment, size = max(alignment_bytes, self._block), -(-size_bytes // self._block) * self._block
        at, end = self._first, self._first + self._size
        for start, taken in [*sorted(self._taken.items()), (end, 0)]:
            at += -at % alignment
            if at + size <= start:
                break
            at = max(at, start + taken)
        else:
            free = self._size - sum(self._taken.values())
            raise DeviceError(
                f"a buffer of {size_bytes} bytes does not fit the board's memory: {free} of {self._size} bytes are free; "
                "use a smaller context, or a smaller model"
            )
        self._taken[at] = size
        return UartBuffer(self, at, size_bytes, self._block)

    def release(self, address: int) -> None:
        """Of a buffer; a second time does nothing."""
        self._taken.pop(address, None)

    def wait(self, timeout_s: float) -> bool:
        """The device counts; Ctrl-C ends it between two of its answers, and the next command calls it back."""
        self._check_open()
        left = max(1, math.ceil(timeout_s * self.clock_hz))
        while True:
            asked = min(left, max(1, int(self._slice_s * self.clock_hz)), _MOST_CYCLES)
            begun = time.monotonic()
            waited, high = struct.unpack("<IB", self.link.ask(LinkCommand.WAIT, struct.pack("<I", asked)))
            self._learn(waited, time.monotonic() - begun)
            left -= waited
            if high or left <= 0:
                return bool(high)

    def _learn(self, cycles: int, took_s: float) -> None:
        """How much of the device's time may be asked for without its looking silent; at most twice as much each time."""
        allowed = cycles / self.clock_hz * self.link.patience_s / _SHARE / max(took_s, 1e-6)
        self._slice_s = min(max(allowed, _FIRST_SLICE_S / 100), 2 * self._slice_s, _LONGEST_SLICE_S)

    def send(self, address: int, data: U8, blocks: NDArray[np.intp], size: int) -> Iterator[int]:
        """Blocks of a buffer, and each again when the device has it."""
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
        """Blocks of a buffer as the device has them."""
        self._check_open()
        commands = ((LinkCommand.READ_MEMORY, struct.pack("<QH", address + int(n) * size, size)) for n in blocks)
        for n, found in zip(blocks, self.link.exchange(commands), strict=True):
            yield int(n), np.frombuffer(found, np.uint8)

    def close(self) -> None:
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
    """The board at a serial port; it is this process's alone until the device is closed.

    Args:
        config: what the driver compares with the registers.
        port: for instance /dev/ttyUSB0; a pseudo-terminal is a simulation.
        baud: as the bitstream was built for; a pseudo-terminal has none.
        patience_s: without an answer, then a command is sent again; 0: half a second, or ten behind a pseudo-terminal.
        progress: of what takes long to send.

    Raises:
        DeviceError: no such port, nobody answers, or another process has it.
        UsageError: no such baud rate.
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
