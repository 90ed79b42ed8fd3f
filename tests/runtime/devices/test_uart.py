"""Test the host's side of the serial link over a line that loses, doubles and changes bytes, and without an answer."""

from __future__ import annotations

import errno
import itertools
import os
import random
import select
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.device import open_device
from edgedec.device_steps import Flush, ReadRegister, WriteRegister
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.isa.link_protocol import BLOCK_BYTES, MOST_FRAME, LinkCommand, Status, frame, opened
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.accelerator.opening import check_device
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.devices import _link, uart
from edgedec.sim.boards.link_server import LinkServer, PseudoTerminal
from tests.sim.support.make_small_top import CONFIG

MEMORY = 1 << 16
MASK = REGISTER_MAP["mask"].offset


def server() -> LinkServer:
    return LinkServer(open_device("interpreter", CONFIG), memory_bytes=MEMORY, granule=CONFIG.port_bytes)


@pytest.fixture
def line() -> Iterator[Callable[..., Any]]:
    """Return a function that opens the device over a line whose two directions apply the given functions to their
    bytes.
    """
    opened_: list[tuple[Any, PseudoTerminal]] = []

    def over(
        far: LinkServer,
        forth: Callable[[bytes], bytes] = bytes,
        back: Callable[[bytes], bytes] = bytes,
        **options: Any,
    ) -> Any:
        terminal = PseudoTerminal(lambda data: back(far.take(forth(data))))
        device = open_device("uart", CONFIG, port=terminal.path, **{"patience_s": 0.05} | options)
        opened_.append((device, terminal))
        return device

    yield over
    for device, terminal in opened_:
        device.close()
        terminal.close()
        assert terminal.failure is None


