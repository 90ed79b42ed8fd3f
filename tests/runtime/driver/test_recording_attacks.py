"""Attack recordings by damage, cuts and forgeries: each is refused by a message that names file and byte, in bounded
memory.

A forgery has correct check sums, as its maker would compute them, so that the check under test is reached.
"""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import BundleError, DeviceError, EdgedecError, UnsupportedError, UsageError
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.recording_file import (
    MAGIC,
    VERSION,
    Failure,
    Header,
    RecordingReader,
    RecordingWriter,
    StepKind,
)
from edgedec.sim.devices.interpreter import InterpreterDevice
from tests.runtime.driver.support.bench_session import embedding, program, recorded, replay
from tests.sim.support.make_small_top import CONFIG

HEADER = {
    "created_by": "me",
    "device": "board",
    "kind": "measured",
    "clock_hz": 1e8,
    "configuration": f"{CONFIG.hash:016x}",
}


def frame(content: bytes, *, stored: bytes | None = None, size: int | None = None, claimed: int | None = None) -> bytes:
    stored = zlib.compress(content) if stored is None else stored
    lengths = struct.pack("<II", len(stored) if claimed is None else claimed, len(content) if size is None else size)
    return lengths + struct.pack("<I", zlib.crc32(lengths + stored)) + stored


def lying(
    path: Path, *frames: bytes, header: Any = HEADER, start: bytes = struct.pack("<16sI", MAGIC, VERSION)
) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(start + frame(text) + b"".join(frames))
    return path


def read(path: Path) -> bool:
    """Read all steps and return whether the recording is whole."""
    reader = RecordingReader(path)
    try:
        while reader.step() is not None:
            pass
        return reader.complete
    finally:
        reader.close()


def whole(path: Path) -> bool:
    """Read like ``read``; an error must name the file."""
    try:
        return read(path)
    except (BundleError, UnsupportedError) as error:
        if str(path) not in str(error):
            raise
        return False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session"


@pytest.fixture(scope="module")
def sound_recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "session"
    recorded(InterpreterDevice(CONFIG), path)
    assert read(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacks") / "session"


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_is_detected(sound_recording: bytes, place: Path, data: st.DataObject) -> None:
    """Accept that a length larger than the file looks like a file that was cut."""
    at = data.draw(st.integers(0, len(sound_recording) - 1))
    bit = data.draw(st.integers(0, 7))
    damaged = bytearray(sound_recording)
    damaged[at] ^= 1 << bit
    place.write_bytes(damaged)
    assert not whole(place)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_cut_file_is_never_whole(sound_recording: bytes, place: Path, data: st.DataObject) -> None:
    place.write_bytes(sound_recording[: data.draw(st.integers(0, len(sound_recording) - 1))])
    assert not whole(place)


def step(operation: int, form: str = "", *values: Any, tail: bytes = b"") -> bytes:
    return bytes([operation]) + struct.pack("<" + form, *values) + tail


LIES = {
    "operation": (step(77), r"step 1 is invalid \(77 is not"),
    "cut": (step(StepKind.WRITE, "I", 1), "step 1 is invalid"),
    "cut answer": (step(StepKind.READ, "I", 1, tail=b"\0\0"), "step 1 is invalid"),
    "long data": (step(StepKind.CHANGED, "IQI", 0, 0, 1 << 31, tail=b"abc"), "ends 2147483645 bytes after its frame"),
    "long text": (step(StepKind.FLUSH | 0x80, "IBH", 0, 1, 9, tail=b"abc"), "bytes after its frame"),
    "no text": (step(StepKind.FLUSH | 0x80, "IBH", 0, 1, 2, tail=b"\xff\xfe"), "step 1 is invalid .*decode"),
    "failure": (step(StepKind.FLUSH | 0x80, "IBH", 0, 9, 0), "9 is not a valid"),
    "end that fails": (step(StepKind.END | 0x80, "QBH", 0, 1, 0), "END cannot fail"),
    "end too early": (step(StepKind.END, "Q", 5), "it ends with 0 steps and says 5"),
    "behind the end": (step(StepKind.END, "Q", 0) + step(StepKind.CLOSE), "there is data after"),
}


@pytest.mark.parametrize("lie", LIES)
def test_forged_steps_are_refused(path: Path, lie: str) -> None:
    content, message = LIES[lie]
    lying(path, frame(content))
    with pytest.raises(BundleError, match=rf"^{path}, byte \d+: .*{message}"):
        read(path)


def test_nothing_is_read_after_damage(path: Path) -> None:
    reader = RecordingReader(lying(path, frame(step(77)), frame(step(StepKind.CLOSE))))
    for _ in range(2):
        with pytest.raises(BundleError, match="step 1 is invalid"):
            reader.step()


def test_a_device_can_be_closed_after_damage(path: Path) -> None:
    allocated = step(StepKind.ALLOCATE, "QQQ", 100, 4096, 0)
    device = replay(lying(path, frame(allocated), frame(step(77))))
    buffer = device.allocate(100)
    with pytest.raises(BundleError, match="step 2 is invalid"):
        device.read_register(0)
    with pytest.raises(DeviceError, match="step 2 is invalid"):
        device.wait(1)
    buffer.close()
    device.close()


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (frame(b""), "a frame of 8 bytes cannot become 0"),
        (frame(b"x", stored=b""), "a frame of 0 bytes cannot become 1"),
        (frame(b"x", size=1 << 31), "cannot become 2147483648"),
        (frame(b"x", claimed=1 << 31), "a frame of 2147483648 bytes cannot become 1"),
        (frame(b"xy", size=3), "it does not become 3 bytes"),
        (frame(b"xyz", size=2), "it does not become 2 bytes"),
        (frame(b"xyz", stored=zlib.compress(b"xyz") + b"more"), "it does not become 3 bytes"),
        (frame(b"xyz", stored=b"no zlib at all"), "it cannot be unpacked"),
        (frame(b"xyz", stored=zlib.compress(b"xyz")[:-2]), "it does not become 3 bytes"),
        (frame(step(StepKind.END, "Q", 0)) + b"\0", "there is data after"),
        (bytes(4096), "a frame of 0 bytes cannot become 0"),
    ],
)
def test_forged_frames_are_refused(path: Path, lie: bytes, message: str) -> None:
    with pytest.raises(BundleError, match=rf"^{path}, byte \d+: .*{message}"):
        read(lying(path, lie))


