"""Test that what a board needs can be imported without amaranth and torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = [
    "edgedec.device",
    "edgedec.hw.isa.registers",
    "edgedec.hw.compiler.disassembler",
    "edgedec.hw.compiler.host",
    "edgedec.hw.compiler.program",
    "edgedec.hw.compiler.program_file",
    "edgedec.runtime.driver.driver",
    "edgedec.runtime.driver.recording",
    "edgedec.runtime.devices.replay",
    "edgedec.sim.devices.interpreter",
]
SCRIPT = """
import sys
from importlib import import_module
for name in ("amaranth", "torch", "cocotb"):
    sys.modules[name] = None  # importing it raises ImportError
import_module(sys.argv[1])
"""


def imported(module: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SCRIPT, module], capture_output=True, text=True, check=False)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("module", MODULES)
def test_modules_for_boards_are_imported(module: str) -> None:
    process = imported(module)
    assert process.returncode == 0, process.stderr


def test_modules_of_hardware_are_not_imported() -> None:
    assert "No module named 'amaranth" in imported("edgedec.hw.accelerator").stderr
