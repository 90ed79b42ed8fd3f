"""A recorded session as a device: it answers what was recorded, and refuses whoever behaves otherwise.

What it says of time and counters is what was recorded, so its ``kind`` is that of the device that was; its name tells that
it is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Kind
from edgedec.errors import BundleError, DeviceError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.driver.recording import digests, zero_digests
from edgedec.runtime.driver.recording_file import CHUNK_BYTES, Failure, Operation, RecordingReader, Step

__all__ = ["ARGUMENT", "ReplayBuffer", "ReplayDevice", "open_device"]

ARGUMENT = "recording"  # what "replay:FILE" gives

U8 = NDArray[np.uint8]

_REGISTERS = {
    register.offset + index * register.bytes + 4 * word: f"{register.name}{f'[{index}]' if register.count > 1 else ''}"
    for register in REGISTER_MAP.registers
    for index in range(register.count)
    for word in range(register.bytes // 4)
}


class ReplayBuffer:
    """Members:
    address: as it was recorded.
    """

    def __init__(self, device: ReplayDevice, number: int, size_bytes: int, address: int) -> None:
        self._device, self._number, self.address = device, number, address
        self.array: U8 = np.zeros(size_bytes, np.uint8)
        self._digests = zero_digests(size_bytes)
        self._seen: U8 | None = None  # as Recorder has it: without what the host has not flushed

    def flush(self) -> None:
        self._device.expect(Operation.FLUSH, (self._number,))
        for chunk, (found, wanted) in enumerate(zip(digests(self.array), self._digests, strict=True)):
            if found != wanted:
                start = chunk * CHUNK_BYTES
                end = min(start + CHUNK_BYTES, self.array.size)
                raise self._device.differs(f"in bytes {start} to {end - 1} of it other bytes came")
        if self._seen is not None:
            self._seen[:] = self.array

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        size = self.array.size - start if size_bytes is None else size_bytes
        seen = self._look()
        self._device.expect(Operation.INVALIDATE, (self._number, start, size))
        self.array[start : start + size] = seen[start : start + size]

    def close(self) -> None:
        self._device.release(self._number)

    def held(self, chunk: int, digest: bytes) -> bool:
        """What the host had written; False if there is no such chunk."""
        if chunk >= len(self._digests):
            return False
        self._digests[chunk] = digest
        return True

    def changed(self, start: int, data: bytes) -> bool:
        """What the device had written; False if it does not fit."""
        if start + len(data) > self.array.size:
            return False
        self._look()[start : start + len(data)] = np.frombuffer(data, np.uint8)
        return True

    def _look(self) -> U8:
        if self._seen is None:
            self._seen = np.zeros_like(self.array)
        return self._seen


class ReplayDevice:
    """A device of edgedec.device that needs none.

    Members:
        recorded_name: of the device that was recorded.

    Raises:
        DeviceError: of any method: the recording has something else here, or nothing any more.
        BundleError: of any method: the file is damaged.
    """

    name = "replay"

    def __init__(self, reader: RecordingReader) -> None:
        self._reader, header = reader, reader.header
        self.kind: Kind = header.kind
        self.clock_hz, self.recorded_name = header.clock_hz, header.device
        self._buffers: list[ReplayBuffer | None] = []
        self._step: Step | None = None  # the last one
        self._over: DeviceError | None = None  # why nothing can be replayed any more
        self._closed = False

    def read_register(self, offset: int) -> int:
        return int(self.expect(Operation.READ, (_checked(offset),)))

    def write_register(self, offset: int, value: int) -> None:
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        self.expect(Operation.WRITE, (_checked(offset), value))

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> ReplayBuffer:
        if size_bytes < 1 or alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"no buffer to allocate: {size_bytes} bytes at a multiple of {alignment_bytes}")
        address = self.expect(Operation.ALLOCATE, (size_bytes, alignment_bytes))
        buffer = ReplayBuffer(self, len(self._buffers), size_bytes, address)
        self._buffers.append(buffer)
        return buffer

    def wait(self, timeout_s: float) -> bool:
        """Takes no time."""
        return bool(self.expect(Operation.WAIT, (timeout_s,)))

    def close(self) -> None:
        """Raises:
        DeviceError: the session goes on in the recording. Not if the replay has ended before.
        """
        if self._closed:
            return
        try:
            if self._over is None:
                self._ended()
        finally:
            self._closed = True
            self._over = DeviceError(f"device {self.name} is closed; open it again")
            self._buffers.clear()
            self._reader.close()

    def release(self, number: int) -> None:
        """Of a buffer; the way out of a replay that has failed stays open."""
        if self._over is None and self._buffers[number] is not None:
            self.expect(Operation.RELEASE, (number,))
            self._buffers[number] = None

    def expect(self, operation: Operation, given: tuple[Any, ...]) -> Any:
        """The answer to what the host does, if it is what the recording has."""
        if self._over is not None:
            raise self._over
        step = self._next()
        came = _said(operation, given)
        if step is None:
            raise self._stopped(came)
        if (step.operation, step.given) != (operation, given):
            raise self.differs(f"{came} came")
        if step.failure is Failure.INTERRUPTED:
            raise KeyboardInterrupt
        if step.failure is not None:
            raise DeviceError("".join(letter if letter.isprintable() else "?" for letter in step.text))
        return step.answer

    def differs(self, how: str) -> DeviceError:
        """The error for the last step; nothing is replayed behind it."""
        step = self._step
        assert step is not None
        self._over = DeviceError(
            f"{self._reader.path}, step {step.number} (byte {step.offset}): the recording has "
            f"{_said(step.operation, step.given)}, and {how}; the driver is not the one that was recorded, or the model"
        )
        return self._over

    def _stopped(self, came: str) -> DeviceError:
        reader = self._reader
        where = f"{reader.path} ends with step {reader.steps}"
        if not reader.complete:
            where = (
                f"{reader.path} breaks off at byte {reader.offset} after step {reader.steps} (who wrote it was killed, or "
                "it was cut short)"
            )
        self._over = DeviceError(f"{where}, and {came} came; nothing was recorded of it")
        return self._over

    def _ended(self) -> None:
        step = self._next()
        if step is None and self._reader.complete:
            raise self._stopped("the end")
        if step is not None and step.operation is not Operation.CLOSE:
            raise self.differs("the end came")
        if step is not None and self._reader.step() is not None:
            raise self._damaged(step)

    def _next(self) -> Step | None:
        """The next step that a host does; what stands before it of buffers' contents is taken over."""
        while True:
            try:
                self._step = step = self._reader.step()
            except BundleError as error:
                self._over = DeviceError(str(error))
                raise
            if step is None or step.operation not in (Operation.HELD, Operation.CHANGED):
                return step
            number, place, _ = step.given
            buffer = self._buffers[number] if number < len(self._buffers) else None
            held = step.operation is Operation.HELD
            if buffer is None or not (buffer.held(place, step.given[2]) if held else buffer.changed(place, step.data)):
                raise self._damaged(step)

    def _damaged(self, step: Step) -> Exception:
        self._over = DeviceError(f"{self._reader.path} is damaged")
        return self._reader.damaged(step.offset, f"step {step.number}, {step.operation.name}, cannot stand there")