def test_a_compression_bomb_takes_little_memory(path: Path) -> None:
    """Compress 64 MiB of zeros into a few kilobytes, with the length of an allowed frame."""
    bomb = zlib.compress(bytes(64 << 20), 9)
    lying(path, frame(b"", stored=bomb, size=2 << 20))
    tracemalloc.start()
    with pytest.raises(BundleError, match="it does not become 2097152 bytes"):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "its header is invalid"),
        (b"[" * 9000, "its header is invalid"),
        (b"[]", "it must have created_by, device"),
        ({**HEADER, "more": 1}, "it must have"),
        ({**HEADER, "device": "b\x1b[2J"}, "device is"),
        ({**HEADER, "device": ""}, "device is"),
        ({**HEADER, "device": "b" * 65}, "device is"),
        ({**HEADER, "kind": "guessed"}, "kind is 'guessed'"),
        ({**HEADER, "clock_hz": float("nan")}, "clock_hz is nan"),
        ({**HEADER, "clock_hz": float("inf")}, "clock_hz is inf"),
        ({**HEADER, "clock_hz": 10**400}, "clock_hz is 1000"),
        ({**HEADER, "clock_hz": True}, "clock_hz is True"),
        ({**HEADER, "clock_hz": 0}, "clock_hz is 0"),
        ({**HEADER, "configuration": 7}, "configuration is 7"),
        ({**HEADER, "configuration": "0x0000000000000f"}, "configuration is"),
        ({**HEADER, "created_by": "e" * (1 << 15)}, "cannot become"),
    ],
)
def test_forged_headers_are_refused(path: Path, header: Any, message: str) -> None:
    with pytest.raises(BundleError, match=rf"^{path}, byte 20: .*{message}"):
        RecordingReader(lying(path, header=header))


