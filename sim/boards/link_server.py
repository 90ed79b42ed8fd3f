"""The device's side of the host link (docs/devices.md) in Python, for any device of edgedec.device."""

from __future__ import annotations

import os
import select
import struct
import threading
import tty
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np

from edgedec.device import Device
from edgedec.errors import DeviceError
from edgedec.hw.isa.link_protocol import (
    BLOCK_BYTES,
    END,
    MOST_FRAME,
    Identity,
    LinkCommand,
    RunItem,
    Status,
    frame,
    opened,
)
from edgedec.hw.isa.registers import BOARD_REGISTER_MAP, CAPTURE_PHASES, NOMINAL_PHASE

__all__ = ["LinkServer", "PseudoTerminal"]

_REGISTER_BYTES = 4096
_PHASE = BOARD_REGISTER_MAP["memory_phase"].offset
_SPOILT = np.uint8(0xA5)  # bits that are wrong in what is read at a wrong phase
_PAGE = 4096  # bytes; a block of memory must not cross a page
_LENGTHS = {  # bytes of a command after its code and sequence number
    LinkCommand.IDENTIFY: 0,
    LinkCommand.READ_REGISTER: 4,
    LinkCommand.WRITE_REGISTER: 8,
    LinkCommand.READ_MEMORY: 10,
    LinkCommand.WAIT: 4,
}


