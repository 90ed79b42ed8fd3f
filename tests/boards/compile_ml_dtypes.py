"""Compile the package ml_dtypes for a processor that the package index has no wheel of it for: 32-bit Arm.

On a board, its pip does the same, with a C++ compiler and the headers of Python: ``python3 -m pip install
--no-build-isolation ml_dtypes``. Here a cross-compiler does, with the headers of a root file system.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.boards.commands import run
from tests.boards.install import Start

__all__ = ["PACKAGES", "VERSION", "compile_ml_dtypes", "compiler"]

VERSION = "0.5.4"
PACKAGES = ("libc6-dev", "libpython3-dev")  # Debian's packages with the headers; NumPy's lie in its own package
# Options of the package's setup.py; without optimization the compiler takes half the time.
OPTIONS = ("-std=c++17", "-DEIGEN_MPL2_ONLY", "-fvisibility=hidden", "-ftrapping-math", "-shared", "-fPIC", "-O0", "-w")


def compiler(triplet: str) -> str:
    """Return the name of the C++ compiler for a processor."""
    return f"{triplet}-g++"


def compile_ml_dtypes(folder: Path, start: Start) -> None:
    """Fetch the sources, compile them, and put the package beside those of the root's Python.

    Args:
        folder: place for files that are of no use afterwards.

    Raises:
        ToolError: the sources cannot be fetched, or the compiler fails.
    """
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    run(*pip, "download", *options, "-d", folder / "sources", f"ml_dtypes=={VERSION}")
    shutil.unpack_archive(folder / f"sources/ml_dtypes-{VERSION}.tar.gz", folder / "sources", filter="data")
    source, package = folder / f"sources/ml_dtypes-{VERSION}", start.site / "ml_dtypes"
    shutil.copytree(source / "ml_dtypes", package, ignore=shutil.ignore_patterns("_src", "tests"))
    places = (
        source / "third_party/eigen",
        source,
        start.root / "usr/lib/python3/dist-packages/numpy/core/include",
        start.root / f"usr/include/python{start.python}",
    )
    run(
        compiler(start.triplet),
        f"--sysroot={start.root}",
        *OPTIONS,
        *(f"-I{place}" for place in places),
        *sorted((source / "ml_dtypes/_src").glob("*.cc")),
        "-o",
        package / "_ml_dtypes_ext.so",
    )
