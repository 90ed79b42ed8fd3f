"""How the kernels' library is compiled. Imports nothing of edgedec: setup.py runs it before there is a package.

Any GCC or Clang serves. The target is the compiler's own (``-dumpmachine``), so a cross compiler is only another name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["LIBRARY", "BuildError", "build", "find_compiler"]

FOLDER = Path(__file__).resolve().parent
LIBRARY = "libedgedec_kernels.dylib" if sys.platform == "darwin" else "libedgedec_kernels.so"

# No contraction: a fused multiply-add rounds once where the reference rounds twice.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion")
COMMON = ("api", "dispatch", "layout", "int8", "attention", "ternary_scalar", "attention_scalar", "int8_scalar")
ORT = ("ort_operator", "ort_ternary", "ort_int8", "ort_attention")
PATHS = {
    "x86_64": {
        **dict.fromkeys(("ternary_avx2", "int8_avx2"), ("-mavx2",)),
        "attention_avx2": ("-mavx2", "-mfma", "-mf16c"),
        **dict.fromkeys(
            ("ternary_avx512vnni", "int8_avx512vnni", "attention_avx512vnni"),
            ("-mavx512f", "-mavx512bw", "-mavx512vnni"),
        ),
    },
    "aarch64": {
        **dict.fromkeys(("ternary_neon", "int8_neon", "attention_neon"), ()),
        **dict.fromkeys(("ternary_neon_dotprod", "int8_neon_dotprod"), ("-march=armv8.2-a+dotprod",)),
    },
}
_SAME = {"arm64": "aarch64", "amd64": "x86_64"}


class BuildError(Exception):
    """The compiler refused something; holds its words."""


def find_compiler() -> tuple[str, ...] | None:
    """$CXX, or the first of c++, g++, clang++ that is installed; None: there is none that takes GCC's options."""
    if sys.platform == "win32":
        return None
    if named := os.environ.get("CXX", "").split():
        return tuple(named) if shutil.which(named[0]) else None
    return next(((found,) for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout + done.stderr


def build(
    compiler: Sequence[str],
    output: Path,
    *,
    extra: Sequence[str] = (),
    driver: Path | None = None,
    units: Sequence[str] = (*COMMON, *ORT),
) -> str:
    """Compile and link ``output``: the shared library, or with ``driver`` (a C++ file) a static program for tests.

    Returns:
        What the compiler said; empty without warnings.

    Raises:
        BuildError: the compiler cannot be run or refuses a file.
    """
    machine = _run([*compiler, "-dumpmachine"]).partition("-")[0]
    sources = dict.fromkeys(units, ()) | PATHS.get(_SAME.get(machine, machine), {})
    files = [(FOLDER / f"{name}.cpp", flags) for name, flags in sources.items()]
    if driver is not None:
        files.append((driver, ()))
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compile_one(item: tuple[Path, Sequence[str]]) -> tuple[str, str]:
            source, flags = item
            made = str(Path(scratch) / f"{source.stem}.o")
            options = (*FLAGS, *WARNINGS, *flags, *extra, f"-I{FOLDER}", "-isystem", str(FOLDER / "vendor"))
            return made, _run([*compiler, *options, "-c", str(source), "-o", made])

        made = list(pool.map(compile_one, files))
        output.parent.mkdir(parents=True, exist_ok=True)
        # Beside, then renamed: a process that has the old library mapped keeps it.
        beside = output.with_name(f".{output.name}.{os.getpid()}")
        kind = ("-static",) if driver is not None else ("-shared",)
        said = _run([*compiler, *kind, "-pthread", "-o", str(beside), *(name for name, _ in made)])
        beside.replace(output)
    return "".join(text for _, text in made) + said