def _said(operation: Operation, given: tuple[Any, ...]) -> str:
    """A step in words."""
    if operation is Operation.READ:
        return f"a read of {_register(given[0])}"
    if operation is Operation.WRITE:
        return f"{given[1]:#x} written to {_register(given[0])}"
    if operation is Operation.ALLOCATE:
        return f"a buffer of {given[0]} bytes at a multiple of {given[1]}"
    if operation is Operation.WAIT:
        return f"a wait of {given[0]:g} s"
    if operation is Operation.INVALIDATE:
        return f"an invalidate of buffer {given[0]}, {given[2]} bytes from {given[1]} on"
    if operation is Operation.CLOSE:
        return "the end"
    return f"a {operation.name.lower()} of buffer {given[0]}"


def _register(offset: int) -> str:
    return f"{_REGISTERS[offset]} ({offset:#x})" if offset in _REGISTERS else f"{offset:#x}"


def _checked(offset: int) -> int:
    if offset < 0 or offset % 4 or offset >= 1 << 32:
        raise UsageError(f"a register's offset must be a multiple of 4, not {offset:#x}")
    return offset


def open_device(config: AcceleratorConfig, *, recording: Path) -> ReplayDevice:
    """The session of a device of ``config`` in a file that edgedec.runtime.driver.recording has written.

    Raises:
        UsageError: there is no such file.
        DeviceError: it is of another configuration.
        BundleError: it is no recording, or a damaged one.
        UnsupportedError: written by another version of the format.
    """
    reader = RecordingReader(Path(recording))
    if reader.header.configuration != config.hash:
        reader.close()
        raise DeviceError(
            f"{recording} is a session of an accelerator of configuration {reader.header.configuration:016x}, not "
            f"{config.hash:016x}; record one of this accelerator, or compile the model for that one"
        )
    return ReplayDevice(reader)
