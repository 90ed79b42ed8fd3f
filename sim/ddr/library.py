"""Compile the memory model's C++ into edgedec's cache folder, once for each source text and compiler."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from edgedec.bundle.atomic import new_file
from edgedec.errors import ToolError
from edgedec.host.paths import cache_folder
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.ddr.parameters import DdrParameters

__all__ = ["FOLDER", "MODEL", "load"]

FOLDER = Path(__file__).resolve().parent
MODEL = ("ports.cpp", "controller.cpp", "memory.cpp")  # files to link into a simulation that contains the memory
_SOURCES = (*MODEL, "traffic.cpp", "reader.cpp", "api.cpp")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion")

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "edgedec_ddr_error": (c_char_p, ()),
    "edgedec_ddr_parameters": (c_int, ()),
    "edgedec_ddr_open": (c_void_p, (POINTER(c_int64),)),
    "edgedec_ddr_close": (None, (c_void_p,)),
    "edgedec_ddr_attach": (None, (c_void_p, c_void_p, c_uint64, c_uint64)),
    "edgedec_ddr_inject_error": (None, (c_void_p, c_uint64, c_uint64, c_int, c_int, c_int)),
    "edgedec_ddr_inject_stall": (None, (c_void_p, c_int, c_int64, c_int64)),
    "edgedec_ddr_out": (None, (c_void_p, c_int, c_void_p)),
    "edgedec_ddr_cycle": (c_int, (c_void_p, c_int, c_void_p, c_void_p)),
    "edgedec_ddr_cycles": (c_int64, (c_void_p,)),
    "edgedec_ddr_idle": (c_int, (c_void_p,)),
    "edgedec_ddr_counts": (None, (c_void_p, POINTER(c_int64))),
    "edgedec_ddr_record": (None, (c_void_p,)),
    "edgedec_ddr_commands": (c_int64, (c_void_p, c_void_p, c_int64)),
    "edgedec_ddr_run": (c_int64, (c_void_p, c_int, c_int, c_void_p, c_int, c_int64)),
    "edgedec_ddr_read": (
        c_int64,
        (c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64),
    ),
}


def _build() -> Path:
    compiler = find_compiler()
    if compiler is None:
        raise ToolError("the memory model has to be compiled, and there is no C++ compiler; install g++ or clang++")
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in (".cpp", ".hpp"))
    text = b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)
    key = hashlib.sha256(text + "\0".join((*compiler, *_FLAGS)).encode()).hexdigest()[:16]
    output = cache_folder() / "sim" / f"ddr-{key}.so"
    if not output.exists():
        with new_file(output) as partial:
            command = [*compiler, *_FLAGS, "-shared", *(str(FOLDER / name) for name in _SOURCES), "-o", str(partial)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ToolError(f"{compiler[0]} fails on the memory model:\n{done.stderr.strip()}")
    return output


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library, which is built on first use (some seconds).

    Raises:
        ToolError: there is no compiler, it fails on the model, or the library cannot be loaded.
    """
    path = _build()
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ToolError(f"{path} cannot be loaded: {error}; delete it and try again") from error
    if library.edgedec_ddr_parameters() != len(DdrParameters().values()):
        raise ToolError("parameters.hpp and parameters.py do not hold the same members")
    return library
