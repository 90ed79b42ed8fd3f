"""The file of a recorded session: docs/accelerator-devices.md, "Recording and replay", is its definition.

A file may come from strangers: every complaint names it and the byte, and what is allocated has a limit that no file moves.
"""

from __future__ import annotations

import json
import re
import reprlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO, Any

from edgedec import __version__
from edgedec.device import Kind
from edgedec.errors import BundleError, EdgedecError, UnsupportedError, UsageError

__all__ = [
    "CHUNK_BYTES",
    "MAGIC",
    "VERSION",
    "Failure",
    "Header",
    "Operation",
    "RecordingReader",
    "RecordingWriter",
    "Step",
    "check_recording",
]

MAGIC, VERSION = b"edgedec session\n", 1
CHUNK_BYTES = 1 << 20  # of a buffer: what one hash is of, and what one step holds at most

_START = struct.Struct("<16sI")
_FRAME = struct.Struct("<III")  # bytes that follow, bytes that they become, CRC-32 of both numbers and the bytes
_FAILURE = struct.Struct("<BH")
_FULL_BYTES = 1 << 18  # of steps: then they are written
_MOST_BYTES = 2 * CHUNK_BYTES  # of a frame's content
_MOST_HEADER_BYTES = 1 << 14
_MOST_TEXT_BYTES = 4096
_RAISED = 0x80
_HEADER_KEYS = ("created_by", "device", "kind", "clock_hz", "configuration")


class Operation(IntEnum):
    """What a step is."""

    END = 0  # of the whole recording
    READ = 1
    WRITE = 2
    ALLOCATE = 3
    HELD = 4  # a chunk that the host has changed since it was flushed last, before its FLUSH
    FLUSH = 5
    CHANGED = 6  # bytes that the device has changed since they were looked at last, before their INVALIDATE
    INVALIDATE = 7
    RELEASE = 8
    WAIT = 9
    CLOSE = 10


class Failure(IntEnum):
    """How a step ended that raised."""

    DEVICE = 1
    INTERRUPTED = 2


# What goes in, what comes out. Buffers are numbered as they were allocated.
_GIVEN: Mapping[Operation, struct.Struct] = {
    operation: struct.Struct("<" + form)
    for operation, form in {
        Operation.END: "Q",  # steps before it
        Operation.READ: "I",  # offset
        Operation.WRITE: "II",  # offset, value
        Operation.ALLOCATE: "QQ",  # size, alignment
        Operation.HELD: "II32s",  # buffer, chunk, SHA-256
        Operation.FLUSH: "I",  # buffer
        Operation.CHANGED: "IQI",  # buffer, first byte, bytes; they follow
        Operation.INVALIDATE: "IQQ",  # buffer, first byte, bytes
        Operation.RELEASE: "I",  # buffer
        Operation.WAIT: "d",  # seconds
        Operation.CLOSE: "",
    }.items()
}
_ANSWER = {
    Operation.READ: struct.Struct("<I"),
    Operation.ALLOCATE: struct.Struct("<Q"),  # address
    Operation.WAIT: struct.Struct("<?"),
}


_NEVER_RAISE = (Operation.END, Operation.HELD, Operation.CHANGED)


@dataclass(frozen=True, kw_only=True)
class Header:
    """Members:
    device: its name. kind, clock_hz: as it says. configuration: hash of its AcceleratorConfig.
    """

    device: str
    kind: Kind
    clock_hz: float
    configuration: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """Members:
    given, answer: in the order of docs/accelerator-devices.md. data: of CHANGED.
    failure, text: of one that raised.
    number, offset: from 1; the byte of the file at which the step's frame begins.
    """

    operation: Operation
    given: tuple[Any, ...]
    answer: Any = None
    data: bytes = b""
    failure: Failure | None = None
    text: str = ""
    number: int = 0
    offset: int = 0


