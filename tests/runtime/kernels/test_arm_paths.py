"""Check which code path AArch64 processors choose, and that an older compiler builds the others, under qemu-user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgedec.runtime.kernels.recipe import COMMON, build

DRIVER = Path(__file__).with_name("driver.cpp")
pytestmark = pytest.mark.nightly


def chosen(command: Sequence[str], kernel: str = "") -> tuple[int, str]:
    """Return the exit code and the name of the path, or the message, of a process with EDGEDEC_KERNEL."""
    environment = {**os.environ, "EDGEDEC_KERNEL": kernel}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout


@pytest.fixture(scope="module")
def compiler() -> str:
    path = shutil.which("aarch64-linux-gnu-g++")
    if path is None or shutil.which("qemu-aarch64") is None:
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user")
    return path


@pytest.fixture(scope="module")
def driver(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("arm") / "driver"
    assert build([compiler], program, driver=DRIVER, units=COMMON, extra=["-O1"]) == ""
    return program


@pytest.mark.parametrize(
    ("processor", "code_path"),
    [("cortex-a53", "neon"), ("neoverse-n1", "neon_dotprod"), ("max", "neon_i8mm")],
)
def test_a_processor_runs_the_fastest_path_whose_instructions_it_has(
    driver: Path, processor: str, code_path: str
) -> None:
    assert chosen(["qemu-aarch64", "-cpu", processor, str(driver)]) == (0, code_path)


def test_the_environment_selects_any_path_that_the_processor_can_run(driver: Path) -> None:
    for code_path in ("neon_i8mm", "neon_dotprod", "neon", "scalar"):
        assert chosen(["qemu-aarch64", "-cpu", "max", str(driver)], code_path) == (0, code_path)
    code, message = chosen(["qemu-aarch64", "-cpu", "neoverse-n1", str(driver)], "neon_i8mm")
    assert code == 1
    assert "EDGEDEC_KERNEL=neon_i8mm needs instructions that this processor lacks; usable here: neon_dotprod" in message


def test_a_compiler_without_the_instructions_builds_the_other_paths(compiler: str, tmp_path: Path) -> None:
    older = tmp_path / "older"
    refusal = "echo \"invalid feature modifier in '$option'\" >&2; exit 1"
    older.write_text(
        f'#!/bin/sh\nfor option; do case "$option" in -march=*i8mm) {refusal};; esac; done\nexec {compiler} "$@"\n'
    )
    older.chmod(0o755)
    assert build([str(older)], tmp_path / "driver", driver=DRIVER, units=COMMON, extra=["-O1"]) == ""
    command = ["qemu-aarch64", "-cpu", "max", str(tmp_path / "driver")]
    assert chosen(command) == (0, "neon_dotprod")
    code, message = chosen(command, "neon_i8mm")
    assert code == 1
    assert "EDGEDEC_KERNEL=neon_i8mm is not in a library for this kind of processor" in message
