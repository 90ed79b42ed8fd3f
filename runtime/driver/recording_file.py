"""The file of a recorded session. docs/devices.md, "Recording and replay", defines the format.

A file may be malicious: every error names the file and the byte, and no file can make a reader exceed a fixed limit of
memory.
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
    "RecordedStep",
    "RecordingReader",
    "RecordingWriter",
    "StepKind",
    "check_recording",
]

MAGIC, VERSION = b"edgedec session\n", 1
CHUNK_BYTES = 1 << 20  # size of the parts of a buffer that have a hash, and maximum size of a step's data

_START = struct.Struct("<16sI")
_FRAME = struct.Struct("<III")  # bytes that follow, bytes that they become, CRC-32 of both numbers and the bytes
_FAILURE = struct.Struct("<BH")
_FULL_BYTES = 1 << 18  # size of collected steps from which on they are written
_MOST_BYTES = 2 * CHUNK_BYTES  # maximum size of a frame's content
_MOST_HEADER_BYTES = 1 << 14  # maximum size of the header
_MOST_TEXT_BYTES = 4096  # maximum size of an error message
_RAISED = 0x80  # bit of a step's code if the call raised an exception
_HEADER_KEYS = ("created_by", "device", "kind", "clock_hz", "configuration")
_PERFORMS = "performs"  # key of the header of a device that carries out several steps in one request, and of no other


class StepKind(IntEnum):
    """The kinds of steps, by their code in the file."""

    END = 0  # end of the recording
    READ = 1
    WRITE = 2
    ALLOCATE = 3
    HELD = 4  # hash of a chunk that the host changed since the last flush; it precedes the FLUSH
    FLUSH = 5
    CHANGED = 6  # bytes that the device changed since the last flush or invalidate; they precede the INVALIDATE
    INVALIDATE = 7
    RELEASE = 8
    WAIT = 9
    CLOSE = 10


class Failure(IntEnum):
    """The exceptions with which a recorded call may end: DeviceError or KeyboardInterrupt."""

    DEVICE = 1
    INTERRUPTED = 2


# Encodings of arguments and answers. Buffers are numbered in the order of allocation.
_ARGUMENTS: Mapping[StepKind, struct.Struct] = {
    kind: struct.Struct("<" + form)
    for kind, form in {
        StepKind.END: "Q",  # number of steps before it
        StepKind.READ: "I",  # offset
        StepKind.WRITE: "II",  # offset, value
        StepKind.ALLOCATE: "QQ",  # size, alignment
        StepKind.HELD: "II32s",  # buffer, chunk, SHA-256
        StepKind.FLUSH: "I",  # buffer
        StepKind.CHANGED: "IQI",  # buffer, first byte, number of bytes; the bytes follow
        StepKind.INVALIDATE: "IQQ",  # buffer, first byte, number of bytes
        StepKind.RELEASE: "I",  # buffer
        StepKind.WAIT: "d",  # seconds
        StepKind.CLOSE: "",
    }.items()
}
_ANSWER = {
    StepKind.READ: struct.Struct("<I"),  # value
    StepKind.ALLOCATE: struct.Struct("<Q"),  # address
    StepKind.WAIT: struct.Struct("<?"),  # True: the interrupt is high
}


_NEVER_RAISE = (StepKind.END, StepKind.HELD, StepKind.CHANGED)


@dataclass(frozen=True, kw_only=True)
class Header:
    """The properties of the recorded device.

    Members:
        device: its name.
        kind: "simulated" or "measured".
        clock_hz: its clock frequency.
        configuration: hash of its ``AcceleratorConfig``.
        performs: it carries out several steps in one request, which changes what its driver asks for.
    """

    device: str
    kind: Kind
    clock_hz: float
    configuration: int
    performs: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """One step of a session.

    Members:
        kind: the kind of the step.
        arguments, answer: values in the order of docs/devices.md.
        data: the bytes of a CHANGED step.
        failure, text: the exception with which the call ended and its message; None and empty if it returned.
        number: number of the step, from 1.
        offset: byte of the file at which the step's frame begins.
    """

    kind: StepKind
    arguments: tuple[Any, ...]
    answer: Any = None
    data: bytes = b""
    failure: Failure | None = None
    text: str = ""
    number: int = 0
    offset: int = 0


class RecordingWriter:
    """A writer of recordings. Steps up to the last ``write_out`` are in the file even if the process is killed.

    Raises:
        UsageError: ``path`` exists and is not a recording.
        EdgedecError: (any method) the file cannot be written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._path, self._steps, self._pending = path, 0, bytearray()
        self._file: IO[bytes] | None = _created(path)
        content = {
            "created_by": f"edgedec {__version__}",
            "device": header.device,
            "kind": header.kind,
            "clock_hz": header.clock_hz,
            "configuration": f"{header.configuration:016x}",
            **({_PERFORMS: True} if header.performs else {}),
        }
        self._write(_START.pack(MAGIC, VERSION) + _framed(json.dumps(content).encode()))

    @property
    def closed(self) -> bool:
        """True once ``close`` was called."""
        return self._file is None

    def add(
        self,
        kind: StepKind,
        arguments: tuple[Any, ...],
        answer: Any = None,
        *,
        data: bytes = b"",
        failure: Failure | None = None,
        text: str = "",
    ) -> None:
        """Add a step. With ``failure`` it has no answer. See ``RecordedStep`` for the arguments."""
        code = bytes([kind | (0 if failure is None else _RAISED)]) + _ARGUMENTS[kind].pack(*arguments) + data
        if failure is not None:
            message = text.encode(errors="replace")[:_MOST_TEXT_BYTES].decode(errors="ignore").encode()
            code += _FAILURE.pack(failure, len(message)) + message
        elif kind in _ANSWER:
            code += _ANSWER[kind].pack(answer)
        self._pending += code
        self._steps += 1
        if len(self._pending) >= _FULL_BYTES:
            self.write_out()

    def write_out(self) -> None:
        """Write the added steps to the file."""
        if self._pending:
            content, self._pending = bytes(self._pending), bytearray()
            self._write(_framed(content))

    def close(self) -> None:
        """Write the end step, which marks the recording as complete, and close the file."""
        if self._file is not None:
            self.add(StepKind.END, (self._steps,))
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
    """Check that a recording may be written to ``path``.

    Raises:
        UsageError: ``path`` exists and is not a recording, which would be overwritten.
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
    """A reader of recordings, which reads one frame of the file at a time.

    Members:
        header: the checked header.
        complete: True once the end step was read, which shows that nothing is missing.
        steps: number of steps read so far.
        offset: byte at which the last frame begins; in an incomplete file, the end of its last complete frame.

    Raises:
        UsageError: the file does not exist.
        BundleError: the file is not a recording, or is damaged; the message names the file and the byte.
        UnsupportedError: the file has another version of the format.
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
        self._parsed_steps: Iterator[RecordedStep] = iter(())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def step(self) -> RecordedStep | None:
        """Return the next step; None at the end of the file, where ``complete`` tells whether the recording is complete.

        Raises:
            BundleError: the file is damaged here; the message names the file and the byte.
        """
        if self._damage is not None:
            raise self._damage
        while not self.complete:
            step = next(self._parsed_steps, None)
            if step is not None:
                if step.kind is not StepKind.END:
                    self.steps += 1
                    return step
                self._end(step)
            else:
                content = self._frame(_MOST_BYTES)
                if content is None:
                    return None
                self._parsed_steps = self._parse(content, self.offset)
        return None

    def damaged(self, offset: int, reason: str) -> BundleError:
        """Return the error for a damaged file, which ``step`` raises from now on."""
        self._damage = BundleError(f"{self.path}, byte {offset}: {reason}; record the session again")
        return self._damage

    def _end(self, step: RecordedStep) -> None:
        if step.arguments != (self.steps,):
            raise self.damaged(step.offset, f"it ends with {self.steps} steps and says {step.arguments[0]}")
        if next(self._parsed_steps, None) is not None or self._file.read(1):
            raise self.damaged(step.offset, "there is data after the recording's end")
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
            raise self.damaged(self.offset, f"its header is invalid ({error})") from None

    def _frame(self, most: int) -> bytes | None:
        """Return the content of the next frame; None if the file ends before the end of the frame."""
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

    def _parse(self, content: bytes, offset: int) -> Iterator[RecordedStep]:
        """Yield the steps of a frame, which begins at byte ``offset`` of the file."""
        at, number = 0, self.steps
        while at < len(content):
            number += 1
            try:
                step, at = _unpack_step(content, at, number, offset)
            except (struct.error, ValueError) as error:
                raise self.damaged(offset, f"step {number} is invalid ({error})") from None
            yield step