class RecordingWriter:
    """Writes a file step by step; what ``write_out`` has written is there even if the process is killed.

    Raises:
        UsageError: at ``path`` is something else than a recording.
        EdgedecError: of any method: it cannot be written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._path, self._steps, self._held = path, 0, bytearray()
        self._file: IO[bytes] | None = _created(path)
        content = {
            "created_by": f"edgedec {__version__}",
            "device": header.device,
            "kind": header.kind,
            "clock_hz": header.clock_hz,
            "configuration": f"{header.configuration:016x}",
        }
        self._write(_START.pack(MAGIC, VERSION) + _framed(json.dumps(content).encode()))

    @property
    def closed(self) -> bool:
        return self._file is None

    def add(
        self,
        operation: Operation,
        given: tuple[Any, ...],
        answer: Any = None,
        *,
        data: bytes = b"",
        failure: Failure | None = None,
        text: str = "",
    ) -> None:
        """One step; ``failure`` takes the place of the answer."""
        code = bytes([operation | (0 if failure is None else _RAISED)]) + _GIVEN[operation].pack(*given) + data
        if failure is not None:
            said = text.encode(errors="replace")[:_MOST_TEXT_BYTES].decode(errors="ignore").encode()
            code += _FAILURE.pack(failure, len(said)) + said
        elif operation in _ANSWER:
            code += _ANSWER[operation].pack(answer)
        self._held += code
        self._steps += 1
        if len(self._held) >= _FULL_BYTES:
            self.write_out()

    def write_out(self) -> None:
        """Hands over to the system what was added."""
        if self._held:
            held, self._held = bytes(self._held), bytearray()
            self._write(_framed(held))

    def close(self) -> None:
        """With the mark that says that nothing is missing."""
        if self._file is not None:
            self.add(Operation.END, (self._steps,))
            self.write_out()
            self._file.close()
            self._file = None

    def _write(self, data: bytes) -> None:
        if self._file is None:
            raise EdgedecError(f"{self._path}: the recording is closed")
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise EdgedecError(
                f"cannot write {self._path}: {error.strerror or error}; the recording ends here"
            ) from error


def check_recording(path: Path) -> None:
    """Raises:
    UsageError: at ``path`` is something else, which recording would replace.
    """
    if path.exists() and not _is_recording(path):
        raise UsageError(f"cannot write {path}: it exists and is no recording; choose another name or remove it")


def _created(path: Path) -> IO[bytes]:
    try:
        check_recording(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")
    except OSError as error:
        raise EdgedecError(f"cannot write {path}: {error.strerror or error}") from error


def _is_recording(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _framed(content: bytes) -> bytes:
    stored = zlib.compress(content)
    lengths = struct.pack("<II", len(stored), len(content))
    return lengths + struct.pack("<I", zlib.crc32(lengths + stored)) + stored


class RecordingReader:
    """Reads a file step by step, one frame of it at a time.

    Members:
        header: checked.
        complete: the last step was read, and nothing is missing.
        steps, offset: how many were read; where the file ends as far as it is whole.

    Raises:
        UsageError: there is no such file.
        BundleError: it is no recording, or a damaged one; names the file and the byte.
        UnsupportedError: written by another version of the format.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UsageError(f"{path}: no such recording; make one by recording a session of a device")
        self.path, self.complete, self.steps, self.offset = path, False, 0, 0
        self._damage: BundleError | None = None
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror or error}") from error
        try:
            self.header = self._header()
        except BaseException:
            self.close()
            raise
        self._waiting: Iterator[Step] = iter(())

    def close(self) -> None:
        self._file.close()

    def step(self) -> Step | None:
        """The next one; None at the end, of which ``complete`` says whether it is the right one.

        Raises:
            BundleError: damaged here; names the file and the byte.
        """
        if self._damage is not None:
            raise self._damage
        while not self.complete:
            step = next(self._waiting, None)
            if step is not None:
                if step.operation is not Operation.END:
                    self.steps += 1
                    return step
                self._end(step)
            else:
                content = self._frame(_MOST_BYTES)
                if content is None:
                    return None
                self._waiting = self._parsed(content, self.offset)
        return None

    def damaged(self, offset: int, why: str) -> BundleError:
        """An error to raise; there is nothing to read any more."""
        self._damage = BundleError(f"{self.path}, byte {offset}: {why}; record the session again")
        return self._damage

    def _end(self, step: Step) -> None:
        if step.given != (self.steps,):
            raise self.damaged(step.offset, f"it ends with {self.steps} steps and says {step.given[0]}")
        if next(self._waiting, None) is not None or self._file.read(1):
            raise self.damaged(step.offset, "something stands behind the recording's end")
        self.complete = True

    def _header(self) -> Header:
        start = self._file.read(_START.size)
        if len(start) < _START.size or not start.startswith(MAGIC):
            raise BundleError(f"{self.path}: no recording of edgedec")
        version = _START.unpack(start)[1]
        if version != VERSION:
            raise UnsupportedError(f"{self.path}: version {version}, this edgedec reads {VERSION}; record it again")
        self.offset = self._next = _START.size
        content = self._frame(_MOST_HEADER_BYTES)
        if content is None:
            raise self.damaged(self.offset, "it ends before its header")
        try:
            return _checked_header(json.loads(content))
        except (ValueError, RecursionError) as error:
            raise self.damaged(self.offset, f"its header is none ({error})") from None

    def _frame(self, most: int) -> bytes | None:
        """What the next frame holds; None if it is not all there."""
        self.offset = self._next
        lengths = self._file.read(_FRAME.size)
        if len(lengths) < _FRAME.size:
            return None
        stored, size, crc = _FRAME.unpack(lengths)
        if not 0 < size <= most or not 0 < stored <= most + (most >> 4) + 64:
            raise self.damaged(self.offset, f"a frame of {stored} bytes cannot become {size}")
        raw = self._file.read(stored)
        if len(raw) < stored:
            return None
        if zlib.crc32(lengths[:8] + raw) != crc:
            raise self.damaged(self.offset, "its bytes do not match their check sum")
        unpacker = zlib.decompressobj()
        try:
            content = unpacker.decompress(raw, size + 1)
        except zlib.error as error:
            raise self.damaged(self.offset, f"it cannot be unpacked ({error})") from None
        if len(content) != size or not unpacker.eof or unpacker.unused_data:
            raise self.damaged(self.offset, f"it does not become {size} bytes")
        self._next = self._file.tell()
        return content

    def _parsed(self, content: bytes, offset: int) -> Iterator[Step]:
        """The steps of a frame."""
        at, number = 0, self.steps
        while at < len(content):
            number += 1
            try:
                step, at = _unpacked(content, at, number, offset)
            except (struct.error, ValueError) as error:
                raise self.damaged(offset, f"step {number} is none ({error})") from None
            yield step


