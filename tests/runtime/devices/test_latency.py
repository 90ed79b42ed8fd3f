"""Test what is asked of a serial port's driver when it is opened, with stand-ins of Linux's call and its files."""

from __future__ import annotations

import errno
import logging
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.runtime.devices import _link
from edgedec.runtime.devices._latency import ask_low_latency
from edgedec.sim.boards.link_server import PseudoTerminal

FLAGS_AT, LOW_LATENCY = 16, 1 << 13


class Driver:
    """A driver of a serial port.

    Args:
        timer: file of its latency timer; None without one.
        takes_flag: its timer becomes 1 ms with ASYNC_LOW_LATENCY.
    """

    def __init__(self, timer: Path | None, *, takes_flag: bool) -> None:
        self.timer, self.takes_flag, self.flags, self.calls = timer, takes_flag, 0x10, list[int]()

    def __call__(self, file: int, request: int, data: bytearray) -> int:
        self.calls.append(request)
        if not self.takes_flag:
            raise OSError(errno.ENOTTY, "no such setting")
        if request == 0x541E:
            struct.pack_into("=I", data, FLAGS_AT, self.flags)
        else:
            (self.flags,) = struct.unpack_from("=I", data, FLAGS_AT)
            if self.timer is not None and self.flags & LOW_LATENCY:
                self.timer.chmod(0o644)
                self.timer.write_text("1\n")
        return 0


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    def with_timer(value: str) -> tuple[Path, Path]:
        timer = tmp_path / "sys/ttyUSB3/device/latency_timer"
        timer.parent.mkdir(parents=True)
        timer.write_text(value)
        return tmp_path / "ttyUSB3", timer

    return with_timer


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every write of text, as the file of root does to others; tests may run as root."""

    def write_text(path: Path, *arguments: Any, **options: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_text", write_text)


def test_the_flag_is_set_beside_those_that_are_there(
    adapter: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    port, timer = adapter("16\n")
    driver = Driver(timer, takes_flag=True)
    assert ask_low_latency(5, port, sysfs=timer.parents[2], ioctl=driver) == 1
    assert driver.flags == 0x10 | LOW_LATENCY
    assert ask_low_latency(5, port, sysfs=timer.parents[2], ioctl=driver) == 1
    assert driver.calls == [0x541E, 0x541F, 0x541E], "a flag that is set is left alone"
    assert not caplog.records


def test_the_file_is_written_where_the_flag_does_nothing(
    adapter: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    port, timer = adapter("16\n")
    assert ask_low_latency(5, port, sysfs=timer.parents[2], ioctl=Driver(None, takes_flag=False)) == 1
    assert timer.read_text() == "1\n"
    assert not caplog.records


def test_a_refusal_names_port_timer_and_command(
    adapter: Callable[..., Any], caplog: pytest.LogCaptureFixture, refused: None, tmp_path: Path
) -> None:
    """Open the port by a link as those of /dev/serial/by-id: the timer is that of the port behind it."""
    with pytest.raises(PermissionError):
        (tmp_path / "any").write_text("")
    timer = tmp_path / "sys/ttyUSB3/device/latency_timer"
    timer.parent.mkdir(parents=True)
    with timer.open("w") as file:
        file.write("16\n")
    (tmp_path / "ttyUSB3").touch()
    (tmp_path / "by-id").symlink_to(tmp_path / "ttyUSB3")
    held = ask_low_latency(5, tmp_path / "by-id", sysfs=tmp_path / "sys", ioctl=Driver(None, takes_flag=False))
    assert held == 16
    (record,) = caplog.records
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    assert f"{tmp_path / 'by-id'} holds each answer for up to 16 ms" in message
    assert f"echo 1 | sudo tee {timer};" in message
    assert 'ATTR{latency_timer}="1"' in message


@pytest.mark.parametrize("content", [None, "many\n"])
def test_a_port_without_a_timer_is_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    timer = tmp_path / "ttyS0/device/latency_timer"
    if content is not None:
        timer.parent.mkdir(parents=True)
        timer.write_text(content)
    for takes_flag in (False, True):
        assert ask_low_latency(5, Path("/dev/ttyS0"), sysfs=tmp_path, ioctl=Driver(None, takes_flag=takes_flag)) is None
    assert not caplog.records


def test_only_linux_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(None, takes_flag=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ask_low_latency(5, Path("/dev/tty.usbserial"), ioctl=driver) is None
    assert not driver.calls


@pytest.mark.parametrize("pseudo", [False, True])
def test_a_port_is_asked_when_it_is_opened_and_a_pseudo_terminal_is_not(
    pseudo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Path]()
    monkeypatch.setattr(_link, "ask_low_latency", lambda file, port: asked.append(port))
    if not pseudo:
        monkeypatch.setattr(_link, "_PSEUDO_MAJORS", ())
    with PseudoTerminal(lambda data: b"") as line:
        file, found = _link._open_port(line.path, 9600)
        os.close(file)
        assert found == pseudo
        assert asked == ([] if pseudo else [line.path])
