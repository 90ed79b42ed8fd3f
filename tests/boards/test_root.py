"""Test that edgedec runs with the software that a board has, as far as this machine has what that needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.errors import ToolError
from tests.boards import root
from tests.boards.root import TOKENS, main, missing_tools

NO_PACKAGES = "cannot be fetched here"


@pytest.mark.nightly
@pytest.mark.parametrize(("arch", "python"), [("host", "3.10"), ("arm64", "3.10"), ("arm64", "3.11")])
def test_a_text_is_written_on_the_simulated_board(project_root: Path, tmp_path: Path, arch: str, python: str) -> None:
    """Check the wheel, pynq 3.0.1 and NumPy there. Only Python 3.10 has wheels of the least NumPy."""
    if missing := missing_tools(arch, python):
        pytest.skip(f"there is no {', no '.join(missing)}")
    command = (
        sys.executable,
        "-m",
        "tests.boards.root",
        "--arch",
        arch,
        "--python",
        python,
        "--folder",
        tmp_path / "root",
    )
    process = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    if NO_PACKAGES in process.stderr:
        pytest.skip(process.stderr)
    assert process.returncode == 0, process.stdout + process.stderr
    versions, text, verdict = process.stdout.splitlines()
    assert f"Python {python}." in versions
    assert ("aarch64" in versions) == (arch == "arm64")
    assert versions.endswith("pynq 3.0.1")
    assert len(text.split()) == TOKENS
    assert verdict == "the same text as here"


def test_a_missing_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    kept = tmp_path / "kept"
    kept.mkdir()
    assert main(["--arch", "arm64", "--folder", str(kept)]) == 3
    assert capsys.readouterr().err.startswith(
        "tests.boards.root: there is no debootstrap (package debootstrap), no dpkg-deb"
    )
    assert main(["--arch", "host", "--folder", str(kept)]) == 3
    assert "there is no python3.10 (with its venv module)" in capsys.readouterr().err
    assert kept.is_dir()


def test_the_error_without_packages_names_the_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*command: object, **_: object) -> str:
        raise ToolError("debootstrap failed: E: Failed getting release file")

    monkeypatch.setattr(root, "run", refuse)
    with pytest.raises(
        ToolError, match=r"packages of jammy for arm64.*cannot be fetched here: .*\n.*--python 3\.11; --arch"
    ):
        root.make_root(tmp_path, "arm64", "3.10", "")
