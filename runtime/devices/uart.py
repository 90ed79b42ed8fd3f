"""A board on a serial line: registers and memory are accessed by framed commands with checksums (docs/devices.md).

This was not run on a board yet. Tests run it over pseudo-terminals against an implementation of the device's side in Python,
and against the gateware in simulation.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Buffer, Kind
from edgedec.device_steps import (
    ExpectRegister,
    Fetch,
    Flush,
    ReadRegister,
    Step,
    UnexpectedRegisterError,
    Wait,
    WriteRegister,
)
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.link_protocol import BLOCK_BYTES, LinkCommand, RunItem, run_arguments, run_item
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.progress import Progress, silent
from edgedec.runtime.devices._calibration import MemoryPhases, calibrated
from edgedec.runtime.devices._link import Link, UnmetError
from edgedec.runtime.driver.first_fit import FirstFit
from edgedec.runtime.driver.identity import Gateware
from edgedec.runtime.driver.lock import DeviceLock
from edgedec.runtime.driver.registers import Registers

__all__ = ["ARGUMENT", "UartBuffer", "UartDevice", "open_device"]

ARGUMENT = "port"  # argument of ``open_device`` that follows the colon in "uart:/dev/ttyUSB0"
_FIRST_SLICE_S, _LONGEST_SLICE_S = 1e-3, 0.1  # device time of one WAIT command, in seconds: the first, and the longest
_SHARE = 8  # ratio of the host's patience to the host time of a WAIT command; simulated time passes slowly
_REPORTED = 1 << 16  # size of a transfer from which on its progress is reported, in bytes
_STEP = 32  # blocks between two reports
_MOST_CYCLES = (1 << 32) - 1  # maximum number of cycles of a WAIT command
_MOST_ARGUMENTS = 8 + BLOCK_BYTES  # bytes of the longest arguments of a command
_MOST_COUNT = 255  # registers of one item of a RUN command
_ITEMS: Mapping[type[Step], RunItem] = {
    ExpectRegister: RunItem.EXPECT,
    WriteRegister: RunItem.WRITE,
    Wait: RunItem.WAIT,
}

U8 = NDArray[np.uint8]


@dataclass(frozen=True)
class LinkRequest:
    """A command that waits to be sent.

    Members:
        command: the command.
        content: returns its arguments at the time when it is sent.
        done: called with its answer.
        size_bytes: bytes of memory that it moves.
    """

    command: LinkCommand
    content: Callable[[], bytes]
    done: Callable[[bytes], None]
    size_bytes: int


class UartBuffer:
    """A buffer in the memory of a board on a serial line, with a copy on the host.

    ``flush`` sends only the blocks that changed since they were last sent or fetched. Therefore data that the device wrote
    must be invalidated before the host flushes other data of the same block.

    Members:
        address: address on the board.
        array: uint8 [bytes], the host's copy; empty once the buffer is closed.
    """

    def __init__(self, device: UartDevice, start: int, size_bytes: int, block_bytes: int) -> None:
        self._device, self.address, self._block, self._closed = device, start, block_bytes, False
        padded = -(-size_bytes // block_bytes) * block_bytes
        self._host: U8 = np.zeros(padded, np.uint8)
        self._remote: U8 = np.zeros(padded, np.uint8)
        self._known = np.zeros(
            padded // block_bytes, np.bool_
        )  # blocks in which ``_remote`` equals the device's memory
        self.array = self._host[:size_bytes]

    def flush(self) -> None:
        """Send the changed blocks."""
        self._device.exchange(self.sending(), "send, bytes")

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        """Fetch the blocks of a range."""
        self._device.exchange(self.fetching(start, size_bytes), "fetch, bytes")

    def sending(self) -> list[LinkRequest]:
        """Return the requests that send the changed blocks; none if the buffer is closed."""
        if self._closed:
            return []
        blocks = (-1, self._block)
        changed = (self._host.reshape(blocks) != self._remote.reshape(blocks)).any(axis=1) | ~self._known
        return [self._send(int(block)) for block in np.flatnonzero(changed)]

    def fetching(self, start: int = 0, size_bytes: int | None = None) -> list[LinkRequest]:
        """Return the requests that fetch the blocks of a range; none if the buffer is closed."""
        end = self.array.size if size_bytes is None else min(start + size_bytes, self.array.size)
        return (
            [self._fetch(block) for block in range(start // self._block, -(-end // self._block))] if end > start else []
        )

    def _send(self, block: int) -> LinkRequest:
        at, place = slice(block * self._block, (block + 1) * self._block), self.address + block * self._block

        sent = self._host[at]

        def content() -> bytes:
            nonlocal sent
            sent = self._host[at].copy()
            self._known[block] = False  # until the answer: if none comes, the board has the old bytes or these
            return struct.pack("<Q", place) + sent.tobytes()

        def done(_: bytes) -> None:
            self._remote[at] = sent
            self._known[block] = True

        return LinkRequest(LinkCommand.WRITE_MEMORY, content, done, self._block)

    def _fetch(self, block: int) -> LinkRequest:
        at, place = slice(block * self._block, (block + 1) * self._block), self.address + block * self._block

        def done(data: bytes) -> None:
            self._remote[at] = self._host[at] = np.frombuffer(data, np.uint8)
            self._known[block] = True

        return LinkRequest(LinkCommand.READ_MEMORY, lambda: struct.pack("<QH", place, self._block), done, self._block)

    def close(self) -> None:
        """Free the buffer. A second call does nothing."""
        if not self._closed:
            self._closed, self.array = True, np.zeros(0, np.uint8)
            self._device.release(self.address)


class UartDevice:
    """A device of ``edgedec.device`` on a serial line.

    Members:
        link: the link, which counts retries.
        calibration: at which phases the memory was read right; None if it has no phases.
    """

    name = "uart"

    def __init__(self, link: Link, lock: DeviceLock, progress: Progress = silent) -> None:
        self.link, self._lock, self._progress = link, lock, progress
        self.calibration: MemoryPhases | None = None
        identity = link.identity
        self.kind: Kind = "simulated" if identity.simulated or link.pseudo else "measured"
        self.clock_hz = float(identity.clock_hz)
        self._size, self._block = identity.memory_bytes, identity.block_bytes
        self._parts = FirstFit(identity.memory_address, identity.memory_bytes)
        # A board's time is the host's; that of a simulation is found by waiting.
        measured = min(link.patience_s / _SHARE, _LONGEST_SLICE_S)
        self._slice_s = measured if self.kind == "measured" else _FIRST_SLICE_S
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
        size = -(-size_bytes // self._block) * self._block
        at = self._parts.take(size, max(alignment_bytes, self._block))
        if at is None:
            raise DeviceError(
                f"a buffer of {size_bytes} bytes does not fit the board's memory: {sum(self._parts.gaps)} of {self._size} "
                "bytes are free; use a smaller context, or a smaller model"
            )
        return UartBuffer(self, at, size_bytes, self._block)

    def release(self, address: int) -> None:
        """Free the buffer at ``address``, which its ``close`` calls once."""
        self._parts.release(address)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the interrupt, with timeouts counted by the device. After Ctrl-C, the next command ends the wait."""
        self._check_open()
        left = self._cycles(timeout_s)
        while True:
            cycles = self._slice(left)
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
        if self.kind == "measured":
            return
        allowed = cycles / self.clock_hz * self.link.patience_s / _SHARE / max(seconds, 1e-6)
        self._slice_s = min(max(allowed, _FIRST_SLICE_S / 100), 2 * self._slice_s, _LONGEST_SLICE_S)

    def perform(self, steps: Sequence[Step]) -> list[int]:
        """Carry out steps in one round trip: blocks, then a RUN, then blocks. A long wait takes further ones."""
        self._check_open()
        before = [step for step in steps if isinstance(step, Flush)]
        items = [step for step in steps if isinstance(step, ExpectRegister | WriteRegister | ReadRegister | Wait)]
        after = [step for step in steps if isinstance(step, Fetch)]
        if [*before, *items, *after] != list(steps):
            raise UsageError(
                "blocks are sent before the other steps and fetched after them; give the steps in that order"
            )
        for item in items:
            if not isinstance(item, Wait) and _checked(item.offset) >= REGISTER_MAP.bytes:
                raise UsageError(f"there is no register at {item.offset:#x}; the map has {REGISTER_MAP.bytes} bytes")
        wait = next((number for number, step in enumerate(items) if isinstance(step, Wait)), None)
        sends = [request for step in before for request in self._own(step.buffer).sending()]
        fetches = [request for step in after for request in self._own(step.buffer).fetching(0, step.size_bytes)]
        if wait is None:
            return self._run(items, 0, sends, fetches)[0]
        left = self._cycles(cast(Wait, items[wait]).timeout_s)
        while True:
            cycles = self._slice(left)
            began = time.monotonic()
            found, waited = self._run(items, cycles, sends, fetches)
            self._adjust_slice(waited, time.monotonic() - began)
            left -= waited
            if found[sum(isinstance(step, ReadRegister) for step in items[:wait])] or left <= 0:
                return found
            items, sends, wait = items[wait:], [], 0

    def exchange(self, requests: Sequence[LinkRequest], task: str = "") -> None:
        """Send requests and complete each with its answer, in their order.

        Args:
            task: name of the task for reports of the progress of a large one.
        """
        self._check_open()
        whole, done = sum(request.size_bytes for request in requests), 0
        report = self._progress if whole >= _REPORTED else silent
        commands = ((request.command, request.content()) for request in requests)
        for number, (request, answer) in enumerate(zip(requests, self.link.exchange(commands), strict=True), start=1):
            request.done(answer)
            done += request.size_bytes
            if (number - 1) % _STEP == 0 or number == len(requests):
                report(task, done, whole)

    def _run(
        self, items: Sequence[Step], cycles: int, sends: Sequence[LinkRequest], fetches: Sequence[LinkRequest]
    ) -> tuple[list[int], int]:
        """Send blocks, a RUN of ``items``, in which a wait has this many cycles, and requests of blocks.

        Returns:
            What the items give, and the cycles of the wait.
        """
        content = run_arguments(_encoded(items, cycles), self.link.identity.granule)
        if len(content) > _MOST_ARGUMENTS:
            raise UsageError(f"{len(items)} steps take {len(content)} bytes, a frame has {_MOST_ARGUMENTS}; split them")
        answers = list[bytes]()
        run = [LinkRequest(LinkCommand.RUN, lambda: content, answers.append, 0)] if items else []
        try:
            self.exchange([*sends, *run, *fetches])
        except UnmetError as error:
            number, value = len(error.found) // 4 - 1, int.from_bytes(error.found[-4:], "little")
            expects = [item for item in items if isinstance(item, ExpectRegister)]
            raise UnexpectedRegisterError(expects[number], value) from error
        return _decoded(items, answers[0] if answers else b"")

    def _own(self, buffer: Buffer) -> UartBuffer:
        if not isinstance(buffer, UartBuffer):
            raise UsageError(f"a step of device {self.name} has a buffer of another device")
        return buffer

    def _cycles(self, seconds: float) -> int:
        return max(1, math.ceil(seconds * self.clock_hz))

    def _slice(self, left: int) -> int:
        """Return the cycles of the next wait, of ``left``."""
        return min(left, max(1, int(self._slice_s * self.clock_hz)), _MOST_CYCLES)

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
    gateware: Gateware | None = None,
    progress: Progress = silent,
) -> UartDevice:
    """Open the board on a serial port. No other process can use it until the device is closed.

    Args:
        config: not used here; the driver compares it with the registers.
        port: path of the port, such as /dev/ttyUSB0; a pseudo-terminal belongs to a simulation.
        baud: baud rate for which the bitstream was built; it has no effect on a pseudo-terminal.
        patience_s: seconds without an answer after which a command is sent again; 0: half a second, or ten on a
            pseudo-terminal.
        gateware: RTL that the board must have, which is compared before anything is written; None: not known.
        progress: called during long transfers.

    Raises:
        DeviceError: the port does not exist, no device answers, another process uses it, its RTL is not ``gateware``, or its
            memory fails a test.
        UsageError: the operating system does not support the baud rate.
    """
    lock = DeviceLock(f"uart-{port.resolve()}")
    try:
        link = Link(port, baud, patience_s)
        try:
            device = UartDevice(link, lock, progress)
            if gateware is not None:
                gateware.check(Registers(device).read("rtlil_hash"))
            device.calibration = calibrated(link)
            return device
        except BaseException:
            link.close()
            raise
    except BaseException:
        lock.release()
        raise


