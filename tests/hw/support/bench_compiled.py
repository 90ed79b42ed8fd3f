"""Drive a component with streams as compiled C++ (CXXRTL), for millions of items; nothing idles and nothing stalls."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Const, Value
from amaranth.lib.wiring import In
from numpy.typing import NDArray

from edgedec.hw.emit.yosys import run_yosys, to_rtlil
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.cxxrtl.library import headers

__all__ = ["CompiledStreams"]

U64 = NDArray[np.uint64]
_POINTER = ctypes.POINTER(ctypes.c_uint64)


class CompiledStreams:
    """A component whose members are streams of at most 64 bits, in its state after power-up.

    Args:
        component: the component.
        folder: empty folder for the library.
    """

    def __init__(self, component: Any, folder: Path) -> None:
        members = component.signature.members
        self._inputs = [name for name in members if members[name].flow is In]
        self._outputs = [name for name in members if members[name].flow is not In]
        (folder / "design.il").write_text(to_rtlil(component), "utf-8")
        run_yosys("read_rtlil design.il\nwrite_cxxrtl -g0 -namespace design design.cpp\n", folder)
        (folder / "driver.cpp").write_text(self._driver(component), "utf-8")
        compiler = find_compiler()
        assert compiler is not None, "no C++ compiler"
        library = folder / "driver.so"
        flags = ["-std=c++17", "-O2", "-w", "-fPIC", "-shared", f"-I{folder}", "-isystem", str(headers())]
        subprocess.run([*compiler, *flags, str(folder / "driver.cpp"), "-o", str(library)], check=True)
        self._run = ctypes.CDLL(str(library)).run
        self._run.restype = ctypes.c_int64

    def run(self, inputs: Mapping[str, U64], outputs: Mapping[str, int], *, limit: int = 100) -> dict[str, U64]:
        """Feed all inputs at once, and return that many items of each output; the state stays for the next call.

        Args:
            inputs: payloads of each input, uint64 [items].
            limit: cycles without a transfer after which the run has failed.

        Raises:
            AssertionError: nothing moves any more, or an output gives more items.
        """
        given = [np.ascontiguousarray(inputs[name], np.uint64) for name in self._inputs]
        found = [np.zeros(outputs[name], np.uint64) for name in self._outputs]
        counts = [np.array([len(items) for items in side], np.uint64) for side in (given, found)]
        columns = [
            (_POINTER * len(side))(*(items.ctypes.data_as(_POINTER) for items in side)) for side in (given, found)
        ]
        sizes = [count.ctypes.data_as(_POINTER) for count in counts]
        wrong = self._run(columns[0], sizes[0], columns[1], sizes[1], ctypes.c_int64(limit))
        assert wrong == 0, {1: f"nothing moved for {limit} cycles", 2: "an output gives more items"}[wrong]
        return dict(zip(self._outputs, found, strict=True))

    def _driver(self, component: Any) -> str:
        def port(name: str, part: str) -> str:
            return f"top.p_{f'{name}__{part}'.replace('_', '__')}"

        offers, takes, gives = "", "", ""
        for number, name in enumerate(self._inputs):
            offers += f"        const bool offers{number} = at[{number}] < in_sizes[{number}];\n"
            offers += f"        {port(name, 'valid')}.set<bool>(offers{number});\n"
            offers += (
                f"        if (offers{number}) {port(name, 'payload')}.set<uint64_t>(in[{number}][at[{number}]]);\n"
            )
            constant = isinstance(Value.cast(getattr(component, name).ready), Const)
            ready = "true" if constant else f"number({port(name, 'ready')})"
            takes += f"        if (offers{number} && {ready}) {{ ++at[{number}]; idle = 0; }}\n"
        for number, name in enumerate(self._outputs):
            if not isinstance(Value.cast(getattr(component, name).ready), Const):
                offers += f"        {port(name, 'ready')}.set<bool>(true);\n"
            gives += f"        if (number({port(name, 'valid')})) {{\n            idle = 0;\n"
            gives += f"            if (got[{number}] == out_sizes[{number}]) return 2;\n"
            gives += f"            out[{number}][got[{number}]++] = number({port(name, 'payload')});\n        }}\n"
        done = " && ".join(f"got[{number}] == out_sizes[{number}]" for number in range(len(self._outputs)))
        return f"""#include "design.cpp"
template <size_t N> uint64_t number(const cxxrtl::value<N>& port) {{ return port.template get<uint64_t>(); }}
template <size_t N> uint64_t number(const cxxrtl::wire<N>& port) {{ return port.template get<uint64_t>(); }}
static design::p_top top;
extern "C" int64_t run(
        uint64_t** in, const uint64_t* in_sizes, uint64_t** out, const uint64_t* out_sizes, int64_t limit) {{
    uint64_t at[{len(self._inputs)}] = {{}}, got[{len(self._outputs)}] = {{}};
    for (int64_t idle = 0, after = 0; after < 8; ++idle) {{
        if (idle > limit) return 1;
{offers}        top.p_clk.set<bool>(false);
        top.step();
{takes}{gives}        top.p_clk.set<bool>(true);
        top.step();
        if ({done}) {{ ++after; idle = 0; }}
    }}
    return 0;
}}
"""
