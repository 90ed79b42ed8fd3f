"""A device that records a session of another device to a file. The device ``replay`` later answers from this file.

Data that the host writes is stored as hashes, so a recording contains no weights; data that the device writes is stored
itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgedec.device import OPTIONAL, Buffer, Device
from edgedec.device_steps import (
    ExpectRegister,
    Fetch,
    Flush,
    Performer,
    ReadRegister,
    Step,
    UnexpectedRegisterError,
    Wait,
    WriteRegister,
)
from edgedec.errors import UsageError
from edgedec.runtime.driver.recording_file import CHUNK_BYTES, Failure, Header, RecordingWriter, StepKind
from edgedec.runtime.driver.registers import Registers

__all__ = ["RecordedBuffer", "RecordingDevice", "digests", "zero_digests"]

U8 = NDArray[np.uint8]
T = TypeVar("T")

_GAP_BYTES = 32  # maximum length of unchanged bytes that are stored with their neighbours instead of separating them


class RecordingDevice:
    """A device of ``edgedec.device`` that passes calls on to ``device`` and records them in the file ``path``.

    A buffer is zeroed when it is allocated, because the recording would otherwise depend on the earlier contents of that
    memory. Data that the device wrote to a buffer must be invalidated before the host flushes the buffer: in coherent memory
    nothing else tells which side wrote a byte. A call that raises UsageError never reaches the device and is not recorded.
    Steps that the device performs in one request are recorded as the calls that they stand for.

    Members:
        device: the recorded device, whose members of ``edgedec.device.OPTIONAL`` it has, too.

    Raises:
        UsageError: ``path`` exists and is not a recording.
        EdgedecError: (any method) the file cannot be written.
    """

    def __init__(self, device: Device, path: Path) -> None:
        self.device = device
        self.name, self.kind, self.clock_hz = device.name, device.kind, device.clock_hz
        configuration = Registers(device).read("configuration_hash")
        header = Header(
            device=device.name,
            kind=device.kind,
            clock_hz=float(device.clock_hz),
            configuration=configuration,
            performs=isinstance(device, Performer),
        )
        self.writer = RecordingWriter(path, header)
        self._buffers = 0
        for name in OPTIONAL:
            if hasattr(device, name):
                setattr(self, name, self._perform if name == "perform" else getattr(device, name))

    def read_register(self, offset: int) -> int:
        """Read a register and record the value."""
        return self.record(StepKind.READ, (offset,), lambda: self.device.read_register(offset))

    def write_register(self, offset: int, value: int) -> None:
        """Write a register and record it."""
        self.record(StepKind.WRITE, (offset, value), lambda: self.device.write_register(offset, value))

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> RecordedBuffer:
        """Allocate a buffer of zeros and record its address."""
        buffers: list[Buffer] = []

        def address() -> int:
            buffers.append(self.device.allocate(size_bytes, alignment_bytes=alignment_bytes))
            buffers[0].array[:] = 0
            buffers[0].flush()
            return buffers[0].address

        self.record(StepKind.ALLOCATE, (size_bytes, alignment_bytes), address)
        self._buffers += 1
        return RecordedBuffer(self, buffers[0], self._buffers - 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the interrupt. All earlier steps are written to the file first, in case the process is killed."""
        if not self.writer.closed:
            self.writer.write_out()
        return self.record(StepKind.WAIT, (timeout_s,), lambda: self.device.wait(timeout_s))

    def close(self) -> None:
        """Close the device and the file. A second call does nothing."""
        if self.writer.closed:
            return
        try:
            self.record(StepKind.CLOSE, (), self.device.close)
        finally:
            self.writer.close()

    def _perform(self, steps: Sequence[Step]) -> list[int]:
        """Let the device perform steps in one request, and record a call for each of them."""
        device, calls = self.device, [_call(step) for step in steps]
        assert isinstance(device, Performer)
        for step in steps:
            if isinstance(step, Flush):
                _recorded(step.buffer).note_held()
        if not self.writer.closed:
            self.writer.write_out()
        try:
            found = device.perform([_inner(step) for step in steps])
        except UsageError:
            raise
        except UnexpectedRegisterError as error:
            # The steps before it were carried out. Of equal ones it is the first, because the same register is read twice.
            last = steps.index(error.expect)
            self._record_calls(steps[: last + 1], calls, [], {last: error.value})
            raise
        except BaseException as error:
            if calls:  # nothing tells which step it was
                self._record_failure(*calls[0], error)
            raise
        self._record_calls(steps, calls, found, {})
        return found

    def _record_calls(
        self,
        steps: Sequence[Step],
        calls: Sequence[tuple[StepKind, tuple[Any, ...]]],
        found: Sequence[int],
        others: Mapping[int, int],
    ) -> None:
        """Record steps that were carried out.

        Args:
            found: values that the device gave for them.
            others: values of registers that were expected to have others, by the number of the step.
        """
        answers = iter(found)
        for number, (step, (kind, arguments)) in enumerate(zip(steps, calls, strict=False)):
            answer = None
            if isinstance(step, ExpectRegister):
                answer = others.get(number, step.value)
            elif isinstance(step, ReadRegister):
                answer = next(answers)
            elif isinstance(step, Wait):
                answer = bool(next(answers))
            elif isinstance(step, Fetch):
                _recorded(step.buffer).note_changes(0, step.size_bytes)
            if not self.writer.closed:
                self.writer.add(kind, arguments, answer)

    def record(self, kind: StepKind, arguments: tuple[Any, ...], action: Callable[[], T]) -> T:
        """Perform an action and add its result or failure to the recording, unless the recording is closed."""
        try:
            answer = action()
        except UsageError:
            raise
        except BaseException as error:
            self._record_failure(kind, arguments, error)
            raise
        if not self.writer.closed:
            self.writer.add(kind, arguments, answer)
        return answer

    def _record_failure(self, kind: StepKind, arguments: tuple[Any, ...], error: BaseException) -> None:
        if not self.writer.closed:
            failure = Failure.DEVICE if isinstance(error, Exception) else Failure.INTERRUPTED
            self.writer.add(kind, arguments, failure=failure, text=str(error))