class LinkServer:
    """Execute the commands of a host on a device.

    Args:
        device: device whose memory the link uses alone.
        memory_bytes: size of the link's memory.
        granule: alignment in bytes of accesses to memory, see ``Identity``.
        good: phases of the memory at which it is read right, as of an SDRAM; None: it has no phases.

    Members:
        executed: (command, sequence) of each executed command.
        phase: phase at which the memory is read.
    """

    def __init__(
        self, device: Device, *, memory_bytes: int = 1 << 20, granule: int = 4, good: range | None = None
    ) -> None:
        self._device, self._granule = device, granule
        self._memory = device.allocate(memory_bytes, alignment_bytes=1 << 14)
        self._identity = Identity(
            simulated=device.kind == "simulated",
            phases=0 if good is None else CAPTURE_PHASES,
            granule=granule,
            memory_address=self._memory.address,
            memory_bytes=memory_bytes,
            clock_hz=int(device.clock_hz),
        )
        self._good, self.phase = good, NOMINAL_PHASE
        self._held = False  # True if written bytes were not flushed yet
        self._received = bytearray()
        self._expected = 0
        self.executed: list[tuple[int, int]] = []

    def take(self, data: bytes) -> bytes:
        """Return the answers to all frames that are complete with these bytes."""
        answers = b""
        self._received += data
        while (end := self._received.find(END)) >= 0:
            between = bytes(self._received[:end])
            del self._received[: end + 1]
            content = opened(between) if between else None
            if content is not None:
                answers += frame(self._answer(content))
        if len(self._received) > 2 * MOST_FRAME:  # noise without an end of frame
            del self._received[:-1]
        return answers

    def _answer(self, content: bytes) -> bytes:
        code, sequence, rest = content[0], content[1], content[2:]
        ahead = (sequence - self._expected) % 256
        if code == LinkCommand.IDENTIFY:
            ahead = 0
        if code not in list(LinkCommand):
            status, data = Status.COMMAND, b""
        elif 0 < ahead < 128:
            status, data = Status.ORDER, b""
        else:
            repeated = ahead >= 128
            if not repeated:
                self._expected = (sequence + 1) % 256
            status, data = self._execute(LinkCommand(code), sequence, rest, repeated)
        return bytes((code | 0x80, sequence)) + data + bytes((status,))

    def _execute(self, command: LinkCommand, sequence: int, rest: bytes, repeated: bool) -> tuple[Status, bytes]:
        if command is LinkCommand.RUN:
            if len(rest) < 8 or (len(rest) - 8) % self._granule:
                return Status.ARGUMENT, b""
        elif command is LinkCommand.WRITE_MEMORY:
            if len(rest) <= 8 or not self._possible(int.from_bytes(rest[:8], "little"), len(rest) - 8):
                return Status.ARGUMENT, b""
        elif len(rest) != _LENGTHS[command]:
            return Status.ARGUMENT, b""
        if repeated and command in (LinkCommand.WRITE_REGISTER, LinkCommand.WRITE_MEMORY):
            return Status.OK, b""
        self.executed.append((command, sequence))
        if command is not LinkCommand.WRITE_MEMORY and self._held:
            self._memory.flush()
            self._held = False
        if command is LinkCommand.RUN:
            return self._run(struct.unpack(f"<{len(rest) // 4}I", rest), repeated)
        answer: tuple[Status, bytes] = getattr(self, f"_{command.name.lower()}")(rest)
        return answer

    def _possible(self, address: int, size: int) -> bool:
        aligned = address % self._granule == 0 and size % self._granule == 0 and 0 < size <= BLOCK_BYTES
        return aligned and address % _PAGE + size <= _PAGE

    def _identify(self, rest: bytes) -> tuple[Status, bytes]:
        return Status.OK, self._identity.packed()

    def _read_register(self, rest: bytes) -> tuple[Status, bytes]:
        (offset,) = struct.unpack("<I", rest)
        if offset % 4 or offset >= _REGISTER_BYTES:
            return Status.ARGUMENT, b""
        return Status.OK, struct.pack("<I", self._device.read_register(offset))

    def _write_register(self, rest: bytes) -> tuple[Status, bytes]:
        offset, value = struct.unpack("<II", rest)
        if offset % 4 or offset >= _REGISTER_BYTES:
            return Status.ARGUMENT, b""
        if offset == _PHASE:
            self.phase = value % CAPTURE_PHASES
        self._device.write_register(offset, value)
        return Status.OK, b""

    def _read_memory(self, rest: bytes) -> tuple[Status, bytes]:
        address, size = struct.unpack("<QH", rest)
        if not self._possible(address, size):
            return Status.ARGUMENT, b""
        start = address - self._memory.address
        if not 0 <= start <= self._memory.array.size - size:
            return Status.BUS, bytes(size)
        self._memory.invalidate(start, size)
        data = self._memory.array[start : start + size]
        if self._good is not None and self.phase not in self._good:
            data = data ^ _SPOILT
        return Status.OK, data.tobytes()

    def _write_memory(self, rest: bytes) -> tuple[Status, bytes]:
        start, data = int.from_bytes(rest[:8], "little") - self._memory.address, rest[8:]
        if not 0 <= start <= self._memory.array.size - len(data):
            return Status.BUS, b""
        if not self._held:
            self._memory.invalidate()
            self._held = True
        self._memory.array[start : start + len(data)] = memoryview(data)
        return Status.OK, b""

    def _wait(self, rest: bytes) -> tuple[Status, bytes]:
        (cycles,) = struct.unpack("<I", rest)
        high = self._device.wait(max(cycles, 1) / self._device.clock_hz)
        return Status.OK, struct.pack("<IB", cycles, high)

    def _run(self, words: tuple[int, ...], repeated: bool) -> tuple[Status, bytes]:
        """Carry out the items one by one. If they are repeated, the writes before the first wait are left out."""
        at, found, skips = 0, b"", repeated
        while at < len(words):
            head, at = words[at], at + 1
            kind, count, number = head >> 24, head >> 16 & 0xFF, head & 0x3FF
            if kind == RunItem.PADDING:
                continue
            if kind not in list(RunItem) or head & 0xFC00 or not count or (kind == RunItem.WAIT and count != 1):
                return Status.ARGUMENT, found
            for offset in range(4 * number, 4 * (number + count), 4):
                if kind == RunItem.READ:
                    found += struct.pack("<I", self._device.read_register(offset % _REGISTER_BYTES))
                    continue
                if at == len(words):
                    return Status.ARGUMENT, found
                value, at = words[at], at + 1
                if kind == RunItem.WAIT:
                    found += self._wait(struct.pack("<I", value))[1]
                    skips = False
                elif kind == RunItem.EXPECT:
                    actual = self._device.read_register(offset % _REGISTER_BYTES)
                    found += struct.pack("<I", actual)
                    if actual != value:
                        return Status.EXPECTATION, found
                elif not skips:
                    self._device.write_register(offset % _REGISTER_BYTES, value)
        return Status.OK, found


class PseudoTerminal:
    """A serial port whose other end is a function from received bytes to the bytes that it sends back.

    Members:
        path: path to open in place of /dev/ttyUSB0.
        failure: exception of the function, or None.
    """

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self.failure: Exception | None = None
        self._ours, theirs = os.openpty()
        tty.setraw(theirs)
        self.path = Path(os.ttyname(theirs))
        self._theirs = theirs  # kept open, so that the host may close and open the port
        self._stop, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, name=f"pty {self.path}", daemon=True)
        self._thread.start()

    def __enter__(self) -> PseudoTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread and close the port. A second call does nothing."""
        if self._thread.is_alive():
            os.write(self._wake, b".")
            self._thread.join()
        for file in (self._ours, self._theirs, self._stop, self._wake):
            if file >= 0:
                os.close(file)
        self._ours = self._theirs = self._stop = self._wake = -1

    def _serve(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._ours, self._stop], [], [])
                if self._stop in ready:
                    return
                data = self._answer(os.read(self._ours, 1 << 16))
                while data:
                    data = data[os.write(self._ours, data) :]
        except (DeviceError, OSError, AssertionError) as error:
            self.failure = error