def _encoded(steps: Sequence[Step], cycles: int) -> bytes:
    """Return the items of RUN for steps on registers. Adjacent registers of one kind become one item."""
    items, joined = b"", list[tuple[type[Step], int, list[int]]]()
    for step in steps:
        if isinstance(step, Wait):
            joined.append((Wait, 0, [cycles]))
        elif isinstance(step, ExpectRegister | WriteRegister | ReadRegister):
            offset, value = _checked(step.offset), 0 if isinstance(step, ReadRegister) else step.value
            kind, start, values = joined[-1] if joined else (Wait, 0, [])
            if kind is type(step) and start + 4 * len(values) == offset and len(values) < _MOST_COUNT:
                values.append(value)
            else:
                joined.append((type(step), offset, [value]))
    for kind, start, values in joined:
        if kind is ReadRegister:
            items += run_item(RunItem.READ, start, count=len(values))
        else:
            items += run_item(_ITEMS[kind], start, values)
    return items


def _decoded(steps: Sequence[Step], answer: bytes) -> tuple[list[int], int]:
    """Return what ``perform`` gives for steps on registers, and the cycles that a wait among them took."""
    found, at, waited = list[int](), 0, 0
    for step in steps:
        if isinstance(step, Wait):
            waited, high = struct.unpack_from("<IB", answer, at)
            found.append(high)
            at += 5
        elif isinstance(step, ReadRegister | ExpectRegister):
            if isinstance(step, ReadRegister):
                found.append(int.from_bytes(answer[at : at + 4], "little"))
            at += 4
    return found, waited


def _checked(offset: int) -> int:
    if offset < 0 or offset % 4 or offset >= 1 << 32:
        raise UsageError(f"a register's offset must be a multiple of 4, not {offset:#x}")
    return offset
