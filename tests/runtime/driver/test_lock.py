"""Test one process at a time: the lock, its notes, and what a killed process leaves."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from edgedec.errors import DeviceError
from edgedec.runtime.driver.lock import DeviceLock

HOLDER = """
import sys
from pathlib import Path
from edgedec.runtime.driver.lock import DeviceLock
lock = DeviceLock("pynq-board", folder=Path(sys.argv[1]))
lock.note(bitstream="/home/a.bit", address=0xA0000000)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return another process, which holds the lock."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(
        DeviceError, match=rf"pynq-board is in use by process {holder.pid} \(.*python.*kill {holder.pid}"
    ):
        DeviceLock("pynq-board", folder=tmp_path)
    DeviceLock("pynq-other", folder=tmp_path).release()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """Check that its note tells what it left."""
    holder.kill()
    holder.wait()
    lock = DeviceLock("pynq-board", folder=tmp_path)
    assert lock.left["pid"] == holder.pid
    assert lock.left["address"] == 0xA0000000
    lock.release()
    lock.release()
    again = DeviceLock("pynq-board", folder=tmp_path)
    assert not again.left
    again.release()


def test_a_second_lock_of_one_process_is_refused(tmp_path: Path) -> None:
    lock = DeviceLock("pynq-board", folder=tmp_path)
    with pytest.raises(DeviceError, match=rf"in use by process {os.getpid()} .*close that device first"):
        DeviceLock("pynq-board", folder=tmp_path)
    lock.release()
    DeviceLock("pynq-board", folder=tmp_path).release()


def test_a_note_from_before_a_reboot_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "edgedec-pynq-board.lock").write_text('{"pid": 1, "boot": "another", "address": 4096}')
    lock = DeviceLock("pynq-board", folder=tmp_path)
    assert not lock.left
    lock.release()


@pytest.mark.parametrize("text", ["", "{", "[1]", "\0" * 100, '{"pid": "x"}'])
def test_a_damaged_note_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "edgedec-pynq-board.lock").write_text(text)
    lock = DeviceLock("pynq-board", folder=tmp_path)
    assert not lock.left
    (tmp_path / "edgedec-pynq-board.lock").write_text(text)  # changed by another program while the lock is held
    with pytest.raises(DeviceError, match="in use by another process; wait until it has ended"):
        DeviceLock("pynq-board", folder=tmp_path)
    lock.release()


def test_lock_names_are_file_names_that_all_may_write(tmp_path: Path) -> None:
    lock = DeviceLock("pynq/../KV 260", folder=tmp_path)
    assert lock.path == tmp_path / "edgedec-pynq-..-KV-260.lock"
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    lock.release()


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be made: its folder is missing"):
        DeviceLock("pynq", folder=tmp_path / "none")
    (tmp_path / "edgedec-pynq.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeviceError, match="cannot be opened"):
        DeviceLock("pynq", folder=tmp_path)
    assert not (tmp_path / "elsewhere").exists()
