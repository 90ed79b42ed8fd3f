"""Test the commands that install what is missing, and that no file names a command that could fetch another project's
edgedec.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedec.host import install_hint
from edgedec.host.install_hint import (
    DISTRIBUTION,
    install_again,
    install_extra,
    install_package,
    pip_install,
    pip_uninstall,
)

FOLDERS = ("edgedec", "hw", "quantize", "runtime", "boards", "sim")
NAME = "edgedec"

PROJECT = """\
[project]
name = "edgedec-toolchain"
dependencies = ["one>=1,<2", "two_words>=3"]
[project.optional-dependencies]
hdl = ["three==4", "five>=6; platform_machine in 'x86_64'"]
"""
METADATA = """\
Metadata-Version: 2.4
Name: edgedec-toolchain
Version: 1
Requires-Dist: one<2,>=1
Requires-Dist: two_words>=3
Provides-Extra: hdl
Requires-Dist: three==4; extra == "hdl"
Requires-Dist: five>=6; platform_machine in "x86_64 AMD64" and extra == 'hdl'
Provides-Extra: other
Requires-Dist: seven; extra == "other"
"""
FOREIGN = """\
Metadata-Version: 2.1
Name: edgedec
Version: 0.4
Requires-Dist: foreign
Requires-Dist: foreign; extra == "hdl"
"""

# commands and addresses that look the name of this project up in an index, or make a reader do so
_REACHES_AN_INDEX = (
    re.compile(rf"\b{NAME}(?:-toolchain)?\\?\["),
    re.compile(rf"\b(?:install|add)\b(?:[ \t]+-[\w=-]+)*[ \t]+[\"'\\]*{NAME}(?:-toolchain)?(?![\w/'-])"),
    re.compile(
        rf"\b(?:pip3?|pipx|uvx?|conda|poetry)\b[^\n`;&|]*[ \t\"']{NAME}(?:-toolchain)?(?=[\s\"`<>=!~@,)]|'(?!\w)|$)",
        re.M,
    ),
)
_PIP_COMMAND = re.compile(r"\bpip3? (?:un)?install\b")
# commands for another interpreter than the running one
_ELSEWHERE = {
    "edgedec/host/install_hint.py": "makes them",
    "boards/flows/ecp5/project.py": "the README of a folder that is built on any machine",
    "runtime/deploy/board_checks.py": "the board's Python",
}


def reaching(text: str) -> list[str]:
    """Return the pieces of a text that could fetch a distribution with this project's name."""
    return [match[0] for pattern in _REACHES_AN_INDEX for match in pattern.finditer(text)]


