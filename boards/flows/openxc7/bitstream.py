"""Read bitstreams of 7-series devices and prjxray's frames, compare them, and write a header that is always the same.

A project has a copy of this file as ``bitstream.py``; it needs nothing but Python.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "FRAME_WORDS",
    "Bitstream",
    "BitstreamError",
    "check_bitstream",
    "frames_of",
    "read_bitstream",
    "with_header",
]

FRAME_WORDS = 101
_START = bytes.fromhex("0009 0ff0 0ff0 0ff0 0ff0 00 0001")
_SYNC = bytes.fromhex("aa995566")
_ECC_WORD, _ECC_BITS = 50, 0x1FFF  # the word and the bits of a frame that check the others; made with the bitstream
_REVISION = 0x0FFF_FFFF  # the bits of an IDCODE without the device's revision
_FDRI, _CMD, _IDCODE = 2, 4, 12  # configuration registers
_DESYNC = 13  # command that ends a bitstream
_FRAME = re.compile(r"0x([0-9A-Fa-f]{8}) ((?:0x[0-9A-Fa-f]{8},){100}0x[0-9A-Fa-f]{8})")
_TAGS = b"abcd"  # design, part, date, time

Frame = tuple[int, ...]


class BitstreamError(Exception):
    """A bitstream or a file of frames that must not be used."""


@dataclass(frozen=True)
class Bitstream:
    """The content of a .bit file.

    Members:
        fields: text of the header's fields: a the design, b the part, c the date, d the time.
        data: bytes after the header, as the device takes them.
        idcode: the device that the data say they are for.
        frames: words of the device's memory, in the order of the data.
    """

    fields: dict[str, str]
    data: bytes
    idcode: int
    frames: list[Frame]


def frames_of(path: Path) -> list[Frame]:
    """Return the frames of a file of prjxray's fasm2frames.

    Raises:
        BitstreamError: it has no frames, a line that is none, or not a single bit.
    """
    frames = []
    for number, line in enumerate(path.read_text("ascii", errors="replace").splitlines(), 1):
        match = _FRAME.fullmatch(line.strip())
        if match is None:
            raise BitstreamError(f"{path.name}:{number} is no frame")
        frames.append(tuple(int(word, 16) for word in match[2].split(",")))
    if not any(any(frame) for frame in frames):
        raise BitstreamError(f"{path.name} has {len(frames)} frames and not a single bit that is set")
    return frames


def read_bitstream(content: bytes) -> Bitstream:
    """Read a .bit file.

    Raises:
        BitstreamError: it is none, is cut short, or does not end as a bitstream has to.

    Source: AMD UG470, "Configuration Packets" and table 5-25; the header's form is that of AMD's own tools.
    """
    fields, data = _header(content)
    start = data.find(_SYNC)
    if start < 0:
        raise BitstreamError("there is no synchronization word")
    idcode, frames, ended = None, list[Frame](), False
    words = struct.unpack(f">{(len(data) - start) // 4}I", data[start : start + (len(data) - start) // 4 * 4])
    at, register = 1, 0
    while at < len(words) and not ended:
        word = words[at]
        kind, writes = word >> 29, word >> 27 & 3 == 2
        count = word & 0x7FF if kind == 1 else word & 0x07FF_FFFF
        register = word >> 13 & 0x3FFF if kind == 1 else register
        at += 1
        if kind not in (1, 2):
            raise BitstreamError(f"word {at} after the synchronization word is no packet: {word:#010x}")
        if at + count > len(words):
            raise BitstreamError("it is cut short: a packet is longer than the file")
        if writes and register == _IDCODE and count == 1:
            idcode = words[at]
        elif writes and register == _FDRI and count:
            if count % FRAME_WORDS:
                raise BitstreamError(f"its data are {count} words, not a multiple of {FRAME_WORDS}")
            frames += [words[first : first + FRAME_WORDS] for first in range(at, at + count, FRAME_WORDS)]
        elif writes and register == _CMD and count == 1:
            ended = words[at] == _DESYNC
        at += count
    if not ended:
        raise BitstreamError("it is cut short: the command that ends a bitstream is missing")
    if idcode is None:
        raise BitstreamError("it does not say for which device it is")
    return Bitstream(fields, data, idcode, frames)


def _header(content: bytes) -> tuple[dict[str, str], bytes]:
    if not content.startswith(_START):
        raise BitstreamError("it is no .bit file")
    at, fields = len(_START), dict[str, str]()
    try:
        for tag in _TAGS:
            (size,) = struct.unpack_from(">H", content, at + 1)
            text = content[at + 3 : at + 3 + size]
            if content[at] != tag or len(text) != size or not text.endswith(b"\0"):
                raise BitstreamError(f"field {chr(tag)} of its header is damaged")
            fields[chr(tag)] = text[:-1].decode("ascii")
            at += 3 + size
        if content[at : at + 1] != b"e":
            raise BitstreamError("field e of its header is damaged")
        (size,) = struct.unpack_from(">I", content, at + 1)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise BitstreamError("its header is cut short or damaged") from None
    data = content[at + 5 :]
    if len(data) != size:
        raise BitstreamError(f"it is cut short: {len(data)} bytes of data, and its header says {size}")
    return fields, data


def check_bitstream(bitstream: Bitstream, frames: list[Frame], *, part: str, idcode: int) -> None:
    """Check that a bitstream is for a part, and has exactly the frames that it was to be made of.

    Raises:
        BitstreamError: it is for another part or device; or it has other frames, such as none.
    """
    if bitstream.fields["b"] != part:
        raise BitstreamError(f"its header names part {bitstream.fields['b']}, not {part}")
    if (bitstream.idcode ^ idcode) & _REVISION:
        raise BitstreamError(f"it is for a device with IDCODE {bitstream.idcode:#010x}, and {part} has {idcode:#010x}")
    if not any(any(frame) for frame in bitstream.frames):
        raise BitstreamError("it has not a single bit that is set")
    found, wanted = (Counter(map(_without_ecc, which)) for which in (bitstream.frames, frames))
    nothing = (0,) * FRAME_WORDS
    del found[nothing], wanted[nothing]
    if found != wanted:
        lost, other = (sum(counter.values()) for counter in (wanted - found, found - wanted))
        raise BitstreamError(f"{lost} of the {len(frames)} frames are not in it, and {other} others are")


def _without_ecc(frame: Frame) -> Frame:
    return (*frame[:_ECC_WORD], frame[_ECC_WORD] & ~_ECC_BITS, *frame[_ECC_WORD + 1 :])


def with_header(bitstream: Bitstream, *, design: str, part: str) -> bytes:
    """Return the .bit file with a header that says nothing of where and when it was made.

    Args:
        design: name of the design, which readers of the header take up to the first ";".
    """
    values = (f"{design};Generator=edgedec", part, "1970/01/01", "00:00:00")
    parts = [_START]
    for tag, value in zip(_TAGS, values, strict=True):
        text = value.encode("ascii") + b"\0"
        parts.append(bytes([tag]) + struct.pack(">H", len(text)) + text)
    return b"".join([*parts, b"e", struct.pack(">I", len(bitstream.data)), bitstream.data])
