"""Test a run's folder: its refusals, what survives a fault, and its plot."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from edgedec.errors import BundleError, EdgedecError, UsageError
from edgedec.quantize.distil.run_folder import RunFolder

pytestmark = pytest.mark.compare

CONFIGURATION: dict[str, Any] = {"schedule": {"steps": 4, "learning_rate": 1e-3}, "text": ["ab"], "autocast": False}
STATE: dict[str, Any] = {"model": {"a": torch.arange(1000.0)}, "optimizer": {}, "step": 3}
ROW = {"step": 2, "loss": 1.5, "text": 1.25, "valid": 1.0, "rate": 1e-3, "tokens_per_second": 77}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(path=tmp_path / "out.run")


def test_a_run_is_resumed_after_its_first_checkpoint(folder: RunFolder) -> None:
    assert folder.configuration() == {}
    assert folder.begin(CONFIGURATION) is False
    assert folder.configuration() == CONFIGURATION
    assert folder.begin(CONFIGURATION) is False, "nothing to resume yet"
    folder.save(STATE)
    assert folder.begin(CONFIGURATION) is True
    assert torch.equal(folder.load()["model"]["a"], STATE["model"]["a"])


def test_changed_settings_are_named_with_both_values(folder: RunFolder) -> None:
    folder.begin(CONFIGURATION)
    changed = CONFIGURATION | {"schedule": {"steps": 5, "learning_rate": 1e-3}, "autocast": True, "new": "x"}
    with pytest.raises(UsageError) as caught:
        folder.begin(changed)
    message = str(caught.value)
    assert "autocast was False, is True; new was None, is 'x'; schedule.steps was 4, is 5. Give the old" in message
    assert "learning_rate" not in message
    assert "--restart" in message
    assert folder.configuration() == CONFIGURATION


def test_restart_keeps_the_text_only(folder: RunFolder) -> None:
    """Check this because the sampled text once made the folder look like another program's."""
    folder.begin(CONFIGURATION)
    folder.save(STATE)
    folder.keep_rows(0)
    (folder.path / "text-1").mkdir()
    (folder.path / "text-1" / "00000.npy").write_text("text")
    changed = CONFIGURATION | {"autocast": True}
    assert folder.begin(changed, restart=True) is False
    assert folder.configuration() == changed
    assert sorted(path.name for path in folder.path.iterdir()) == ["run.json", "text-1"]


@pytest.mark.parametrize("restart", [False, True])
def test_another_folder_is_not_touched(folder: RunFolder, restart: bool) -> None:
    folder.path.mkdir()
    (folder.path / "checkpoint.pt").write_text("somebody's")
    with pytest.raises(UsageError, match=r"out\.run: it holds other files and no run\.json; choose another -o"):
        folder.begin(CONFIGURATION, restart=restart)
    assert folder.checkpoint.read_text() == "somebody's"


def test_a_file_in_place_of_the_folder_is_refused(folder: RunFolder) -> None:
    folder.path.write_text("")
    with pytest.raises(UsageError, match=r"out\.run: it is a file; choose another -o"):
        folder.configuration()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_damaged_settings_are_refused(folder: RunFolder, content: bytes) -> None:
    folder.path.mkdir()
    folder.settings.write_bytes(content)
    with pytest.raises(BundleError, match=r"run\.json is damaged; add --restart"):
        folder.begin(CONFIGURATION)
    folder.begin(CONFIGURATION, restart=True)
    assert folder.configuration() == CONFIGURATION


@pytest.mark.parametrize("damage", ["empty", "cut", "one bit", "another object", "no archive"])
def test_a_damaged_checkpoint_is_refused(folder: RunFolder, damage: str) -> None:
    """Check this because torch itself loads a file with a flipped bit."""
    folder.begin(CONFIGURATION)
    folder.save(STATE)
    whole = bytearray(folder.checkpoint.read_bytes())
    if damage == "one bit":
        whole[len(whole) // 2] ^= 1
        folder.checkpoint.write_bytes(whole)
    elif damage == "another object":
        torch.save([1, 2], folder.checkpoint)
    else:
        folder.checkpoint.write_bytes({"empty": b"", "cut": bytes(whole[:-100]), "no archive": b"x" * 5000}[damage])
    with pytest.raises(BundleError, match=r"checkpoint\.pt is damaged; add --restart to train from the beginning"):
        folder.load()


@pytest.mark.parametrize("before", [False, True])
def test_a_full_disk_leaves_the_checkpoint_before(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    folder.begin(CONFIGURATION)
    if before:
        folder.save(STATE)

    class Full:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            self.stream.close()

        def write(self, data: bytes) -> int:
            if self.stream.tell() > 2000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return int(self.stream.write(data))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

    real = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *rest: Full(real(path, *rest)) if "partial" in path.name else None)
    with pytest.raises(EdgedecError) as caught:
        folder.save(STATE | {"step": 4})
    monkeypatch.undo()
    message = str(caught.value)
    assert f"cannot write {folder.checkpoint}: the disk is full; free some space and run again" in message
    assert ("the previous checkpoint is intact" if before else "there was no previous checkpoint") in message
    if before:
        assert folder.load()["step"] == 3
    assert {path.name for path in folder.path.iterdir()} == {"run.json", *(["checkpoint.pt"] if before else [])}


def test_rows_survive_a_round_trip(folder: RunFolder) -> None:
    folder.begin(CONFIGURATION)
    folder.keep_rows(0)
    for step in (2, 4, 6):
        folder.add_row(ROW | {"step": step})
    content = folder.losses.read_bytes()
    folder.keep_rows(6)
    assert folder.losses.read_bytes() == content
    folder.keep_rows(4)
    assert folder.losses.read_bytes() == b"".join(content.splitlines(keepends=True)[:3])


@pytest.mark.parametrize("tail", [b"8,1.5,1.2", b"8,1.5,1.25,1.0,0.001,", b"8,1.5,x,1.0,0.001,5", b"\xff\xfe,,", b"\0"])
def test_an_incomplete_row_is_dropped(folder: RunFolder, tail: bytes) -> None:
    folder.begin(CONFIGURATION)
    folder.keep_rows(0)
    folder.add_row(ROW)
    whole = folder.losses.read_bytes()
    folder.losses.write_bytes(whole + tail)
    folder.keep_rows(9)
    assert folder.losses.read_bytes() == whole


def test_a_row_that_cannot_be_written_is_an_error(folder: RunFolder) -> None:
    folder.losses.mkdir(parents=True)
    with pytest.raises(EdgedecError, match=r"cannot write .*loss\.csv: Is a directory; free some space"):
        folder.add_row(ROW)


@pytest.mark.parametrize("rows", [0, 1, 12])
def test_the_plot_is_a_picture(folder: RunFolder, rows: int) -> None:
    pytest.importorskip("matplotlib")
    folder.begin(CONFIGURATION)
    folder.keep_rows(0)
    for step in range(rows):
        folder.add_row(ROW | {"step": step})
    folder.plot("a title")
    data = folder.picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert len(data) > 5000
