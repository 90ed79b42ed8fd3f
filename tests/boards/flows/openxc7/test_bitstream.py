"""Test the reader of 7-series bitstreams on files of our own: their frames, their device, and every way to be damaged."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from edgedec.boards.flows.openxc7.bitstream import (
    FRAME_WORDS,
    BitstreamError,
    check_bitstream,
    frames_of,
    read_bitstream,
    with_header,
)
from tests.boards.flows.openxc7.support.fake_openxc7 import IDCODE, PART, bit_file

RNG = random.Random(0)
FRAMES = [
    tuple(0 for _ in range(FRAME_WORDS)),
    *(tuple(RNG.getrandbits(32) for _ in range(FRAME_WORDS)) for _ in range(3)),
]
# Word 50 has the bits that check a frame; fasm2frames leaves them 0.
FRAMES = [(*frame[:50], frame[50] & ~0x1FFF, *frame[51:]) for frame in FRAMES]


def lines(frames: list[tuple[int, ...]]) -> str:
    return "".join(
        f"0x{number:08X} {','.join(f'0x{word:08X}' for word in frame)}\n" for number, frame in enumerate(frames)
    )


def test_the_frames_of_a_bitstream_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "top.frames").write_text(lines(FRAMES))
    found = read_bitstream(bit_file(FRAMES))
    assert (found.idcode, found.fields["b"], len(found.frames)) == (IDCODE, PART, len(FRAMES) + 2)
    check_bitstream(found, frames_of(tmp_path / "top.frames"), part=PART, idcode=IDCODE)
    check_bitstream(found, FRAMES, part=PART, idcode=IDCODE | 0x4000_0000)  # another revision of the device


def test_the_header_is_always_the_same() -> None:
    """Check its fields as pynq reads them, and that the data stay as they are."""
    one, two = (
        read_bitstream(bit_file(FRAMES, source=source, date=date, clock=clock))
        for source, date, clock in (("/a/b.frames", "2026/01/02", "03:04:05"), ("c.frames", "2027/11/12", "13:14:15"))
    )
    made = with_header(one, design="pynq-z2", part=PART)
    assert made == with_header(two, design="pynq-z2", part=PART)
    again = read_bitstream(made)
    assert again.fields == {"a": "pynq-z2;Generator=edgedec", "b": PART, "c": "1970/01/01", "d": "00:00:00"}
    assert (again.data, again.frames) == (one.data, one.frames)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "top.frames has 0 frames and not a single bit that is set"),
        (lines(FRAMES[:1]), "top.frames has 1 frames and not a single bit"),
        (lines(FRAMES)[:-20], "top.frames:4 is no frame"),
        ("bits\n", "top.frames:1 is no frame"),
    ],
)
def test_frames_without_content_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "top.frames").write_text(text)
    with pytest.raises(BitstreamError, match=message):
        frames_of(tmp_path / "top.frames")


def test_an_empty_device_of_full_size_is_refused() -> None:
    """Refuse the file that xc7frames2bit writes, with status 0, where its input is empty."""
    empty = [(0,) * FRAME_WORDS] * len(FRAMES)
    with pytest.raises(BitstreamError, match="not a single bit that is set"):
        check_bitstream(read_bitstream(bit_file(empty)), FRAMES, part=PART, idcode=IDCODE)


def test_other_frames_are_refused() -> None:
    changed = [FRAMES[0], (*FRAMES[1][:7], FRAMES[1][7] ^ 1, *FRAMES[1][8:]), *FRAMES[2:]]
    for frames, message in ((FRAMES[:-1], "1 of the 4 frames are not in it, and 0"), (changed, "1 of .* and 1 others")):
        with pytest.raises(BitstreamError, match=message):
            check_bitstream(read_bitstream(bit_file(frames)), FRAMES, part=PART, idcode=IDCODE)


def test_another_device_is_refused() -> None:
    with pytest.raises(BitstreamError, match="IDCODE 0x03722093, and xc7z020clg400-1 has 0x03727093"):
        check_bitstream(read_bitstream(bit_file(FRAMES, idcode=0x0372_2093)), FRAMES, part=PART, idcode=IDCODE)
    with pytest.raises(BitstreamError, match="header names part xc7z010clg400-1, not xc7z020clg400-1"):
        check_bitstream(read_bitstream(bit_file(FRAMES, part="xc7z010clg400-1")), FRAMES, part=PART, idcode=IDCODE)


def test_a_file_that_is_cut_anywhere_is_refused() -> None:
    """Cut it in steps, as it is, and with a header that states the shorter length."""
    whole = bit_file(FRAMES)
    start = len(whole) - len(read_bitstream(whole).data)
    for size in (*range(0, start + 60, 3), *range(start, len(whole) - 8, 97)):
        with pytest.raises(BitstreamError):
            read_bitstream(whole[:size])
        if size > start:
            stated = whole[: start - 4] + struct.pack(">I", size - start) + whole[start:size]
            with pytest.raises(BitstreamError, match=r"cut short|no synchronization|no packet"):
                read_bitstream(stated)
    with pytest.raises(BitstreamError, match="the command that ends a bitstream is missing"):
        read_bitstream(bit_file(FRAMES, end=False))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"\x00\x09\x0f\xf0", b"\x00\x09\x0f\xf1", "it is no .bit file"),
        (b"a\x00", b"x\x00", "field a of its header is damaged"),
        (b"xc7z020", b"xc7\xff020", "its header is cut short or damaged"),
        (b"\xaa\x99\x55\x66", b"\xaa\x99\x55\x67", "no synchronization word"),
        (b"\x30\x01\x80\x01", b"\x30\x01\x60\x01", "does not say for which device"),
        (b"\x30\x00\x20\x01", b"\xf0\x00\x20\x01", "is no packet: 0xf0002001"),
    ],
)
def test_damage_is_named(old: bytes, new: bytes, message: str) -> None:
    whole = bit_file(FRAMES)
    assert old in whole
    with pytest.raises(BitstreamError, match=message):
        read_bitstream(whole.replace(old, new, 1))


def test_data_that_are_no_whole_frames_are_refused() -> None:
    with pytest.raises(BitstreamError, match="its data are 503 words, not a multiple of 101"):
        read_bitstream(bit_file([FRAMES[0], FRAMES[1], FRAMES[2][:99]]))