def _unpacked(content: bytes, at: int, number: int, offset: int) -> tuple[Step, int]:
    """The step at a byte, and where the next one begins."""
    code = content[at]
    operation, answer, data, failure, text = Operation(code & ~_RAISED), None, b"", None, ""
    form = _GIVEN[operation]
    given = form.unpack_from(content, at + 1)
    at += 1 + form.size
    if operation is Operation.CHANGED:
        data = content[at : at + given[2]]
        at += given[2]
    if code & _RAISED:
        if operation in _NEVER_RAISE:
            raise ValueError(f"{operation.name} cannot fail")
        kind, size = _FAILURE.unpack_from(content, at)
        at += _FAILURE.size + size
        failure, text = Failure(kind), content[at - size : at].decode()
    elif operation in _ANSWER:
        (answer,) = _ANSWER[operation].unpack_from(content, at)
        at += _ANSWER[operation].size
    if at > len(content):
        raise ValueError(f"it ends {at - len(content)} bytes behind its frame")
    step = Step(
        operation=operation,
        given=given,
        answer=answer,
        data=data,
        failure=failure,
        text=text,
        number=number,
        offset=offset,
    )
    return step, at


def _checked_header(content: Any) -> Header:
    """Raises:
    ValueError: says what is wrong.
    """
    if not isinstance(content, dict) or sorted(content) != sorted(_HEADER_KEYS):
        raise ValueError(f"it must have {', '.join(_HEADER_KEYS)}")
    device, kind, clock_hz, configuration = (content[key] for key in _HEADER_KEYS[1:])
    if not isinstance(device, str) or not device.isprintable() or not 0 < len(device) <= 64:
        raise ValueError(f"device is {reprlib.repr(device)}")
    if kind not in ("simulated", "measured"):
        raise ValueError(f"kind is {reprlib.repr(kind)}")
    if type(clock_hz) not in (int, float) or not 0 < clock_hz < 1e12:
        raise ValueError(f"clock_hz is {reprlib.repr(clock_hz)}")
    if not isinstance(configuration, str) or not re.fullmatch("[0-9a-f]{16}", configuration):
        raise ValueError(f"configuration is {reprlib.repr(configuration)}")
    return Header(device=device, kind=kind, clock_hz=float(clock_hz), configuration=int(configuration, 16))