def _unpack_step(content: bytes, at: int, number: int, offset: int) -> tuple[RecordedStep, int]:
    """Return the step at byte ``at`` of a frame's content, and the byte at which the next one begins."""
    code = content[at]
    kind, answer, data, failure, text = StepKind(code & ~_RAISED), None, b"", None, ""
    form = _ARGUMENTS[kind]
    arguments = form.unpack_from(content, at + 1)
    at += 1 + form.size
    if kind is StepKind.CHANGED:
        data = content[at : at + arguments[2]]
        at += arguments[2]
    if code & _RAISED:
        if kind in _NEVER_RAISE:
            raise ValueError(f"{kind.name} cannot fail")
        failure_code, size = _FAILURE.unpack_from(content, at)
        at += _FAILURE.size + size
        failure, text = Failure(failure_code), content[at - size : at].decode()
    elif kind in _ANSWER:
        (answer,) = _ANSWER[kind].unpack_from(content, at)
        at += _ANSWER[kind].size
    if at > len(content):
        raise ValueError(f"it ends {at - len(content)} bytes after its frame")
    step = RecordedStep(
        kind=kind,
        arguments=arguments,
        answer=answer,
        data=data,
        failure=failure,
        text=text,
        number=number,
        offset=offset,
    )
    return step, at


def _checked_header(content: Any) -> Header:
    """Return the header in a JSON value.

    Raises:
        ValueError: the value is not a header; the message says why.
    """
    if not isinstance(content, dict) or sorted({**content, _PERFORMS: True}) != sorted((*_HEADER_KEYS, _PERFORMS)):
        raise ValueError(f"it must have {', '.join(_HEADER_KEYS)}, and may have {_PERFORMS}")
    if content.get(_PERFORMS, True) is not True:
        raise ValueError(f"{_PERFORMS} is {reprlib.repr(content[_PERFORMS])}")
    device, kind, clock_hz, configuration = (content[key] for key in _HEADER_KEYS[1:])
    if not isinstance(device, str) or not device.isprintable() or not 0 < len(device) <= 64:
        raise ValueError(f"device is {reprlib.repr(device)}")
    if kind not in ("simulated", "measured"):
        raise ValueError(f"kind is {reprlib.repr(kind)}")
    if type(clock_hz) not in (int, float) or not 0 < clock_hz < 1e12:
        raise ValueError(f"clock_hz is {reprlib.repr(clock_hz)}")
    if not isinstance(configuration, str) or not re.fullmatch("[0-9a-f]{16}", configuration):
        raise ValueError(f"configuration is {reprlib.repr(configuration)}")
    return Header(
        device=device,
        kind=kind,
        clock_hz=float(clock_hz),
        configuration=int(configuration, 16),
        performs=_PERFORMS in content,
    )
