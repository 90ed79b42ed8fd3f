"""Test that a recorded session is replayed without its device: the same integers, and an error for other requests."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.device import Device, open_device
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.runtime.devices.replay import ReplayDevice
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.recording import RecordingDevice
from edgedec.runtime.driver.recording_file import RecordingReader, StepKind
from edgedec.sim.devices.interpreter import InterpreterDevice
from edgedec.sim.verify.cocotb_runner import missing_tools
from tests.runtime.driver.support.bench_session import Found, embedding, ids, program, recorded, replay, same, talk
from tests.sim.support.make_small_top import CONFIG

NIGHTLY = (pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session.edgerec"


def reference() -> InterpreterDevice:
    return InterpreterDevice(CONFIG)


def steps(path: Path) -> list[StepKind]:
    reader, operations = RecordingReader(path), []
    while (step := reader.step()) is not None:
        operations.append(step.kind)
    assert reader.complete
    return operations


def simulated() -> Device:
    return open_device("sim", CONFIG, memory="ideal", memory_bytes=1 << 20, trace=True)


@pytest.mark.parametrize("opened", [reference, pytest.param(simulated, marks=NIGHTLY)])
def test_a_session_is_replayed(path: Path, opened: Callable[[], Device]) -> None:
    results = recorded(opened(), path)
    assert same(results, talk(reference())), "the recorder has changed what the device does"
    device = replay(path)
    assert same(talk(device), results)
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="device replay is closed"):
        device.read_register(0)


def test_a_recording_is_small_and_holds_no_weights(path: Path) -> None:
    recorded(reference(), path)
    content = path.read_bytes()
    assert len(content) < 24_000
    assert len(content) < program().image.size
    for start in range(0, program().image.size - 64, 4096):
        assert (
            program().image[start : start + 64].tobytes() not in content
            or not program().image[start : start + 64].any()
        )
    used = {StepKind.READ, StepKind.WRITE, StepKind.ALLOCATE, StepKind.HELD, StepKind.FLUSH, StepKind.CHANGED}
    assert set(steps(path)) == used | {StepKind.INVALIDATE, StepKind.RELEASE, StepKind.WAIT, StepKind.CLOSE}


def test_a_replay_has_the_properties_of_its_device(path: Path) -> None:
    class Board(InterpreterDevice):
        name, kind = "board", "measured"

    recorded(Board(CONFIG), path)
    device = open_device("replay", CONFIG, recording=path)
    assert isinstance(device, ReplayDevice)
    assert (device.name, device.recorded_name, device.kind) == ("replay", "board", "measured")
    assert device.clock_hz == CONFIG.clock_hz


def test_a_recording_of_another_configuration_is_refused(path: Path) -> None:
    recorded(reference(), path)
    with pytest.raises(DeviceError, match=rf"{path} is a session of .*{CONFIG.hash:016x}, not"):
        open_device("replay", replace(CONFIG, top_k=3), recording=path)


def test_a_recording_of_another_model_is_refused(path: Path) -> None:
    """Change one byte of the image, which is detected when it is loaded."""
    recorded(reference(), path)
    image = program().image.copy()
    image[1000] ^= 1
    with pytest.raises(
        DeviceError, match=r"step \d+ .*the recording has a flush of buffer 1, but bytes 0 to \d+ of it are different"
    ):
        Driver(replay(path), replace(program(), image=image), embedding())


Act = Callable[[Driver], object]


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda driver: driver.registers.read("status"), "has .*, but the host made a read of status"),
        (
            lambda driver: driver.registers.write("program_bytes", 7),
            r"has a flush of buffer 3, but the host made a write of 0x7 to program",
        ),
        (
            lambda driver: driver.device.allocate(64),
            "has .*, but the host made an allocation of 64 bytes at a multiple",
        ),
        (lambda driver: driver.device.wait(0.5), "has .*, but the host made a wait of 0.5 s"),
        (
            lambda driver: driver.regions["output"].fetched(8),
            "the host made an invalidate of buffer 7, 8 bytes from 0 on",
        ),
        (
            lambda driver: driver.forward(ids(7, 14, 21, 28)),
            r"has a write of 0x4 to pass_parameters .*, but the host made a write of 0x",
        ),
        (lambda driver: driver.forward(ids(7, 14, 21, 29)), "has a flush of buffer 3, but bytes"),
        (lambda driver: driver.device.close(), "has .*, but the host made a close"),
    ],
)
def test_the_first_difference_is_named(path: Path, act: Act, message: str) -> None:
    """Check that nothing is replayed after it, and that everything can be closed."""
    recorded(reference(), path)
    device = replay(path)
    driver = Driver(device, program(), embedding())
    with pytest.raises(DeviceError, match=rf"{path}, step \d+ \(byte \d+\): the recording .*{message}"):
        act(driver)
    with pytest.raises(DeviceError):
        device.read_register(0)
    driver.close()
    device.close()


def test_requests_past_or_before_the_recorded_end_are_refused(path: Path) -> None:
    """Request more than the session, and end it too early."""
    device = RecordingDevice(reference(), path)
    device.read_register(0)
    device.close()
    longer = replay(path)
    longer.read_register(0)
    with pytest.raises(DeviceError, match=r"the recording has a close, but the host made a read of version \(0x4\)"):
        longer.read_register(4)
    with pytest.raises(DeviceError, match=r"has a read of identity \(0x0\), but the host made a close"):
        replay(path).close()


def test_invalid_requests_are_not_recorded(path: Path) -> None:
    def senseless(device: Device) -> None:
        for act in (
            lambda: device.read_register(2),
            lambda: device.write_register(0, 1 << 32),
            lambda: device.allocate(0),
            lambda: device.allocate(8, alignment_bytes=3),
        ):
            with pytest.raises(UsageError):
                act()
        device.close()

    senseless(RecordingDevice(reference(), path))
    assert steps(path) == [StepKind.CLOSE]
    senseless(replay(path))


def failing(device: Device) -> list[str]:
    """Cause an error of the accelerator's, Ctrl-C in a wait, an error of the device's own, and run a good pass."""
    messages = []
    with Driver(device, program(), embedding()) as driver:
        driver.registers.write("program_bytes", 32)
        for error in (DeviceError, KeyboardInterrupt, DeviceError):
            with pytest.raises(error) as caught:
                driver.forward(ids(1, 2))
            messages.append(str(caught.value))
            driver.registers.write("program_bytes", len(program().code))
        messages.append(str(driver.forward(ids(1, 2))))
        messages.append(str(driver.results(ids(0, 1)).logits))
    return messages


def test_errors_and_interrupts_are_replayed(path: Path) -> None:
    class Unsteady(InterpreterDevice):
        waits = 0

        def wait(self, timeout_s: float) -> bool:
            self.waits += 1
            if self.waits == 2:
                raise KeyboardInterrupt
            if self.waits == 3:
                raise DeviceError("the cable was pulled\x1b[31m")
            return super().wait(timeout_s)

    recorder = RecordingDevice(Unsteady(CONFIG), path)
    messages = failing(recorder)
    recorder.close()
    assert "the program is cut short" in messages[0]
    device = replay(path)
    assert failing(device) == [text.replace("\x1b", "?") for text in messages]
    device.close()


def test_a_terminated_command_is_replayed_as_interrupted(path: Path) -> None:
    """Raise SIGTERM's exception, which is no fault of the device."""

    class Ended(InterpreterDevice):
        def wait(self, timeout_s: float) -> bool:
            raise SystemExit(143)

    recorder = RecordingDevice(Ended(CONFIG), path)
    with pytest.raises(SystemExit):
        recorder.wait(0.1)
    recorder.close()
    device = replay(path)
    with pytest.raises(KeyboardInterrupt):
        device.wait(0.1)
    device.close()


