"""Test the search for a Python of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pythons import find_python


def write_program(path: Path, code: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "pyenv/versions"


def test_a_program_on_the_path_comes_first(tmp_path: Path, pyenv: Path) -> None:
    write_program(pyenv / "3.10.13/bin/python3.10", 0)
    assert find_python("3.10") == pyenv / "3.10.13/bin/python3.10"
    program = write_program(tmp_path / "bin/python3.10", 1)
    assert find_python("3.10") == pyenv / "3.10.13/bin/python3.10", "the one on the PATH does not start"
    write_program(program, 0)
    assert find_python("3.10") == program


def test_the_newest_of_pyenv_is_taken(pyenv: Path) -> None:
    for name in ("3.10.9", "3.10.13", "3.1.20"):
        write_program(pyenv / name / f"bin/python{name.rpartition('.')[0]}", 0)
    assert find_python("3.10") == pyenv / "3.10.13/bin/python3.10"
    assert find_python("3.11") is None
