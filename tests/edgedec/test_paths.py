"""Test the cache folder: the user's own, or an error that says what to set."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from edgedec.errors import EdgedecError
from edgedec.host.paths import cache_folder, config_folder, ignored_folders


@pytest.fixture
def unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a cache folder that cannot be created, and a temporary folder for the fallback."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / f"edgedec-{os.getuid()}"


def test_the_cache_folder_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "b c"))
    assert cache_folder() == tmp_path / "a" / "b c" / "edgedec"
    assert cache_folder().is_dir()


def test_a_temporary_folder_replaces_an_unusable_one(unusable: Path) -> None:
    assert cache_folder() == unusable
    assert unusable.stat().st_mode & 0o777 == 0o700
    assert cache_folder() == unusable


def test_a_folder_that_others_can_write_to_is_refused(unusable: Path) -> None:
    unusable.mkdir(mode=0o700)
    unusable.chmod(0o777)
    with pytest.raises(EdgedecError, match="not this user's alone; set XDG_CACHE_HOME"):
        cache_folder()


def test_a_link_is_refused(unusable: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    unusable.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EdgedecError, match="set XDG_CACHE_HOME"):
        cache_folder()


@pytest.mark.parametrize("value", ["foo", "./foo", "../foo", "~/foo"])
def test_a_relative_path_is_ignored_and_named(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    assert cache_folder() == tmp_path / "home" / ".cache" / "edgedec"
    assert config_folder() == tmp_path / "home" / ".config" / "edgedec"
    assert [entry.name for entry in tmp_path.iterdir()] == ["home"], "nothing is made in the working folder"
    assert ignored_folders() == [
        f"XDG_CACHE_HOME={value!r} is ignored, because it is not an absolute path; ~/.cache counts",
        f"XDG_CONFIG_HOME={value!r} is ignored, because it is not an absolute path; ~/.config counts",
    ]


def test_absolute_and_empty_paths_are_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert ignored_folders() == []
    assert config_folder() == tmp_path / "edgedec"