def test_memory_that_does_not_fit_is_replayed(path: Path) -> None:
    class Small(InterpreterDevice):
        def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
            if size_bytes > 1 << 16:
                raise DeviceError(f"no {size_bytes} bytes")
            return super().allocate(size_bytes, alignment_bytes=alignment_bytes)

    for device in (RecordingDevice(Small(CONFIG), path), replay(path)):
        buffer = device.allocate(1 << 16)
        with pytest.raises(DeviceError, match="no 65537 bytes"):
            device.allocate((1 << 16) + 1)
        buffer.close()
        device.close()


@pytest.mark.thorough
def test_a_recording_of_a_killed_process_ends_where_it_was_killed(path: Path) -> None:
    """Send SIGKILL within the second pass's wait: everything before is replayed, and then the reason is given."""
    script = f"""
        import os, signal
        from pathlib import Path
        from edgedec.runtime.driver.recording import RecordingDevice
        from edgedec.sim.devices.interpreter import InterpreterDevice
        from tests.runtime.driver.support.bench_session import CONFIG, talk

        class Mortal(InterpreterDevice):
            waits = 0

            def wait(self, timeout_s):
                self.waits += 1
                if self.waits == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().wait(timeout_s)

        talk(RecordingDevice(Mortal(CONFIG), Path({str(path)!r})))
    """
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1])\n" + textwrap.dedent(script)]
    process = subprocess.run([*command, str(Path(__file__).parents[3])], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    device = replay(path)
    with pytest.raises(
        DeviceError, match=rf"{path} breaks off at byte {path.stat().st_size} after step \d+ .*killed.* a wait of"
    ):
        talk(device)
    device.close()


def test_a_recording_overwrites_only_a_recording(path: Path, tmp_path: Path) -> None:
    recorded(reference(), path)
    recorded(reference(), path)
    assert same(talk(replay(path)), talk(reference()))
    mine = tmp_path / "thesis.txt"
    mine.write_text("of mine")
    for existing in (mine, tmp_path):
        with pytest.raises(UsageError, match=rf"cannot write {existing}: it exists and is no recording"):
            RecordingDevice(reference(), existing)
    assert mine.read_text() == "of mine"
    with pytest.raises(EdgedecError, match=r"cannot write .*thesis\.txt"):
        RecordingDevice(reference(), mine / "below")


def test_a_full_disk_is_an_error() -> None:
    with pytest.raises(UsageError, match="cannot write /dev/full"):
        RecordingDevice(reference(), Path("/dev/full"))


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("coherent", [False, True])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_buffers_are_replayed_with_their_content(
    tmp_path_factory: pytest.TempPathFactory, coherent: bool, data: st.DataObject
) -> None:
    """Write from both sides in any order: a replay shows what the host saw."""
    size = data.draw(st.integers(1, 300))
    moves = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(["host", "device", "flush", "invalidate"]),
                st.integers(0, size - 1),
                st.integers(1, size),
            ),
            max_size=12,
        )
    )
    path = tmp_path_factory.mktemp("buffers") / "session"

    def session(device: Device, inner: Any) -> list[bytes]:
        buffer, copies = device.allocate(size), []
        for number, (move, start, length) in enumerate(moves):
            end = min(start + length, size)
            if move in ("host", "flush") and coherent:
                buffer.invalidate()  # RecordingDevice requires it
            if move == "host":
                buffer.array[start:end] = number % 2  # old values return
                buffer.flush()  # bytes that are not flushed may be lost, or not
            elif move == "device" and inner is not None:
                memory = inner.memory(coherent)
                memory[start:end] = number % 3
            elif move == "flush":
                buffer.flush()
            elif move == "invalidate":
                buffer.invalidate(start, end - start)
                copies.append(buffer.array[start:end].tobytes())
        buffer.invalidate()
        copies.append(buffer.array.tobytes())
        buffer.close()
        device.close()
        return copies

    class Memory(InterpreterDevice):
        def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
            self.given = super().allocate(size_bytes, alignment_bytes=alignment_bytes)
            self.given.array[:] = 77  # the earlier content
            self.given.memory.bytes[:] = 78
            return self.given

        def memory(self, coherent: bool) -> Any:
            return self.given.array if coherent else self.given.memory.bytes

    inner = Memory(CONFIG)
    if coherent:
        _make_coherent(inner)
    assert session(RecordingDevice(inner, path), inner) == session(replay(path), None)


