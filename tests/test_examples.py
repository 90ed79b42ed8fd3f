"""Every script of examples/ runs as a user runs it, and prints and writes what its page says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec import SpecConfig

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
TESTED = {"generate.py", "own_drafter.py", "verilog.py"}


def run(script: str, folder: Path, *arguments: str) -> str:
    """Return what a script prints when it runs in ``folder``, which keeps its temporary files, too."""
    temporary = folder / "temporary"
    temporary.mkdir()
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(temporary.iterdir()), "a temporary file is left behind"
    temporary.rmdir()
    return done.stdout


def test_every_example_is_in_the_index_and_tested_here() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    index = (EXAMPLES / "README.md").read_text("utf-8")
    assert scripts == TESTED == set(re.findall(r"\((\w+\.py)\)", index))


@pytest.mark.thorough
def test_generate(tmp_path: Path) -> None:
    said = run("generate.py", tmp_path).splitlines()
    assert said[0] == "quantized: 7,867,776 parameters, 4.21 bits each"
    planned, budget = (int(count.replace(",", "")) for count in re.findall(r"[\d,]{9,}", said[1]))
    assert planned <= budget == 32 << 20
    text = "\n".join(said)
    assert re.search(r"generated in [\d,]+ bytes: Once upon a time\S* there was .{40,}", text, re.DOTALL)
    assert re.search(r"streamed: One day, a cat .{40,}", text, re.DOTALL)
    (peak,) = re.findall(r"generated in ([\d,]+) bytes", text)
    assert 0 < int(peak.replace(",", "")) <= planned
    assert list(tmp_path.iterdir()) == []


def test_the_whole_api_fits_into_fifteen_lines() -> None:
    tree = ast.parse((EXAMPLES / "generate.py").read_text("utf-8"))
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)} - {1}  # the docstring
    assert len(lines) == 15


@pytest.mark.thorough
def test_own_drafter(tmp_path: Path) -> None:
    said = run("own_drafter.py", tmp_path)
    ((accepted, drafted),) = re.findall(r"(?m)^Pairs: (\d+) of (\d+) guesses accepted$", said)
    ((passes, plain),) = re.findall(r"(?m)^passes of the model: (\d+), without a drafter (\d+)$", said)
    assert 0 < int(accepted) <= int(drafted)
    assert int(plain) == 80
    # Each accepted guess saves a pass; those of the last round may lie after the last token that was asked for.
    assert 80 <= int(passes) + int(accepted) <= 80 + SpecConfig().draft_max
    assert said.endswith("the text is the same\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rtl  # yosys
@pytest.mark.rtl  # yosys converts a whole accelerator
def test_verilog(tmp_path: Path) -> None:
    pytest.importorskip("amaranth", reason="the hardware generator is not installed")
    said = run("verilog.py", tmp_path, "an accelerator.v")
    assert said.splitlines()[0] == "ulx3s-85f: 4 bytes of weights per cycle, 80 MHz"
    estimates = {name: (int(count), int(has)) for count, name, has in re.findall(r"(\d+) (\w+),.* has (\d+)", said)}
    assert all(count <= has for count, has in estimates.values())
    assert estimates["lut"][0] > 1000
    text = (tmp_path / "an accelerator.v").read_text("utf-8")
    assert "module accelerator(" in text
    assert f"{text.count('endmodule')} modules" in said


@pytest.mark.thorough
def test_verilog_without_the_hardware_generator_names_the_command_that_installs_it(tmp_path: Path) -> None:
    code = f"""
import importlib.util, runpy, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "amaranth" else find(name, *rest)
sys.argv = ["verilog.py"]
runpy.run_path({str(EXAMPLES / "verilog.py")!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: amaranth missing")
    assert "pip install" in done.stderr
    assert "[hdl]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
