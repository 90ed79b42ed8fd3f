"""Test `.ci/environment` with fake Pythons: the one that it uses, its messages about others, and when it installs
again.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

# script that answers the question of its age as configured, copies itself to .venv like `-m venv`, and logs its
# arguments like pip
STAND_IN = """#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "${*##* }/bin" "${*##* }/lib/python3/site-packages" && cp "$0" "${*##* }/bin/python" &&
    echo venv >> calls ;;
  "-m pip "*) echo "${*##* }" >> calls && cat says 2> /dev/null; [ ! -e offline ] ;;
  *) echo "ANSWER" ;;
esac
"""
TOOLS = ("sh", "dirname", "cat", "cksum", "rm", "mkdir", "cp", "sed", "ln", "date", "tail")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def checkout(tmp_path: Path, project_root: Path) -> Path:
    """Make a folder, with a space in its name, that holds what the script reads."""
    folder = tmp_path / "a checkout"
    (folder / ".ci").mkdir(parents=True)
    for name in (".ci/environment", "pyproject.toml", "setup.py"):
        shutil.copy(project_root / name, folder / name)
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str, str], None]:
    """Return a function that adds a command of that name to the PATH, with given answers."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        path = shutil.which(tool)
        assert path
        (tmp_path / "bin" / tool).symlink_to(path)

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
def test_a_missing_python_is_reported(run: Run, checkout: Path) -> None:
    process = run("run")
    assert process.returncode == 3
    assert "no python3 that runs" in process.stderr
    assert "Install Python 3.11 or newer" in process.stderr
    assert not (checkout / ".venv").exists()


def test_an_old_python_is_reported(run: Run, python: Callable[[str, str], None]) -> None:
    python("python3", "old complete 3.9.2")
    process = run("check")
    assert process.returncode == 3
    assert "python3 is 3.9.2, too old" in process.stderr


def test_a_python_without_venv_gets_the_command_that_adds_it(run: Run, python: Callable[[str, str], None]) -> None:
    python("python3", "old complete 3.10.1")
    python("python3.12", "new bare 3.12.3")
    process = run("check")
    assert process.returncode == 3
    assert "python3.12 is 3.12.3, without the modules venv and ensurepip" in process.stderr
    assert "sudo apt install python3.12-venv" in process.stderr


def test_first_python_that_fits_is_taken(run: Run, checkout: Path, python: Callable[[str, str], None]) -> None:
    python("python3", "old complete 3.9.2")
    python("python3.13", "new bare 3.13.1")
    python("python3.11", "new complete 3.11.4")
    process = run("run")
    assert process.returncode == 0, process.stderr
    assert "Making .venv with python3.11 (3.11.4)" in process.stdout
    assert calls(checkout) == ["venv", ".[onnx]"]


def test_python_of_the_user_is_the_only_candidate(run: Run, python: Callable[[str, str], None]) -> None:
    python("python3", "new complete 3.11.4")
    python("mine", "old complete 3.8.1")
    process = run("check", PYTHON="mine")
    assert process.returncode == 3
    assert "mine is 3.8.1, too old" in process.stderr
    assert "python3 is" not in process.stderr


def test_the_environment_is_installed_again_after_a_change_only(
    run: Run, checkout: Path, python: Callable[[str, str], None], tmp_path: Path
) -> None:
    python("python3", "new complete 3.12.1")
    python("c++", "")

    def done(kind: str, folder: Path = checkout) -> list[str]:
        assert run(kind, folder).returncode == 0
        return calls(folder)

    assert done("check") == []
    assert done("run") == ["venv", "."]
    assert done("run") == []
    assert done("dev") == [".[dev,hdl,serve,gpu]"]
    assert done("run") == []
    assert done("all") == [".[dev,hdl,serve,gpu,train,compare]"]
    assert done("dev") == []
    (checkout / "pyproject.toml").write_text("changed")
    assert done("dev") == [".[dev,hdl,serve,gpu]"]
    assert done("all") == [".[dev,hdl,serve,gpu,train,compare]"]
    (checkout / ".venv" / "bin" / "python").unlink()
    assert done("dev") == ["venv", ".[dev,hdl,serve,gpu]"]
    moved_checkout = checkout.rename(tmp_path / "moved")
    assert done("dev", moved_checkout) == ["venv", ".[dev,hdl,serve,gpu]"]


