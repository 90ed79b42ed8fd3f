"""A device whose session is written to a file, from which the device ``replay`` answers later, without hardware.

What the host writes is kept as hashes, so a recording holds no weights; what the device writes is kept as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Buffer, Device
from edgedec.errors import UsageError
from edgedec.runtime.driver.recording_file import CHUNK_BYTES, Failure, Header, Operation, RecordingWriter
from edgedec.runtime.driver.registers import Registers

__all__ = ["RecordedBuffer", "Recorder", "digests", "zero_digests"]

U8 = NDArray[np.uint8]
T = TypeVar("T")

_GAP_BYTES = 32  # equal ones between two that changed, which are rather kept than described


class Recorder:
    """A device of edgedec.device: ``device``, with all that is asked of it and answered kept in the file ``path``.

    A buffer is zeroed when it is allocated, or else the recording would depend on what was in that memory before. What the
    device has written to a buffer must be invalidated before the host flushes it: in memory that is coherent nothing else
    tells whose a byte is. What ends in a UsageError never reaches the device, and is not recorded.

    Members:
        device: what is recorded.

    Raises:
        UsageError: at ``path`` is something else than a recording.
        EdgedecError: of any method: the file cannot be written.
    """

    def __init__(self, device: Device, path: Path) -> None:
        self.device = device
        self.name, self.kind, self.clock_hz = device.name, device.kind, device.clock_hz
        configuration = Registers(device).read("configuration_hash")
        header = Header(
            device=device.name, kind=device.kind, clock_hz=float(device.clock_hz), configuration=configuration
        )
        self.writer = RecordingWriter(path, header)
        self._buffers = 0

    def read_register(self, offset: int) -> int:
        return self.did(Operation.READ, (offset,), lambda: self.device.read_register(offset))

    def write_register(self, offset: int, value: int) -> None:
        self.did(Operation.WRITE, (offset, value), lambda: self.device.write_register(offset, value))

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> RecordedBuffer:
        found: list[Buffer] = []

        def address() -> int:
            found.append(self.device.allocate(size_bytes, alignment_bytes=alignment_bytes))
            found[0].array[:] = 0
            found[0].flush()
            return found[0].address

        self.did(Operation.ALLOCATE, (size_bytes, alignment_bytes), address)
        self._buffers += 1
        return RecordedBuffer(self, found[0], self._buffers - 1)

    def wait(self, timeout_s: float) -> bool:
        """What came before is in the file by then: who never comes back from here has left it."""
        if not self.writer.closed:
            self.writer.write_out()
        return self.did(Operation.WAIT, (timeout_s,), lambda: self.device.wait(timeout_s))

    def close(self) -> None:
        if self.writer.closed:
            return
        try:
            self.did(Operation.CLOSE, (), self.device.close)
        finally:
            self.writer.close()

    def did(self, operation: Operation, given: tuple[Any, ...], act: Callable[[], T]) -> T:
        """Does it and adds how it ended to the recording, if that is still open."""
        try:
            answer = act()
        except UsageError:
            raise
        except BaseException as error:
            if not self.writer.closed:
                ended = Failure.DEVICE if isinstance(error, Exception) else Failure.INTERRUPTED
                self.writer.add(operation, given, failure=ended, text=str(error))
            raise
        if not self.writer.closed:
            self.writer.add(operation, given, answer)
        return answer


class RecordedBuffer:
    """A device's buffer; what either side has changed is added to the recording when it changes hands."""

    def __init__(self, recorder: Recorder, buffer: Buffer, number: int) -> None:
        self._recorder, self._buffer, self._number = recorder, buffer, number
        self._digests = zero_digests(buffer.array.size)
        # As the host saw or flushed it last. None until it looks for the first time: at the largest buffers it never does.
        self._seen: U8 | None = None
        self._released = False

    @property
    def array(self) -> U8:
        return self._buffer.array

    @property
    def address(self) -> int:
        return self._buffer.address

    def flush(self) -> None:
        writer = self._recorder.writer
        if not writer.closed:
            for chunk, digest in enumerate(digests(self.array)):
                if digest != self._digests[chunk]:
                    self._digests[chunk] = digest
                    writer.add(Operation.HELD, (self._number, chunk, digest))
        if self._seen is not None:
            self._seen[:] = self.array
        self._recorder.did(Operation.FLUSH, (self._number,), self._buffer.flush)

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        size = self.array.size - start if size_bytes is None else size_bytes

        def act() -> None:
            self._buffer.invalidate(start, size)
            self._keep(start, start + size)

        self._recorder.did(Operation.INVALIDATE, (self._number, start, size), act)

    def close(self) -> None:
        if not self._released:
            self._released = True
            self._recorder.did(Operation.RELEASE, (self._number,), self._buffer.close)

    def _keep(self, start: int, end: int) -> None:
        """What the device has changed in this range."""
        if self._seen is None:
            self._seen = np.zeros_like(self.array)
        writer = self._recorder.writer
        for at in range(start, end, CHUNK_BYTES):
            new, old = (array[at : min(at + CHUNK_BYTES, end)] for array in (self.array, self._seen))
            for begin, stop in _changes(old, new):
                if not writer.closed:
                    given = (self._number, at + begin, stop - begin)
                    writer.add(Operation.CHANGED, given, data=new[begin:stop].tobytes())
            old[:] = new


def digests(array: U8) -> Iterator[bytes]:
    """SHA-256 of every CHUNK_BYTES of a buffer."""
    for start in range(0, array.size, CHUNK_BYTES):
        yield hashlib.sha256(array[start : start + CHUNK_BYTES].data).digest()


def zero_digests(size_bytes: int) -> list[bytes]:
    """``digests`` of a buffer of zeros."""
    return [_of_zeros(min(CHUNK_BYTES, size_bytes - start)) for start in range(0, size_bytes, CHUNK_BYTES)]


@lru_cache(maxsize=16)
def _of_zeros(size: int) -> bytes:
    return hashlib.sha256(bytes(size)).digest()


def _changes(old: U8, new: U8) -> list[tuple[int, int]]:
    """Ranges outside of which both are the same."""
    changed = np.flatnonzero(old != new)
    if not changed.size:
        return []
    gaps = np.flatnonzero(np.diff(changed) > _GAP_BYTES)
    begins, ends = [changed[0], *changed[gaps + 1]], [*changed[gaps], changed[-1]]
    return [(int(begin), int(end) + 1) for begin, end in zip(begins, ends, strict=True)]