def test_other_files_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such recording"):
        replay(path)
    with pytest.raises(UsageError, match="no such recording"):
        replay(tmp_path)
    for content in (b"", MAGIC, b"PK" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(BundleError, match=rf"^{path}: no recording of edgedec"):
            replay(path)
    with pytest.raises(UnsupportedError, match=rf"^{path}: version 9, this edgedec reads 1"):
        replay(lying(path, start=struct.pack("<16sI", MAGIC, 9)))


@pytest.mark.parametrize(
    "lie",
    [
        step(StepKind.HELD, "II32s", 1, 0, bytes(32)),
        step(StepKind.HELD, "II32s", 0, 1, bytes(32)),
        step(StepKind.CHANGED, "IQI", 7, 0, 1, tail=b"x"),
        step(StepKind.CHANGED, "IQI", 0, 96, 5, tail=b"xxxxx"),
        step(StepKind.CHANGED, "IQI", 0, (1 << 64) - 1, 1, tail=b"x"),
    ],
)
def test_contents_of_unknown_buffers_are_refused(path: Path, lie: bytes) -> None:
    allocated = step(StepKind.ALLOCATE, "QQQ", 100, 4096, 0)
    device = replay(lying(path, frame(allocated + lie + step(StepKind.FLUSH, "I", 0))))
    buffer = device.allocate(100)
    with pytest.raises(BundleError, match=rf"^{path}, byte \d+: step 2, (HELD|CHANGED), cannot be at this place"):
        buffer.flush()
    with pytest.raises(DeviceError, match="damaged"):
        buffer.flush()
    buffer.close()
    device.close()


@pytest.mark.thorough
@given(content=st.binary(min_size=1, max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_refused_or_replayed(place: Path, content: bytes) -> None:
    """Check that a driver raises known errors for any recording."""
    lying(place, frame(content))
    device = replay(place)
    for act in (device.close, lambda: Driver(replay(place), program(), embedding())):
        with suppress(EdgedecError, KeyboardInterrupt):
            act()
    whole(place)


OPERATIONS = st.one_of(
    st.tuples(st.just(StepKind.READ), st.tuples(st.integers(0, 2**32 - 1)), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(StepKind.WRITE), st.tuples(*[st.integers(0, 2**32 - 1)] * 2), st.none()),
    st.tuples(st.just(StepKind.ALLOCATE), st.tuples(*[st.integers(0, 2**64 - 1)] * 2), st.integers(0, 2**64 - 1)),
    st.tuples(st.just(StepKind.WAIT), st.tuples(st.floats(allow_nan=False)), st.booleans()),
    st.tuples(
        st.just(StepKind.HELD),
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(min_size=32, max_size=32)),
        st.none(),
    ),
)


@given(
    given_steps=st.lists(
        st.tuples(OPERATIONS, st.none() | st.tuples(st.sampled_from(Failure), st.text(max_size=9))), max_size=9
    )
)
@settings(max_examples=60, deadline=None)
def test_a_written_recording_is_read(
    place: Path,
    given_steps: list[tuple[tuple[StepKind, tuple[Any, ...], Any], tuple[Failure, str] | None]],
) -> None:
    writer = RecordingWriter(place, Header(device="board", kind="measured", clock_hz=1e8, configuration=7))
    expected = []
    for (operation, values, answer), fails in given_steps:
        failure, text = fails if fails is not None and operation is not StepKind.HELD else (None, "")
        writer.add(operation, values, answer, failure=failure, text=text)
        message = text.encode(errors="replace").decode()
        expected.append((operation, values, None if failure else answer, failure, message))
        if len(expected) % 3 == 0:
            writer.write_out()
    writer.close()
    reader = RecordingReader(place)
    assert reader.header == Header(device="board", kind="measured", clock_hz=1e8, configuration=7)
    actual = []
    while (entry := reader.step()) is not None:
        actual.append((entry.kind, entry.arguments, entry.answer, entry.failure, entry.text))
    assert actual == expected
    assert reader.complete


def test_a_long_message_is_cut_between_characters(path: Path) -> None:
    writer = RecordingWriter(path, Header(device="board", kind="measured", clock_hz=1e8, configuration=7))
    writer.add(StepKind.CLOSE, (), failure=Failure.DEVICE, text="x" + 5000 * "é")
    writer.close()
    entry = RecordingReader(path).step()
    assert entry is not None
    assert entry.text == "x" + 2047 * "é"