def texts(root: Path) -> Iterator[Path]:
    """Yield every file of the project that a person reads or runs."""
    yield from (path for path in root.glob("*") if path.is_file() and path.suffix in ("", ".md", ".toml", ".py", ".in"))
    for folder in (*FOLDERS, "tests", "benchmarks", "docs", ".ci"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix in ("", ".md", ".py", ".sh", ".txt"):
                yield path


def written_commands(root: Path) -> dict[str, list[str]]:
    """Return file -> string constants of the packages with a pip command; docstrings and comments do not count."""
    commands: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            prose = {
                id(node.body[0].value)
                for node in ast.walk(tree)
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.body
                and isinstance(node.body[0], ast.Expr)
            }
            for node in ast.walk(tree):
                if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in prose:
                    continue
                if _PIP_COMMAND.search(node.value):
                    commands.setdefault(path.relative_to(root).as_posix(), []).append(node.value)
    return commands


def named_extras(root: Path) -> set[str]:
    """Return the extras that the packages name in calls of ``install_extra``."""
    calls = re.compile(r"install_extra\([\"'](\w+)[\"']\)")
    paths = (path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return {extra for path in paths for extra in calls.findall(path.read_text("utf-8"))}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a checkout, in a folder with spaces, from which edgedec runs."""
    root = tmp_path / "a check out"
    (root / "edgedec").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT)
    monkeypatch.setattr(install_hint, "__file__", str(root / "edgedec" / "host" / "install_hint.py"))
    monkeypatch.setattr(sys, "executable", str(root / ".venv" / "bin" / "python"))
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a folder of installed packages from which edgedec runs, next to the foreign project's."""
    folder = tmp_path / "site"
    for name, text in ((NAME, FOREIGN), ("edgedec_toolchain", METADATA)):
        (folder / f"{name}-1.dist-info").mkdir(parents=True)
        (folder / f"{name}-1.dist-info" / "METADATA").write_text(text)
    (folder / "pyproject.toml").write_text('[project]\nname = "another"\n')
    monkeypatch.setattr(install_hint, "__file__", str(folder / "edgedec" / "host" / "install_hint.py"))
    monkeypatch.setattr(sys, "executable", "/opt/py/bin/python3")
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


def test_a_checkout_is_installed_from_its_folder(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = ".venv/bin/python -m pip"
    assert install_extra("hdl") == f"{python} install -e '.[hdl]'"
    assert install_again() == f"run: {python} install -e ."
    assert install_package("one") == f"{python} install 'one>=1,<2'"
    assert install_package("Two-Words") == f"{python} install 'two_words>=3'"
    assert install_package("five") == f"{python} install 'five>=6'", "a marker is for pip to judge, not for a shell"
    assert install_package("not_declared") == f"{python} install not-declared"
    assert pip_uninstall("one") == f"{python} uninstall -y one"
    with pytest.raises(KeyError, match="no extra 'hdll'"):
        install_extra("hdll")

    monkeypatch.chdir(checkout / "edgedec")
    root = shlex.quote(f"{checkout}/.venv/bin/python")
    assert install_extra("hdl") == f"{root} -m pip install -e '{checkout}[hdl]'"
    monkeypatch.chdir(checkout.parent)
    assert install_extra("hdl") == "'a check out/.venv/bin/python' -m pip install -e './a check out[hdl]'"


def test_a_checkout_with_the_foreign_name_is_installed_from_its_folder(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkout.rename(checkout.parent / NAME)
    monkeypatch.setattr(install_hint, "__file__", str(folder / "edgedec" / "host" / "install_hint.py"))
    monkeypatch.chdir(folder.parent)
    assert install_extra("hdl").endswith(" -m pip install -e './" + NAME + "[hdl]'")
    assert install_again().endswith(f" -m pip install -e ./{NAME}")


def test_an_installed_wheel_gets_its_requirements(site: Path) -> None:
    python = "/opt/py/bin/python3 -m pip install"
    assert install_extra("hdl") == f"{python} three==4 'five>=6'"
    assert install_extra("other") == f"{python} seven"
    assert install_package("one") == f"{python} 'one<2,>=1'"
    assert install_again() == "build the wheel of edgedec-toolchain again from its checkout, and install it"
    with pytest.raises(KeyError):
        install_extra("hdll")


def test_an_unknown_copy_gets_commands_with_a_placeholder(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert install_extra("hdl") == "/opt/py/bin/python3 -m pip install -e 'CHECKOUT[hdl]'"
    assert install_again() == "run: /opt/py/bin/python3 -m pip install -e CHECKOUT"
    assert install_package("one") == "/opt/py/bin/python3 -m pip install one"


def test_a_removed_working_folder_is_no_error(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert f"'{checkout}[hdl]'" in install_extra("hdl")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("uv", "modules", "command"),
    [
        ("/bin/uv", set(), "uv pip install --python {python} 'x>=1'"),
        ("/bin/uv", {"pip"}, "{python} -m pip install 'x>=1'"),
        (None, {"ensurepip"}, "{python} -m ensurepip && {python} -m pip install 'x>=1'"),
        (None, set(), "{python} -m pip install 'x>=1'"),
    ],
)
def test_an_interpreter_without_pip_gets_advice(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, uv: str | None, modules: set[str], command: str
) -> None:
    monkeypatch.setattr(install_hint, "find_spec", lambda name: object() if name in modules else None)
    monkeypatch.setattr("shutil.which", lambda name: uv)
    assert pip_install("x>=1") == command.format(python=".venv/bin/python")
    removed = "uv pip uninstall --python {python} x" if command.startswith("uv") else "{python} -m pip uninstall -y x"
    assert pip_uninstall("x") == removed.format(python=".venv/bin/python")


def test_a_shell_runs_the_command(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the interpreter gets each argument whole, with the spaces in its own path and in the checkout's."""
    python = tmp_path / "it's a venv" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.chdir(checkout / "edgedec")
    process = subprocess.run(install_extra("hdl"), shell=True, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines() == ["-m", "pip", "install", "-e", f"{checkout}[hdl]"]


def test_this_project_has_the_name_in_the_commands(project_root: Path) -> None:
    assert f'\nname = "{DISTRIBUTION}"' in (project_root / "pyproject.toml").read_text("utf-8")
    extras = named_extras(project_root)
    assert {"hdl", "train", "plot", "gguf", "gpu", "ray", "board"} <= extras
    for extra in extras:
        assert f"[{extra}]" in install_extra(extra)


@pytest.mark.thorough
def test_no_file_reaches_the_foreign_project(project_root: Path) -> None:
    paths = list(texts(project_root))
    assert {"README.md", "pyproject.toml", "Makefile", "environment", "installing.md"} <= {path.name for path in paths}
    assert {str(path): words for path in paths if (words := reaching(path.read_text("utf-8", "replace")))} == {}


@pytest.mark.thorough
def test_commands_are_written_in_one_place(project_root: Path) -> None:
    assert {file: lines for file, lines in written_commands(project_root).items() if file not in _ELSEWHERE} == {}


@pytest.mark.parametrize(
    "line",
    [
        f"pip install {NAME}",
        f"    python -m pip install -U {NAME}>=0.1",
        f'run: "pip install numpy {NAME}"',
        f"pip install '{NAME}[hdl]'",
        f"pip install {DISTRIBUTION}",
        f"'{DISTRIBUTION}[hdl]'",
        f"uv add {NAME}",
        f"uv tool install {NAME}",
        f"uvx {NAME} doctor",
        f"pipx run {NAME}",
        f"with a compiler, install {NAME} again",
        f"(`pip install {NAME}`)",
        rf"match='{NAME}\[hdl\]'",
    ],
)
def test_a_planted_command_is_reported(line: str) -> None:
    assert reaching(f"before\n{line}\nafter")


@pytest.mark.parametrize(
    "line",
    [
        ".venv/bin/python -m pip install -e '.[hdl]'",
        "pip install dist/edgedec_toolchain-0.1.0-py3-none-any.whl",
        f"pip could not install {NAME}'s dependencies",
        f"pip install -e . && {NAME} doctor",
        f"the environment that pip made; {NAME} runs in it",
    ],
)
def test_harmless_lines_are_not_reported(line: str) -> None:
    assert reaching(line) == []


def test_a_planted_message_is_reported(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    file = tmp_path / "hw" / "x.py"
    file.write_text('"""pip install x."""\n# pip install x\ndef f():\n    """pip install x"""\n')
    assert written_commands(tmp_path) == {}
    file.write_text('raise OSError(f"run: pip install {x}")\n')
    assert list(written_commands(tmp_path)) == ["hw/x.py"]
