"""The replay of a recorded session as a device. It returns the recorded answers and refuses calls that were not recorded.

Times and counters are those of the recording, so its ``kind`` is that of the recorded device; its name is ``replay``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Kind
from edgedec.device_steps import Step, one_by_one
from edgedec.errors import BundleError, DeviceError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.driver.recording import digests, zero_digests
from edgedec.runtime.driver.recording_file import CHUNK_BYTES, Failure, RecordedStep, RecordingReader, StepKind

__all__ = ["ARGUMENT", "TAPS", "ReplayBuffer", "ReplayDevice", "open_device"]

ARGUMENT = "recording"  # argument of ``open_device`` that follows the colon in "replay:FILE"
TAPS = True  # a recording of another configuration is refused by its hash

U8 = NDArray[np.uint8]

_REGISTERS = {
    register.offset + index * register.bytes + 4 * word: f"{register.name}{f'[{index}]' if register.count > 1 else ''}"
    for register in REGISTER_MAP.registers
    for index in range(register.count)
    for word in range(register.bytes // 4)
}


class ReplayBuffer:
    """A buffer of a replayed device.

    Members:
        address: the recorded address.
        array: uint8 [bytes], the contents.
    """

    def __init__(self, device: ReplayDevice, number: int, size_bytes: int, address: int) -> None:
        self._device, self._number, self.address = device, number, address
        self.array: U8 = np.zeros(size_bytes, np.uint8)
        self._digests = zero_digests(size_bytes)
        self._memory: U8 | None = None  # contents of the device's memory, without writes that the host has not flushed

    def flush(self) -> None:
        """Compare the contents with the recorded hashes."""
        self._device.expect(StepKind.FLUSH, (self._number,))
        for chunk, (actual, recorded) in enumerate(zip(digests(self.array), self._digests, strict=True)):
            if actual != recorded:
                start = chunk * CHUNK_BYTES
                end = min(start + CHUNK_BYTES, self.array.size)
                raise self._device.differs(f"bytes {start} to {end - 1} of it are different now")
        if self._memory is not None:
            self._memory[:] = self.array

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        """Read the recorded contents of a range."""
        size = self.array.size - start if size_bytes is None else size_bytes
        memory = self._device_memory()
        self._device.expect(StepKind.INVALIDATE, (self._number, start, size))
        self.array[start : start + size] = memory[start : start + size]

    def close(self) -> None:
        """Free the buffer."""
        self._device.release(self._number)

    def held(self, chunk: int, digest: bytes) -> bool:
        """Store the hash of a chunk that the host wrote; return False if there is no such chunk."""
        if chunk >= len(self._digests):
            return False
        self._digests[chunk] = digest
        return True

    def changed(self, start: int, data: bytes) -> bool:
        """Store bytes that the device wrote; return False if they are outside the buffer."""
        if start + len(data) > self.array.size:
            return False
        self._device_memory()[start : start + len(data)] = np.frombuffer(data, np.uint8)
        return True

    def _device_memory(self) -> U8:
        if self._memory is None:
            self._memory = np.zeros_like(self.array)
        return self._memory


class ReplayDevice:
    """A device of ``edgedec.device`` that replays a recording.

    Members:
        recorded_name: name of the recorded device.
        perform: carries out steps (edgedec.device_steps); only if the recorded device has it.

    Raises:
        DeviceError: (any method) the recording has another call at this place, or has ended.
        BundleError: (any method) the file is damaged.
    """

    name = "replay"

    def __init__(self, reader: RecordingReader) -> None:
        self._reader, header = reader, reader.header
        self.kind: Kind = header.kind
        self.clock_hz, self.recorded_name = header.clock_hz, header.device
        if header.performs:  # a member of the device, so that only such a replay is a Performer
            self.perform: Callable[[Sequence[Step]], list[int]] = lambda steps: one_by_one(self, steps)
        self._buffers: list[ReplayBuffer | None] = []
        self._step: RecordedStep | None = None  # last step that was read
        self._error: DeviceError | None = None  # error that every further call raises
        self._closed = False

    def read_register(self, offset: int) -> int:
        """Return the recorded value."""
        return int(self.expect(StepKind.READ, (_checked(offset),)))

    def write_register(self, offset: int, value: int) -> None:
        """Compare a write with the recorded one."""
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        self.expect(StepKind.WRITE, (_checked(offset), value))

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> ReplayBuffer:
        """Return a buffer of zeros at the recorded address."""
        if size_bytes < 1 or alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"no buffer to allocate: {size_bytes} bytes at a multiple of {alignment_bytes}")
        address = self.expect(StepKind.ALLOCATE, (size_bytes, alignment_bytes))
        buffer = ReplayBuffer(self, len(self._buffers), size_bytes, address)
        self._buffers.append(buffer)
        return buffer

    def wait(self, timeout_s: float) -> bool:
        """Return the recorded answer at once."""
        return bool(self.expect(StepKind.WAIT, (timeout_s,)))

    def close(self) -> None:
        """Close the device. A second call does nothing.

        Raises:
            DeviceError: the recording has further steps. This is not raised if the replay has failed before.
        """
        if self._closed:
            return
        try:
            if self._error is None:
                self._check_end()
        finally:
            self._closed = True
            self._error = DeviceError(f"device {self.name} is closed; open it again")
            self._buffers.clear()
            self._reader.close()

    def release(self, number: int) -> None:
        """Free a buffer. After a failure of the replay this does nothing, so that the host can clean up."""
        if self._error is None and self._buffers[number] is not None:
            self.expect(StepKind.RELEASE, (number,))
            self._buffers[number] = None

    def expect(self, kind: StepKind, arguments: tuple[Any, ...]) -> Any:
        """Return the recorded answer to a call of the host if the recording has this call at this place."""
        if self._error is not None:
            raise self._error
        step = self._next()
        call = _described(kind, arguments)
        if step is None:
            raise self._stopped(call)
        if (step.kind, step.arguments) != (kind, arguments):
            raise self.differs(f"the host made {call}")
        if step.failure is Failure.INTERRUPTED:
            raise KeyboardInterrupt
        if step.failure is not None:
            raise DeviceError("".join(letter if letter.isprintable() else "?" for letter in step.text))
        return step.answer

    def differs(self, difference: str) -> DeviceError:
        """Return the error for a difference from the last step, which ends the replay."""
        step = self._step
        assert step is not None
        self._error = DeviceError(
            f"{self._reader.path}, step {step.number} (byte {step.offset}): the recording has "
            f"{_described(step.kind, step.arguments)}, but {difference}; the driver or the model is not the recorded one"
        )
        return self._error

    def _stopped(self, call: str) -> DeviceError:
        reader = self._reader
        end = f"{reader.path} ends with step {reader.steps}"
        if not reader.complete:
            end = (
                f"{reader.path} breaks off at byte {reader.offset} after step {reader.steps} (the recording process was "
                "killed, or the file was truncated)"
            )
        self._error = DeviceError(f"{end}, but the host made {call}, which was not recorded")
        return self._error

    def _check_end(self) -> None:
        step = self._next()
        if step is None and self._reader.complete:
            raise self._stopped("a close")
        if step is not None and step.kind is not StepKind.CLOSE:
            raise self.differs("the host made a close")
        if step is not None and self._reader.step() is not None:
            raise self._damaged(step)

    def _next(self) -> RecordedStep | None:
        """Return the next call of the host, after storing the contents of buffers that are recorded before it."""
        while True:
            try:
                self._step = step = self._reader.step()
            except BundleError as error:
                self._error = DeviceError(str(error))
                raise
            if step is None or step.kind not in (StepKind.HELD, StepKind.CHANGED):
                return step
            number, place, _ = step.arguments
            buffer = self._buffers[number] if number < len(self._buffers) else None
            held = step.kind is StepKind.HELD
            if buffer is None or not (
                buffer.held(place, step.arguments[2]) if held else buffer.changed(place, step.data)
            ):
                raise self._damaged(step)

    def _damaged(self, step: RecordedStep) -> Exception:
        self._error = DeviceError(f"{self._reader.path} is damaged")
        return self._reader.damaged(step.offset, f"step {step.number}, {step.kind.name}, cannot be at this place")


def _described(kind: StepKind, arguments: tuple[Any, ...]) -> str:
    """Return a description of a call."""
    if kind is StepKind.READ:
        return f"a read of {_register(arguments[0])}"
    if kind is StepKind.WRITE:
        return f"a write of {arguments[1]:#x} to {_register(arguments[0])}"
    if kind is StepKind.ALLOCATE:
        return f"an allocation of {arguments[0]} bytes at a multiple of {arguments[1]}"
    if kind is StepKind.WAIT:
        return f"a wait of {arguments[0]:g} s"
    if kind is StepKind.INVALIDATE:
        return f"an invalidate of buffer {arguments[0]}, {arguments[2]} bytes from {arguments[1]} on"
    if kind is StepKind.CLOSE:
        return "a close"
    return f"a {kind.name.lower()} of buffer {arguments[0]}"


def _register(offset: int) -> str:
    return f"{_REGISTERS[offset]} ({offset:#x})" if offset in _REGISTERS else f"{offset:#x}"


def _checked(offset: int) -> int:
    if offset < 0 or offset % 4 or offset >= 1 << 32:
        raise UsageError(f"a register's offset must be a multiple of 4, not {offset:#x}")
    return offset


def open_device(config: AcceleratorConfig, *, recording: Path) -> ReplayDevice:
    """Open a recording that ``edgedec.runtime.driver.recording`` wrote.

    Args:
        config: configuration that the recorded accelerator must have.
        recording: the file.

    Raises:
        UsageError: the file does not exist.
        DeviceError: the recorded accelerator has another configuration.
        BundleError: the file is not a recording, or is damaged.
        UnsupportedError: the file has another version of the format.
    """
    reader = RecordingReader(Path(recording))
    if reader.header.configuration != config.hash:
        reader.close()
        raise DeviceError(
            f"{recording} is a session of an accelerator of configuration {reader.header.configuration:016x}, not "
            f"{config.hash:016x}; record one of this accelerator, or compile the model for that one"
        )
    return ReplayDevice(reader)
