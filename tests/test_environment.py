"""`.ci/environment` with stand-ins for Python: which one it takes, what it says of others, when it installs anew."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

# Answers the question of its age as told; as `-m venv` copies itself to .venv, as pip writes down what it was asked.
STAND_IN = """#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "${*##* }/bin" "${*##* }/lib/python3/site-packages" && cp "$0" "${*##* }/bin/python" &&
    echo venv >> calls ;;
  "-m pip "*) echo "${*##* }" >> calls && [ ! -e offline ] ;;
  *) echo "ANSWER" ;;
esac
"""
TOOLS = ("sh", "dirname", "cat", "cksum", "rm", "mkdir", "cp", "sed", "ln")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def checkout(tmp_path: Path, project_root: Path) -> Path:
    """A folder, with a space in its name, that holds what the script reads."""
    folder = tmp_path / "a checkout"
    (folder / ".ci").mkdir(parents=True)
    for name in (".ci/environment", "pyproject.toml", "setup.py"):
        shutil.copy(project_root / name, folder / name)
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str, str], None]:
    """Adds a command of that name to the PATH below, which answers so."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found
        (tmp_path / "bin" / tool).symlink_to(found)

    def add(name: str, answer: str) -> None:
        (tmp_path / "bin" / name).write_text(STAND_IN.replace("ANSWER", answer))
        (tmp_path / "bin" / name).chmod(0o755)

    return add


@pytest.fixture
def run(tmp_path: Path, checkout: Path) -> Run:
    def run(kind: str, folder: Path = checkout, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(folder / ".ci" / "environment"), kind]
        environment = {"PATH": str(tmp_path / "bin"), **variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def calls(folder: Path) -> list[str]:
    lines = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    (folder / "calls").unlink(missing_ok=True)
    return lines


@pytest.mark.usefixtures("python")
def test_no_python_is_named(run: Run, checkout: Path) -> None:
    done = run("run")
    assert done.returncode == 3
    assert "no python3 that runs" in done.stderr
    assert "Install Python 3.11 or newer" in done.stderr
    assert not (checkout / ".venv").exists()


def test_an_old_python_is_named(run: Run, python: Callable[[str, str], None]) -> None:
    python("python3", "old complete 3.9.2")
    done = run("check")
    assert done.returncode == 3
    assert "python3 is 3.9.2, too old" in done.stderr


def test_a_python_without_venv_gets_the_command_that_adds_it(run: Run, python: Callable[[str, str], None]) -> None:
    python("python3", "old complete 3.10.1")
    python("python3.12", "new bare 3.12.3")
    done = run("check")
    assert done.returncode == 3
    assert "python3.12 is 3.12.3, without the modules venv and ensurepip" in done.stderr
    assert "sudo apt install python3.12-venv" in done.stderr


def test_first_python_that_fits_is_taken(run: Run, checkout: Path, python: Callable[[str, str], None]) -> None:
    python("python3", "old complete 3.9.2")
    python("python3.13", "new bare 3.13.1")
    python("python3.11", "new complete 3.11.4")
    done = run("run")
    assert done.returncode == 0, done.stderr
    assert "Making .venv with python3.11 (3.11.4)" in done.stdout
    assert calls(checkout) == ["venv", "."]


def test_python_of_the_user_is_the_only_candidate(run: Run, python: Callable[[str, str], None]) -> None:
    python("python3", "new complete 3.11.4")
    python("mine", "old complete 3.8.1")
    done = run("check", PYTHON="mine")
    assert done.returncode == 3
    assert "mine is 3.8.1, too old" in done.stderr
    assert "python3 is" not in done.stderr


def test_installs_once_until_something_changes(
    run: Run, checkout: Path, python: Callable[[str, str], None], tmp_path: Path
) -> None:
    python("python3", "new complete 3.12.1")

    def done(kind: str, folder: Path = checkout) -> list[str]:
        assert run(kind, folder).returncode == 0
        return calls(folder)

    assert done("check") == []
    assert done("run") == ["venv", "."]
    assert done("run") == []
    assert done("dev") == [".[dev,hdl]"]
    assert done("run") == []
    assert done("all") == [".[dev,hdl,train,compare]"]
    assert done("dev") == []
    (checkout / "pyproject.toml").write_text("changed")
    assert done("dev") == [".[dev,hdl]"]
    assert done("all") == [".[dev,hdl,train,compare]"]
    (checkout / ".venv" / "bin" / "python").unlink()
    assert done("dev") == ["venv", ".[dev,hdl]"]
    moved = checkout.rename(tmp_path / "moved")
    assert done("dev", moved) == ["venv", ".[dev,hdl]"]


def test_board_has_an_environment_of_its_own(run: Run, checkout: Path, python: Callable[[str, str], None]) -> None:
    """With the requirements of pyproject.toml, and all folders linked anew each time."""
    python("python3", "new complete 3.13.2")
    python("python3.12", "new complete 3.12.1")
    (checkout / "edgedec").mkdir()
    (checkout / "edgedec" / "device.py").touch()
    (checkout / "hw").mkdir()
    assert run("board").returncode == 0
    assert calls(checkout) == ["venv", "hypothesis>=6.120"]
    tree = checkout / ".venv-board" / "tree"
    assert (checkout / ".venv-board/lib/python3/site-packages/edgedec.pth").read_text().strip() == str(tree)
    assert (tree / "edgedec" / "device.py").exists()
    (checkout / "runtime").mkdir()
    assert run("board").returncode == 0
    assert calls(checkout) == []
    assert sorted(path.name for path in (tree / "edgedec").iterdir()) == ["device.py", "hw", "runtime"]
    assert run("board-all").returncode == 0
    assert run("board").returncode == 0
    assert calls(checkout) == ["hypothesis>=6.120"]
    assert not (checkout / ".venv").exists()


def test_board_needs_a_python_that_pynq_runs_on(run: Run, python: Callable[[str, str], None]) -> None:
    python("python3", "new complete 3.13.2")
    done = run("board")
    assert done.returncode == 3
    assert "python3 is 3.13.2, too new for the NumPy that pynq needs" in done.stderr
    assert "Install Python 3.12" in done.stderr


def test_failed_installation_is_told_and_tried_again(
    run: Run, checkout: Path, python: Callable[[str, str], None]
) -> None:
    python("python3", "new complete 3.12.1")
    (checkout / "offline").touch()
    done = run("run")
    assert done.returncode == 1
    assert "check the network" in done.stderr
    (checkout / "offline").unlink()
    calls(checkout)
    assert run("run").returncode == 0
    assert calls(checkout) == ["."]


def test_unknown_kind_is_a_usage_error(run: Run, python: Callable[[str, str], None]) -> None:
    python("python3", "new complete 3.12.1")
    assert run("everything").returncode == 2
