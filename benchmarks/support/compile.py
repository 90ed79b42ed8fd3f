"""Compile a C++ file of a benchmark for this machine into edgedec's cache folder."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from edgedec.bundle.atomic import new_file
from edgedec.errors import ToolError
from edgedec.host.paths import cache_folder
from edgedec.runtime.kernels.recipe import find_compiler

__all__ = ["compile_cached"]

_FLAGS = ("-std=c++17", "-O3", "-march=native", "-pthread")


def compile_cached(source: Path, options: Sequence[str]) -> Path:
    """Return the library or program made from ``source``; an existing one with the same text and options is reused.

    Raises:
        ToolError: there is no compiler, or it reports an error.
    """
    compiler = find_compiler()
    if compiler is None:
        raise ToolError(
            f"benchmarks/{source.name} must be compiled, but there is no C++ compiler; install g++ or clang++"
        )
    flags = (*_FLAGS, *options)
    key = hashlib.sha256("\0".join([source.read_text("utf-8"), *compiler, *flags]).encode()).hexdigest()[:16]
    output = cache_folder() / "benchmarks" / f"{source.stem}-{key}"
    if not output.exists():
        with new_file(output) as partial:
            process = subprocess.run(
                [*compiler, str(source), *flags, "-o", str(partial)], capture_output=True, text=True, check=False
            )
            if process.returncode:
                raise ToolError(f"{compiler[0]} cannot compile benchmarks/{source.name}:\n{process.stderr.strip()}")
    return output
