"""Drive a design.h, of a netlist or of CXXRTL, with rows of its inputs' values: a step per row."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.cxxrtl.library import headers
from edgedec.sim.netlist.design import FOLDER

__all__ = ["Values", "drive"]

Values = dict[str, NDArray[np.uint64]]  # by a port's name; one per step


def drive(folder: Path, inputs: Values, outputs: Sequence[str]) -> Values:
    """Compile design.h and design.cpp of ``folder``, run them from power-up, and return the outputs after each step."""
    source = folder / "driver.cpp"
    sets = "".join(f"        top.{_member(name)}.set<uint64_t>(*in++);\n" for name in inputs)
    gets = "".join(f"        *out++ = number(top.{_member(name)});\n" for name in outputs)
    source.write_text(
        f"""#include "design.cpp"
template <size_t N>
uint64_t number(const cxxrtl::value<N>& port) {{ return port.template get<uint64_t>(); }}
template <size_t N>
uint64_t number(const cxxrtl::wire<N>& port) {{ return port.template get<uint64_t>(); }}
extern "C" void run(const uint64_t* in, uint64_t* out, int64_t steps) {{
    edgedec_design::p_top top;
    for (int64_t n = 0; n < steps; ++n) {{
{sets}        for (int again = 0; again < 4; ++again) top.step();  // CXXRTL's outputs and resets lag
{gets}    }}
}}
""",
        "utf-8",
    )
    compiler = find_compiler()
    assert compiler is not None
    library = folder / "driver.so"
    flags = ["-std=c++17", "-O0", "-w", "-fPIC", "-shared", f"-I{folder}", f"-I{FOLDER}", "-isystem", str(headers())]
    subprocess.run([*compiler, *flags, str(source), "-o", str(library)], check=True)
    rows = np.stack(list(inputs.values()), axis=1).copy()
    results = np.zeros((len(rows), len(outputs)), np.uint64)
    pointer = ctypes.POINTER(ctypes.c_uint64)
    run = ctypes.CDLL(str(library)).run
    run(rows.ctypes.data_as(pointer), results.ctypes.data_as(pointer), ctypes.c_int64(len(rows)))
    return {name: results[:, number] for number, name in enumerate(outputs)}


def _member(name: str) -> str:
    return f"p_{name.replace('_', '__')}"