def test_a_block_whose_answer_never_came_is_sent_again(
    line: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break off between a frame and its answer, and then want the bytes that the board had before."""
    far = server()
    device = line(far)
    buffer = device.allocate(512)

    exchange = device.link.exchange

    def interrupted(commands: Any) -> Iterator[bytes]:
        yield from (b"" for _ in exchange(commands) if interrupt())

    def interrupt() -> bool:
        raise KeyboardInterrupt

    buffer.array[:] = 1
    buffer.flush()
    buffer.array[:] = 2
    with monkeypatch.context() as patch:
        patch.setattr(device.link, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer.flush()
    buffer.array[:] = 1
    buffer.flush()
    buffer.invalidate()
    assert set(buffer.array.tolist()) == {1}


def test_a_closed_buffer_touches_no_other(line: Callable[..., Any]) -> None:
    device = line(server())
    closed = device.allocate(512)
    closed.close()
    other = device.allocate(512)
    assert other.address == closed.address
    other.array[:] = 3
    other.flush()
    closed.close()
    assert closed.array.size == 0
    closed.flush()
    closed.invalidate()
    other.invalidate()
    assert set(other.array.tolist()) == {3}
    assert device.allocate(512).address != other.address


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((ReadRegister(0x40000),), "there is no register at 0x40000; the map has"),
        ((WriteRegister(6, 0),), "a multiple of 4, not 0x6"),
        ((ReadRegister(0), Flush), "blocks are sent before the other steps"),
    ],
)
def test_steps_that_no_run_has_are_refused(line: Callable[..., Any], steps: tuple[Any, ...], message: str) -> None:
    device = line(server())
    whole = [step(device.allocate(512)) if step is Flush else step for step in steps]
    with pytest.raises(UsageError, match=message):
        device.perform(whole)


class Noise:
    """Disturb some bytes, once it is on."""

    def __init__(self, rate: float, seed: int) -> None:
        self.rate, self.rng, self.on, self.hits = rate, random.Random(seed), False, 0

    def __call__(self, data: bytes) -> bytes:
        if not self.on:
            return data
        disturbed = bytearray()
        for byte in data:
            if self.rng.random() >= self.rate:
                disturbed.append(byte)
                continue
            self.hits += 1
            disturbed += self.rng.choice(
                [b"", bytes((byte, byte)), bytes((byte ^ 4,)), self.rng.randbytes(3), b"\xc0", b"\xdb"]
            )
        return bytes(disturbed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_done_twice_on_a_bad_line(line: Callable[..., Any], seed: int) -> None:
    far, forth, back = server(), Noise(0.0008, seed), Noise(0.0008, seed + 100)
    device, rng = line(far, forth, back), np.random.default_rng(seed)
    forth.on = back.on = True
    buffers = [device.allocate(size) for size in (5000, 512, 777)]
    for _ in range(3):
        copies = []
        for buffer in buffers:
            buffer.array[rng.integers(0, buffer.array.size, 40)] = rng.integers(0, 256, 40, np.uint8)
            buffer.flush()
            copies.append(buffer.array.copy())
        for number in range(8):
            device.write_register(MASK + 4 * (number % 4), number + seed)
            assert device.read_register(MASK + 4 * (number % 4)) == number + seed
        for buffer, data in zip(buffers, copies, strict=True):
            buffer.array[:] = 0
            buffer.invalidate()
            assert (buffer.array == data).all()
    assert forth.hits + back.hits > 10
    assert device.link.retries > 0
    # Each command's number occurs once in 256: a command with an effect was never executed twice.
    writes = [entry for entry in far.executed if entry[0] in (LinkCommand.WRITE_REGISTER, LinkCommand.WRITE_MEMORY)]
    assert all(earlier != later for earlier, later in itertools.pairwise(writes))


def test_only_changed_blocks_are_sent(line: Callable[..., Any]) -> None:
    far = server()
    device = line(far)
    buffer = device.allocate(8 * BLOCK_BYTES)

    def blocks() -> int:
        far.executed.clear()
        buffer.flush()
        return sum(command == LinkCommand.WRITE_MEMORY for command, _ in far.executed)

    assert blocks() == 8, "nobody knows what was there"
    assert blocks() == 0
    buffer.array[3 * BLOCK_BYTES + 5] = 9
    assert blocks() == 1
    far.executed.clear()
    buffer.invalidate(BLOCK_BYTES - 1, 2)
    assert [command for command, _ in far.executed] == [LinkCommand.READ_MEMORY] * 2


def test_ctrl_c_leaves_the_device_usable(line: Callable[..., Any]) -> None:
    far, slow = server(), threading.Event()

    def there(data: bytes) -> bytes:
        if slow.is_set():
            slow.clear()
            os.kill(os.getpid(), signal.SIGINT)
        return data

    device = line(far, there)
    buffer = device.allocate(40 * BLOCK_BYTES)
    buffer.array[:] = 7
    slow.set()
    with pytest.raises(KeyboardInterrupt):
        _flush(buffer)
    buffer.flush()
    buffer.invalidate()
    assert (buffer.array == 7).all()
    assert device.read_register(REGISTER_MAP["identity"].offset) == REGISTER_MAP["identity"].reset


def _flush(buffer: Any) -> None:
    buffer.flush()
    signal.sigtimedwait([], 1)  # the signal may come a moment late


def test_a_device_that_falls_silent_is_an_error(line: Callable[..., Any]) -> None:
    silent = threading.Event()
    device = line(server(), lambda data: b"" if silent.is_set() else data, patience_s=0.01)
    silent.set()
    with pytest.raises(DeviceError, match=r"no answer from /dev/pts/\d+ to read_register, sent 6 times; check that"):
        device.read_register(0)
    silent.clear()
    assert device.read_register(0) == REGISTER_MAP["identity"].reset


@pytest.mark.thorough
def test_a_device_that_was_switched_off_is_connected_again(line: Callable[..., Any]) -> None:
    """Check that it counts from 0 again, and that nothing is executed until both sides agree."""
    far = server()
    device = line(far)
    for _ in range(5):
        device.read_register(0)
    far._expected = 200
    with pytest.raises(DeviceError, match="no answer from"):
        device.write_register(MASK, 1)
    device.write_register(MASK, 2)
    assert device.read_register(MASK) == 2


def test_too_large_a_buffer_is_refused(line: Callable[..., Any]) -> None:
    device = line(server())
    with pytest.raises(
        DeviceError, match=f"a buffer of {MEMORY + 1} bytes does not fit the board's memory: {MEMORY} of"
    ):
        device.allocate(MEMORY + 1)
    first, second = device.allocate(MEMORY // 2), device.allocate(MEMORY // 2)
    assert abs(first.address - second.address) == MEMORY // 2
    first.close()
    assert device.allocate(MEMORY // 4).address == first.address


def test_other_files_are_refused_as_ports(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"there is no .*ttyUSB9; plug the board in"):
        open_device("uart", CONFIG, port=tmp_path / "ttyUSB9")
    (tmp_path / "file").write_text("no port")
    with pytest.raises(DeviceError, match="file is no serial port"):
        open_device("uart", CONFIG, port=tmp_path / "file")
    with pytest.raises(UsageError, match=r"has no baud rate 31337; it has .*115200"):
        open_device("uart", CONFIG, port=tmp_path / "file", baud=31337)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EACCES, r"may not be opened; join its group and log in again: sudo usermod -aG \w+ \$USER"),
        (errno.EBUSY, r"another program has .*ttyUSB0; end it, fuser -v .*ttyUSB0 names it"),
        (errno.EIO, r"cannot be opened: Input/output error; give the path of a serial port"),
    ],
)
def test_a_port_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str) -> None:
    port, real = tmp_path / "ttyUSB0", os.open
    port.touch()

    def opened(path: Any, *arguments: Any, **options: Any) -> int:
        if path == port:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(DeviceError, match=message):
        open_device("uart", CONFIG, port=port)


def test_a_port_that_vanishes_is_an_error() -> None:
    """Unplug it in the middle of a transfer; later calls give the same error, and closing succeeds."""
    far, unplugged = server(), threading.Event()

    def there(data: bytes) -> bytes:
        if unplugged.is_set():
            raise OSError("the adapter was pulled out")
        return far.take(data)

    terminal = PseudoTerminal(there)
    device = open_device("uart", CONFIG, port=terminal.path, patience_s=0.05)
    buffer = device.allocate(MEMORY)
    unplugged.set()
    closing = threading.Timer(0.1, terminal.close)
    closing.start()
    for _ in range(2):
        with pytest.raises(
            DeviceError, match=r"/dev/pts/\d+ is gone \(.*\): has the simulation ended\? start it again"
        ):
            buffer.flush()
        closing.join()
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="device uart is closed; open it again"):
        device.read_register(0)


def test_a_silent_serial_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the message of a real port names the board's bitstream and rate."""
    monkeypatch.setattr(_link, "_PSEUDO_MAJORS", ())
    with (
        PseudoTerminal(lambda data: b"") as line,
        pytest.raises(DeviceError, match="is loaded and its baud rate is 9600"),
    ):
        open_device("uart", CONFIG, port=line.path, baud=9600, patience_s=0.01)


def test_a_pseudo_terminal_is_taken_for_a_simulation(line: Callable[..., Any]) -> None:
    """Check this for any name of its other side; it has a longer patience, and no baud rate."""
    far = server()
    far._identity = replace(far._identity, simulated=False)
    device = line(far, patience_s=0.0, baud=31337)
    assert device.kind == "simulated"
    assert device.link.patience_s == 10


class DeviceTime:
    """Provide a clock that only the device advances, so that a busy host is not taken for a slow device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(_link, "time", clock)
        monkeypatch.setattr(uart, "time", clock)
        monkeypatch.setattr(_link, "select", SimpleNamespace(select=self._select))

    def _select(self, reading: Any, writing: Any, failing: Any, timeout_s: float) -> Any:
        """Replace ``select.select``: bytes that come after the timeout come too late."""
        end = self.now + timeout_s
        ready = select.select(reading, writing, failing, 60 if timeout_s else 0)
        return ready if self.now <= end else ([], [], [])


def test_a_slow_device_gets_smaller_requests(line: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that its answers then come within the host's patience."""
    waits: list[int] = []
    clock = DeviceTime(monkeypatch)

    class Slow(LinkServer):
        def _wait(self, rest: bytes) -> tuple[Status, bytes]:
            waits.append(int.from_bytes(rest, "little"))
            clock.now += waits[-1] * 1e-7
            return Status.OK, rest + b"\0"

    slow = Slow(open_device("interpreter", CONFIG), memory_bytes=MEMORY, granule=CONFIG.port_bytes)
    device = line(slow, patience_s=0.4)
    assert not device.wait(4e6 / device.clock_hz)
    assert device.link.retries == 0
    assert max(waits) * 1e-7 < 0.2
    assert sum(waits) == pytest.approx(4e6, abs=2)
    waits.clear()
    device._adjust_slice(10**9, 1e-3)
    assert device._slice_s <= 0.1


def test_long_transfers_report_their_progress(line: Callable[..., Any]) -> None:
    reports: list[tuple[str, int, int]] = []
    device = line(server(), progress=lambda *report: reports.append(report))
    buffer = device.allocate(MEMORY // 2)
    buffer.flush()
    assert not reports, "too little for a report"
    buffer.close()
    device.allocate(MEMORY).flush()
    assert reports[0][0] == "send, bytes"
    assert reports[-1][1:] == (MEMORY, MEMORY)
    assert all(earlier[1] < later[1] for earlier, later in itertools.pairwise(reports))


def test_another_device_that_answers_is_refused(line: Callable[..., Any]) -> None:
    far = server()
    answers: dict[str, Callable[[bytes], bytes]] = {
        "no edgedec link": lambda data: _changed(data, 2, 0xFF),
        "speaks version 9": lambda data: _changed(data, 6, 9),
        "says of itself what cannot be": lambda data: _changed(data, 8, 3),
        "no answer from": lambda data: b"login: ",
    }
    for message, back in answers.items():
        with pytest.raises(DeviceError, match=message):
            line(far, bytes, back, patience_s=0.01)


def _changed(answer: bytes, at: int, value: int) -> bytes:
    content = bytearray(opened(answer.strip(b"\xc0")) or b"")
    content[at] = value
    return frame(bytes(content))


def test_a_second_owner_is_refused(line: Callable[..., Any]) -> None:
    device = line(server())
    with pytest.raises(DeviceError, match=r"is in use by process .*close that device first"):
        open_device("uart", CONFIG, port=device.link.port)


def test_endless_noise_is_no_answer() -> None:
    noise = random.Random(1).randbytes(5000).replace(b"\xc0", b"\x00")
    with PseudoTerminal(lambda data: noise) as line, pytest.raises(DeviceError, match="no answer from"):
        open_device("uart", CONFIG, port=line.path, patience_s=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_escaped(seed: int) -> None:
    rng = random.Random(seed)
    content = bytes(
        rng.choice([0xC0, 0xDB, 0xDC, 0xDD, rng.randrange(256)]) for _ in range(rng.randrange(2, MOST_FRAME - 4))
    )
    wire = frame(content)
    assert wire[0] == wire[-1] == 0xC0
    assert 0xC0 not in wire[1:-1]
    assert opened(wire[1:-1]) == content
    at = rng.randrange(1, len(wire) - 1)
    assert opened(wire[1:at] + bytes((wire[at] ^ 1,)) + wire[at + 1 : -1]) != content


def test_the_name_on_the_command_line_has_options() -> None:
    options = AcceleratorOptions()
    assert "baud" in check_device("uart:/dev/ttyUSB0", options)
    for device, message in (
        ("uart", "--device uart takes a port: write uart:PORT"),
        ("replay", "--device replay takes a file: write replay:FILE"),
        ("interpreter:x", "--device interpreter takes no file: write interpreter"),
    ):
        with pytest.raises(UsageError, match=message):
            check_device(device, options)