def _make_coherent(device: Any) -> None:
    allocate = device.allocate

    def shared(size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
        buffer = allocate(size_bytes, alignment_bytes=alignment_bytes)
        buffer.array = buffer.memory.bytes
        return buffer

    device.allocate = shared


def test_only_changed_bytes_are_recorded(path: Path) -> None:
    """Check a hash for the host's bytes, the bytes of the device, and that a buffer begins with zeros on both sides."""

    class Dirty(InterpreterDevice):
        def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
            buffer = super().allocate(size_bytes, alignment_bytes=alignment_bytes)
            buffer.memory.bytes[:] = 5
            return buffer

    inner = Dirty(CONFIG)
    device = RecordingDevice(inner, path)
    buffer = device.allocate(3 << 20)
    buffer.invalidate()
    assert not buffer.array.any()
    buffer.array[2 << 20] = 1
    for _ in range(3):
        buffer.flush()
    (memory,) = inner._memories
    memory.bytes[[7, 8, 1 << 19]] = 9
    for _ in range(3):
        buffer.invalidate()
    device.close()
    reader, entries = RecordingReader(path), []
    while (step := reader.step()) is not None:
        if step.kind in (StepKind.HELD, StepKind.CHANGED):
            entries.append((step.kind, step.arguments[1], step.data))
    expected = [(StepKind.HELD, 2, b""), (StepKind.CHANGED, 7, b"\t\t"), (StepKind.CHANGED, 1 << 19, b"\t")]
    assert entries == expected


@pytest.mark.thorough
def test_a_large_buffer_is_recorded_in_chunks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfer more than a step may hold, in both directions."""
    size = (5 << 20) + 123
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, size, np.uint8)

    def session(device: Device, inner: InterpreterDevice | None) -> Found:
        buffer = device.allocate(size)
        buffer.array[:] = values
        buffer.flush()
        if inner is not None:
            (memory,) = inner._memories
            memory.bytes[3 : size - 5] ^= 0xFF
        buffer.invalidate()
        arrays = [buffer.array.astype(np.int64)]
        device.close()
        return arrays

    inner = reference()
    recorded_arrays = session(RecordingDevice(inner, path), inner)
    assert recorded_arrays[0][2] == values[2]
    assert recorded_arrays[0][3] == values[3] ^ 0xFF
    assert same(session(replay(path), None), recorded_arrays)
    values[2 << 20] ^= 1
    with pytest.raises(DeviceError, match="bytes 2097152 to 3145727 of it are different now"):
        session(replay(path), None)
