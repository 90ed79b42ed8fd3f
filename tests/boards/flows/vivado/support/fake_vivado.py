"""Provide a Tcl interpreter with stubs.tcl in the place of Vivado, and tiny projects for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from edgedec.boards import find_board
from edgedec.boards.flows.interface import BoardDesign
from edgedec.boards.flows.vivado import project
from edgedec.bundle.bundle import Bundle
from edgedec.families import build_graph
from edgedec.graph.passes import assign_schemes, fuse_linears, quantize_activations
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.config import AcceleratorConfig
from tests.edgedec.reference.integer_profile.support.make_models import prepared
from tests.runtime.accelerator.support import make_board_bundle

STUBS = Path(__file__).with_name("stubs.tcl")
RTLIL_HASH = 0xFEDC_BA98_7654_3210
CORE = "// stands in for the accelerator\nmodule accelerator_core; endmodule\n"
_TKINTER = "import sys, tkinter; t = tkinter.Tcl(); t.setvar('argv', sys.argv[2:]); t.evalfile(sys.argv[1])"
SIZES = {
    "kv260": {"beat_bytes": 64, "ports": 4},
    "ultra96-v2": {"beat_bytes": 16, "ports": 2},
    "pynq-z2": {"beat_bytes": 16, "ports": 2},
    "arty-z7-20": {"beat_bytes": 4, "ports": 1},
}


@cache
def interpreter() -> tuple[str, ...]:
    """Return tclsh, or Python's own; a test without either is skipped."""
    path = shutil.which("tclsh")
    if path:
        return (path,)
    if find_spec("_tkinter"):
        return (sys.executable, "-c", _TKINTER)
    pytest.skip("there is no Tcl interpreter: neither tclsh nor tkinter")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Hold the result; ``commands`` are Vivado's commands, with the folder as <output>, and its work/ as <work>."""

    status: int
    said: str
    commands: list[str]


def run_tcl(folder: Path, log: Path, **environment: str) -> Ran:
    """Run build.tcl from another folder."""
    words = [*interpreter(), str(STUBS), str(log), str(folder / "build.tcl")]
    log.unlink(missing_ok=True)
    process = subprocess.run(words, capture_output=True, text=True, env=os.environ | environment, cwd=log.parent)
    lines = log.read_text().splitlines() if log.exists() else []
    return Ran(
        status=process.returncode,
        said=process.stdout + process.stderr,
        commands=[plain(line, folder) for line in lines],
    )


def plain(line: str, folder: Path) -> str:
    """Replace the folder by its placeholder, in any form in which Tcl wrote it into a list."""
    text = str(folder)
    special = "".join(f"\\{letter}" if letter in '{}[]$"\\; ' else letter for letter in text)
    return line.replace(special, "<output>").replace(text, "<output>").replace("<output>/work", "<work>")


def model(folder: Path, **members: int) -> tuple[Bundle, Program]:
    """Return a tiny bundle, and its program for an accelerator with those members."""
    bundle = make_board_bundle.write_source(folder / "source", "native", seed=0, ids=40, template=None)
    return bundle, compiled(bundle, **members)


def compiled(bundle: Bundle, **members: int) -> Program:
    graph = fuse_linears(quantize_activations(assign_schemes(build_graph(bundle.config), bundle.schemes)))
    integers = prepared(graph, {name: bundle.weight(name) for name in graph.weights})
    options = {"context": 64, "slots": 2, "prefetch_beats": 64, **members}
    return compile_model(integers, config_for(integers, **options), bundle=bundle.sha256)


def fake_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the writer of the accelerator's Verilog, which takes ten seconds; test_verilog.py runs it once."""

    def core(
        config: AcceleratorConfig, *, name: str, platform: object = None, progress: object = None
    ) -> tuple[str, int]:
        return f"// configuration {config.hash:016x}\n{CORE}", RTLIL_HASH

    monkeypatch.setattr(project, "accelerator_verilog", core)


def make_project(program: Program, board: str, folder: Path) -> Path:
    """Write the files of ``build``; call ``fake_core`` first."""
    from edgedec.hw.compiler.program_file import save_program

    folder.mkdir(parents=True)
    save_program(program, folder / "program")
    project.write_project(BoardDesign(board=find_board(board), program=program), folder)
    return folder


def fake_vivado(folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str = "2022.1", **environment: str) -> Path:
    """Install a program ``vivado``, first on the PATH; return the file to which it writes its commands."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "commands"
    words = " ".join(f"'{word}'" for word in (*interpreter(), str(STUBS), str(log)))
    script = folder / "vivado"
    script.write_text(
        f"""#!/bin/sh
if [ "$1" = -version ]; then echo "Vivado v{version} (64-bit)"; echo "SW Build 1"; exit 0; fi
[ "$1 $2 $3 $4" = "-mode batch -source build.tcl" ] || exit 9
exec {words} build.tcl
"""
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("STUB_VERSION", version)
    for name, value in environment.items():
        monkeypatch.setenv(f"STUB_{name.upper()}", value)
    return log
