"""Test loading with a fake openFPGALoader."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from edgedec.boards import find_board
from edgedec.boards.flows.load import find_loader, load_bitstream
from edgedec.errors import DeviceError, ToolError, UnsupportedError

BOARD = find_board("ulx3s-85f")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Install a program openFPGALoader, first on the PATH."""
    folder.mkdir()
    path = folder / "openFPGALoader"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return path


def test_the_loader_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", monkeypatch, f'echo "$@" > {tmp_path}/words')
    load_bitstream(BOARD, tmp_path / "a b.bit")
    assert (tmp_path / "words").read_text() == f"-b ulx3s {tmp_path}/a b.bit\n"


def test_a_missing_loader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=r"openFPGALoader is not on the PATH; install it .*, or leave --load out"):
        load_bitstream(BOARD, tmp_path / "a.bit")
    bundle = r"kv260 has no name in openFPGALoader; leave --load out, and copy the board bundle with edgedec deploy"
    with pytest.raises(UnsupportedError, match=bundle):
        find_loader(find_board("kv260"))
    own = replace(BOARD, name="my-board", loader=None, loads=None)
    with pytest.raises(
        UnsupportedError, match=r"leave --load out, and load the \.bit with the board's own program, or .*"
    ):
        find_loader(own)


def test_a_failing_loader_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = install(tmp_path / "bin", monkeypatch, "echo empty; echo; echo unable to open ftdi device: -3 >&2; exit 1")
    message = r"could not load a.bit into ulx3s-85f: empty; unable to open ftdi device: -3; check the cable"
    with pytest.raises(DeviceError, match=message):
        load_bitstream(BOARD, tmp_path / "a.bit")
    with pytest.raises(
        DeviceError, match=r"check the cable, that you may use the device, and that the board's bootloader"
    ):
        load_bitstream(find_board("orangecrab-85f"), tmp_path / "a.bit")
    path.write_bytes(b"\0\0")
    with pytest.raises(ToolError, match=r"openFPGALoader does not start"):
        load_bitstream(BOARD, tmp_path / "a.bit")
    path.write_text("#!/bin/sh\nexec sleep 20\n")
    monkeypatch.setattr("edgedec.boards.flows.load._TIMEOUT_S", 0.2)
    with pytest.raises(DeviceError, match=r"did not end within 0\.2 s; check the cable"):
        load_bitstream(BOARD, tmp_path / "a.bit")