def test_a_board_has_an_environment_of_its_own(run: Run, checkout: Path, python: Callable[[str, str], None]) -> None:
    """Check the requirements of pyproject.toml, and that all folders are linked again each time."""
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
    process = run("board")
    assert process.returncode == 3
    assert "python3 is 3.13.2, too new for the NumPy that pynq needs" in process.stderr
    assert "Install Python 3.12" in process.stderr


def test_a_failed_installation_is_reported_and_repeated(
    run: Run, checkout: Path, python: Callable[[str, str], None]
) -> None:
    python("python3", "new complete 3.12.1")
    (checkout / "offline").touch()
    process = run("run")
    assert process.returncode == 1
    assert "check the network" in process.stderr
    (checkout / "offline").unlink()
    calls(checkout)
    assert run("run").returncode == 0
    assert calls(checkout) == [".[onnx]"]


@pytest.mark.parametrize(
    ("kind", "with_compiler", "without"), [("run", ".", ".[onnx]"), ("train", ".[train]", ".[train,onnx]")]
)
def test_onnx_runtime_is_installed_where_no_kernels_can_be_compiled(
    run: Run, checkout: Path, python: Callable[[str, str], None], kind: str, with_compiler: str, without: str
) -> None:
    python("python3", "new complete 3.12.1")
    python("mycxx", "")
    assert run(kind).returncode == 0
    assert calls(checkout) == ["venv", without]
    shutil.rmtree(checkout / ".venv")
    assert run(kind, CXX="mycxx -O2").returncode == 0
    assert calls(checkout) == ["venv", with_compiler]
    shutil.rmtree(checkout / ".venv")
    python("g++", "")
    assert run(kind).returncode == 0
    assert calls(checkout) == ["venv", with_compiler]


PIP_SAYS = """Obtaining file:///a%20checkout
Collecting numpy>=2.0
  Downloading numpy.whl (16.8 MB)
Building wheels for collected packages: edgedec-toolchain
  Building editable for edgedec-toolchain (pyproject.toml): started
  Building editable for edgedec-toolchain (pyproject.toml): still running...
  Building editable for edgedec-toolchain (pyproject.toml): finished with status 'done'
Installing collected packages: numpy, edgedec-toolchain
Successfully installed numpy
"""


def stages(process: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of the stages without their seconds."""
    return [line.split(" ...")[0].strip() for line in process.stdout.splitlines() if line.startswith("  ")]


def test_the_output_of_pip_goes_to_a_log_and_its_stages_are_named(
    run: Run, checkout: Path, python: Callable[[str, str], None]
) -> None:
    python("python3", "new complete 3.12.1")
    python("g++", "")
    (checkout / "says").write_text(PIP_SAYS)
    process = run("run")
    assert process.returncode == 0, process.stderr
    assert stages(process) == [
        "looking for packages",
        "downloading packages",
        "compiling the CPU kernels: about a minute",
        "installing packages",
    ]
    assert "numpy" not in process.stdout + process.stderr
    assert (checkout / ".venv/install.log").read_text() == f"{PIP_SAYS}pip ended with status 0\n"


def test_nothing_is_compiled_without_a_compiler(run: Run, checkout: Path, python: Callable[[str, str], None]) -> None:
    python("python3", "new complete 3.12.1")
    (checkout / "says").write_text(PIP_SAYS)
    assert "building edgedec without a C++ compiler" in stages(run("run"))
    python("mine", "")
    assert "compiling the CPU kernels: about a minute" in stages(run("dev", CXX="mine -m64"))


def test_a_failure_shows_the_end_of_the_log(run: Run, checkout: Path, python: Callable[[str, str], None]) -> None:
    python("python3", "new complete 3.12.1")
    (checkout / "offline").touch()
    many = "".join(f"line {number} of pip\n" for number in range(40))
    (checkout / "says").write_text(
        "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken\n"
        f"{many}ERROR: No matching distribution found for setuptools>=77 \\n 100%\n"
    )
    process = run("run")
    assert process.returncode == 1
    assert "ERROR: No matching distribution found for setuptools>=77 \\n 100%" in process.stderr
    assert "line 39 of pip" in process.stderr
    assert "line 2 of pip" not in process.stderr
    assert f"{checkout}/.venv/install.log" in process.stderr
    assert "check the network or the proxy" in process.stderr
    assert stages(process)[-1] == "the package index does not answer, pip tries again"
    assert not (checkout / ".venv/.run").exists()


def test_an_unknown_kind_is_a_usage_error(run: Run, python: Callable[[str, str], None]) -> None:
    python("python3", "new complete 3.12.1")
    assert run("everything").returncode == 2