class RecordedBuffer:
    """A buffer of a recorded device. Changes by either side are recorded when the buffer is flushed or invalidated.

    Members:
        buffer: the buffer of the recorded device.
        number: its number in the recording.
    """

    def __init__(self, recorder: RecordingDevice, buffer: Buffer, number: int) -> None:
        self._recorder, self.buffer, self.number = recorder, buffer, number
        self._digests = zero_digests(buffer.array.size)
        # Contents at the last flush or invalidate. None before the first invalidate, which the largest buffers never have.
        self._seen: U8 | None = None
        self._released = False

    @property
    def array(self) -> U8:
        """The contents of the buffer, uint8 [bytes]."""
        return self.buffer.array

    @property
    def address(self) -> int:
        """The address on the device's bus."""
        return self.buffer.address

    def flush(self) -> None:
        """Flush the buffer, and record the hashes of chunks that the host has changed."""
        self.note_held()
        self._recorder.record(StepKind.FLUSH, (self.number,), self.buffer.flush)

    def note_held(self) -> None:
        """Record the hashes of chunks that the host has changed, before the buffer is flushed."""
        writer = self._recorder.writer
        if not writer.closed:
            for chunk, digest in enumerate(digests(self.array)):
                if digest != self._digests[chunk]:
                    self._digests[chunk] = digest
                    writer.add(StepKind.HELD, (self.number, chunk, digest))
        if self._seen is not None:
            self._seen[:] = self.array

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        """Invalidate a range of the buffer, and record the bytes that the device has changed in it."""
        size = self.array.size - start if size_bytes is None else size_bytes

        def action() -> None:
            self.buffer.invalidate(start, size)
            self.note_changes(start, start + size)

        self._recorder.record(StepKind.INVALIDATE, (self.number, start, size), action)

    def close(self) -> None:
        """Free the buffer. A second call does nothing."""
        if not self._released:
            self._released = True
            self._recorder.record(StepKind.RELEASE, (self.number,), self.buffer.close)

    def note_changes(self, start: int, end: int) -> None:
        """Record the bytes that the device has changed from ``start`` to ``end``, after the buffer was invalidated."""
        if self._seen is None:
            self._seen = np.zeros_like(self.array)
        writer = self._recorder.writer
        for at in range(start, end, CHUNK_BYTES):
            new, old = (array[at : min(at + CHUNK_BYTES, end)] for array in (self.array, self._seen))
            for begin, stop in _changes(old, new):
                if not writer.closed:
                    arguments = (self.number, at + begin, stop - begin)
                    writer.add(StepKind.CHANGED, arguments, data=new[begin:stop].tobytes())
            old[:] = new


def _recorded(buffer: Buffer) -> RecordedBuffer:
    if not isinstance(buffer, RecordedBuffer):
        raise UsageError("a step of a recorded device has a buffer of another device")
    return buffer


def _inner(step: Step) -> Step:
    """Return a step for the recorded device."""
    return replace(step, buffer=_recorded(step.buffer).buffer) if isinstance(step, Flush | Fetch) else step


def _call(step: Step) -> tuple[StepKind, tuple[Any, ...]]:
    """Return the kind and the arguments of the call that a step stands for."""
    if isinstance(step, Flush):
        return StepKind.FLUSH, (_recorded(step.buffer).number,)
    if isinstance(step, Fetch):
        return StepKind.INVALIDATE, (_recorded(step.buffer).number, 0, step.size_bytes)
    if isinstance(step, WriteRegister):
        return StepKind.WRITE, (step.offset, step.value)
    if isinstance(step, Wait):
        return StepKind.WAIT, (step.timeout_s,)
    return StepKind.READ, (step.offset,)


def digests(array: U8) -> Iterator[bytes]:
    """Yield the SHA-256 of every ``CHUNK_BYTES`` of a buffer."""
    for start in range(0, array.size, CHUNK_BYTES):
        yield hashlib.sha256(array[start : start + CHUNK_BYTES].data).digest()


def zero_digests(size_bytes: int) -> list[bytes]:
    """Return the ``digests`` of a buffer of zeros."""
    return [_zero_digest(min(CHUNK_BYTES, size_bytes - start)) for start in range(0, size_bytes, CHUNK_BYTES)]


@lru_cache(maxsize=16)
def _zero_digest(size: int) -> bytes:
    return hashlib.sha256(bytes(size)).digest()


def _changes(old: U8, new: U8) -> list[tuple[int, int]]:
    """Return ranges that contain all differences between two arrays of equal size."""
    changed = np.flatnonzero(old != new)
    if not changed.size:
        return []
    gaps = np.flatnonzero(np.diff(changed) > _GAP_BYTES)
    begins, ends = [changed[0], *changed[gaps + 1]], [*changed[gaps], changed[-1]]
    return [(int(begin), int(end) + 1) for begin, end in zip(begins, ends, strict=True)]
