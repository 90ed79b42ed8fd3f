"""Test ``build``: its files, its refusals, and its steps with a fake Vivado."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.boards import find_board
from edgedec.boards.flows.build import build
from edgedec.boards.flows.check import check_build
from edgedec.boards.flows.families import zynq_ultrascale_plus
from edgedec.boards.flows.interface import Flow, find_flow, flow_names
from edgedec.errors import BundleError, EdgedecError, ToolError, UnsupportedError, UsageError
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.compiler.program import Program
from edgedec.hw.compiler.program_file import load_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.read import read_handoff
from edgedec.hw.handoff.write import write_hwh
from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.plugins import load, names
from tests.boards.flows.support.bench_interrupted_build import interrupt_build
from tests.boards.flows.vivado.support import fake_vivado, make_reports
from tests.boards.flows.vivado.support.fake_vivado import SIZES

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

KV260 = find_board("kv260")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return fake_vivado.model(tmp_path_factory.mktemp("model"), **SIZES["kv260"])[1]


@pytest.fixture(autouse=True)
def no_vivado(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vivado.fake_core(monkeypatch)
    monkeypatch.delenv("XILINX_VIVADO", raising=False)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "with space's" / "a build"


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: AcceleratorConfig, **options: str) -> Path:
    """Install a Vivado whose builds succeed."""
    write_hwh(config, tmp_path / "made.hwh", family="zynq-ultrascale+", rtlil_hash=fake_vivado.RTLIL_HASH)
    reports = make_reports.write_reports(tmp_path / "reports", wns=options.pop("wns", "0.123"))
    environment = {"hwh": str(tmp_path / "made.hwh"), "reports": str(reports), **options}
    return fake_vivado.fake_vivado(tmp_path / "bin", monkeypatch, **environment)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_file_is_written(program: Program, output: Path, tmp_path: Path) -> None:
    result = build(KV260, program, output, run=False)
    assert (result.built, result.missing) == (None, None)
    assert set(tree(output)) == {
        ".lock",
        "README.md",
        "block_design.tcl",
        "build.json",
        "build.tcl",
        "constraints/board.xdc",
        "ip/package.tcl",
        "processing_system.tcl",
        "program/code.bin",
        "program/image.bin",
        "program/program.json",
        "registers.rdl",
        "report.html",
        "report.json",
        "rtl/accelerator.v",
        "rtl/accelerator_core.v",
        "settings.tcl",
        "simulated/accelerator.hwh",
    }
    assert load_program(output / "program").config == program.config
    manifest = json.loads((output / "build.json").read_text())
    assert (manifest["isa_version"], manifest["rtlil_hash"]) == (ISA_VERSION, f"{fake_vivado.RTLIL_HASH:016x}")
    handoff = read_handoff(output / "simulated/accelerator.hwh")
    assert (handoff.isa_version, handoff.rtlil_hash) == (ISA_VERSION, result.rtlil_hash)
    assert f"RTLIL_HASH = 64'h{result.rtlil_hash:016x}," in (output / "rtl/accelerator.v").read_text()
    report = json.loads((output / "report.json").read_text())
    assert report == result.report
    assert (report["state"], report["label"]) == ("written", "not run in Vivado")
    assert (report["resources"]["placed"], report["resources"]["synthesised"], report["power"]) == (None, None, None)
    assert report["timing"] == {"kind": "assumed", "clock_hz": 250e6}
    assert report["speed"]["kind"] == "estimated"
    for row in report["speed"]["passes"]:
        assert 0.7 * row["tokens_per_second"] < row["tokens_per_second_shared"] <= row["tokens_per_second"]
    assert {row["region"] for row in report["memory"]} >= {"program", "image", "cache", "input", "output"}
    page = (output / "report.html").read_text()
    assert "not run in Vivado." in page
    assert "<script" not in page
    assert "not run in Vivado" in (output / "README.md").read_text()
    again = build(KV260, program, tmp_path / "again", run=False)
    first, second = tree(output), tree(again.output)
    assert first == second, "the same input gives the same bytes"


def test_without_vivado_everything_is_written(program: Program, output: Path) -> None:
    result = build(KV260, program, output)
    assert str(result.missing).startswith(
        "Vivado is not on the PATH, and XILINX_VIVADO is not set; get Vivado 2021.1 or newer"
    )
    assert (
        result.command
        == f"cd {stubbed_quote(output)} && vivado -mode batch -source build.tcl -log vivado.log -nojournal"
    )


def stubbed_quote(path: Path) -> str:
    return "'" + str(path).replace("'", "'\"'\"'") + "'"


@pytest.mark.parametrize(
    ("version", "message"), [("2020.2.2", "is Vivado 2020.2.2, 2021.1 or newer is needed"), ("x", "no version")]
)
def test_a_vivado_that_is_too_old_is_reported(
    program: Program, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, message: str
) -> None:
    log = fake_vivado.fake_vivado(tmp_path / "bin", monkeypatch, version=version)
    result = build(KV260, program, output)
    assert message in str(result.missing)
    assert not log.exists()


def test_vivado_is_read_from_the_variable(
    program: Program, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = find_flow(KV260)
    monkeypatch.setenv("XILINX_VIVADO", str(tmp_path / "nothing"))
    with pytest.raises(ToolError, match=r"nor in XILINX_VIVADO=.*nothing"):
        flow.find_tools()
    path = os.environ["PATH"]
    fake_vivado.fake_vivado(tmp_path / "Vivado/bin", monkeypatch)
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("XILINX_VIVADO", str(tmp_path / "Vivado"))
    assert flow.find_tools() == {"vivado": "2022.1"}
    (tmp_path / "Vivado/bin/vivado").write_bytes(b"\0\0")
    with pytest.raises(ToolError, match="does not start"):
        flow.find_tools()


def test_a_build_makes_a_bitstream_once(
    program: Program, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = install(tmp_path, monkeypatch, program.config)
    steps: list[str] = []
    result = build(KV260, program, output, progress=lambda label, done, total: steps.append(label))
    assert result.built is not None
    assert "synthesis" in steps
    assert result.built.bitstream.read_text() == "no bitstream at all"
    assert result.built.timing["clock_hz"] == 99.999e6
    report = json.loads((output / "report.json").read_text())
    assert (report["state"], report["label"]) == ("built", "built by Vivado")
    assert report["resources"]["placed"] == {
        "by": "vivado 2022.1",
        **{"lut": 61001, "ff": 70002, "bram36": 80.5, "uram": 43, "dsp": 701},
    }
    assert report["timing"]["wns_ns"] == 0.123
    assert report["power"]["total_w"] == 5.432
    assert "Timing is met." in (output / "report.html").read_text()
    log.unlink()
    again = build(KV260, program, output, run=False)
    assert (again.report, log.exists()) == (result.report, False)


def test_a_failed_build_continues(
    program: Program, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = install(tmp_path, monkeypatch, program.config, fail="open_run")
    with pytest.raises(
        EdgedecError, match=r"Vivado failed in the step reports and results: .*open_run failed; see .*vivado.log"
    ):
        build(KV260, program, output)
    assert not (output / "results").exists()
    log.unlink()
    monkeypatch.delenv("STUB_FAIL")
    assert build(KV260, program, output).built is not None
    assert "create_project" not in log.read_text()


@pytest.mark.thorough
def test_an_interrupted_build_is_repeated(
    program: Program, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Press Ctrl-C while Vivado works: no process stays, and the next call builds."""
    build(KV260, program, output, run=False)
    log = install(tmp_path, monkeypatch, program.config, hang="wait_on_run")
    interrupt_build(KV260, program, output, log, "wait_on_run")
    monkeypatch.delenv("STUB_HANG")
    assert build(KV260, program, output).built is not None


def test_missed_timing_is_reported(
    program: Program, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, program.config, wns="-0.250")
    result = build(KV260, program, output)
    timing = result.report["timing"]
    assert timing["met"] is False
    assert [row["wanted_hz"] for row in timing["tried"]] == [*[250e6] * 4, 214.286e6, 187.5e6]
    assert {row["met"] for row in timing["tried"]} == {False}
    assert timing["failing_path"] == {
        **{
            "kind": "setup",
            "from": "accelerator_0/inst/core/here_reg[3]/C",
            "to": "accelerator_0/inst/core/there_reg/D",
        },
        **{"slack_ns": -0.25, "delay_ns": 4.25, "levels": 12},
    }
    assert "first failing path (setup) starts at accelerator_0/inst/core/here_reg[3]/C and ends at" in timing["reason"]
    assert result.built is not None
    assert result.built.bitstream.name == "accelerator.timing-not-met.bit"
    assert [path.name for path in output.rglob("*.bit")] == ["accelerator.timing-not-met.bit"], "nor one of Vivado's"
    assert not list(output.rglob("*.xsa"))
    page = (output / "report.html").read_text()
    assert "Timing is not met" in page
    assert "Performance_ExtraTimingOpt" in page


def test_results_of_another_build_are_refused(
    program: Program, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, program.config)
    build(KV260, program, output)
    facts = output / "results/facts.txt"
    text = facts.read_text()
    facts.write_text("key " + "0" * 64 + text[68:])
    with pytest.raises(BundleError, match=r"results is of another build than this project"):
        build(KV260, program, output)
    facts.write_text(text.replace("clock_mhz 99.999", "clock_mhz 0"))
    with pytest.raises(BundleError, match="clock_mhz is '0'"):
        build(KV260, program, output)
    facts.write_text(text)
    (output / "results/accelerator.bit").write_bytes(b"")
    with pytest.raises(BundleError, match=r"accelerator.bit is missing or empty"):
        build(KV260, program, output)


def test_a_folder_of_another_build_is_refused(program: Program, output: Path) -> None:
    build(KV260, program, output, run=False)
    before = tree(output)
    faster = replace(program, config=replace(program.config, clock_hz=200e6))
    with pytest.raises(
        UsageError, match=r"holds another build: clock_hz 250000000, not 200000000. Choose another folder"
    ):
        build(KV260, faster, output)
    faster = replace(program, image=program.image ^ np.uint8(1))
    with pytest.raises(UsageError, match="holds another build: of another model"):
        build(KV260, faster, output)
    ultra96 = replace(find_board("ultra96-v2"), name="wider", has=KV260.has, port_bytes=16)
    with pytest.raises(UsageError, match="holds another build: board kv260, not wider"):
        build(ultra96, program, output)
    assert tree(output) == before


@pytest.mark.parametrize("name", ["build.tcl", "program/image.bin", "rtl/accelerator.v"])
def test_a_changed_folder_is_refused(program: Program, output: Path, name: str) -> None:
    build(KV260, program, output, run=False)
    data = (output / name).read_bytes()
    (output / name).write_bytes(data + b"\n")
    with pytest.raises(UsageError, match=f"{name} was changed since it was written; put it back, or remove"):
        build(KV260, program, output)
    (output / name).unlink()
    with pytest.raises(UsageError, match=f"{name} is missing since"):
        build(KV260, program, output)
    (output / name).write_bytes(data)
    build(KV260, program, output, run=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        '{"format": "edgedec-build", "version": 1, "identity": {}, "files": {"../x": "0"}}',
        '{"format": "edgedec-build", "version": 1, "identity": {}, "files": {"x": 0}}',
        '{"format": "edgedec-build", "version": 1, "identity": [], "files": {}}',
        '{"format": "other", "version": 1, "identity": {}, "files": {}}',
    ],
)
def test_a_damaged_manifest_is_refused(program: Program, output: Path, text: str) -> None:
    output.mkdir(parents=True)
    (output / "build.json").write_text(text)
    with pytest.raises(BundleError, match=r"build.json is damaged: .*; remove the folder and build again"):
        build(KV260, program, output)


def test_a_folder_of_another_version_is_refused(program: Program, output: Path) -> None:
    output.mkdir(parents=True)
    (output / "build.json").write_text('{"format": "edgedec-build", "version": 2, "identity": {}, "files": {}}')
    with pytest.raises(UnsupportedError, match="is of version 2, not 1"):
        build(KV260, program, output)


def test_a_folder_with_other_files_is_refused(program: Program, output: Path) -> None:
    output.mkdir(parents=True)
    (output / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"exists and holds no build.json"):
        build(KV260, program, output)
    assert tree(output) == {"thesis.txt": b"mine"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written_is_an_error(program: Program, output: Path) -> None:
    output.parent.mkdir(parents=True)
    output.parent.chmod(0o500)
    with pytest.raises(EdgedecError, match=r"cannot write .*a build: Permission denied"):
        build(KV260, program, output)


def test_a_file_in_place_of_the_folder_is_refused(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EdgedecError, match=r"cannot write|exists and holds no"):
        build(KV260, program, tmp_path / "file" / "build")


def test_a_writer_that_fails_leaves_no_folder(program: Program, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> str:
        raise ToolError("yosys failed")

    monkeypatch.setattr("edgedec.boards.flows.vivado.project.accelerator_verilog", broken)
    with pytest.raises(ToolError):
        build(KV260, program, output)
    assert not output.parent.exists()


def test_a_family_without_a_flow_is_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"no build flow for .*, the family of odd, yet; there is for zynq-ultrascale\+, "
    ):
        find_flow(_board_of("nobody"))


def test_a_family_may_have_several_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the first one is the default, and that the error for another name lists all."""
    assert flow_names(KV260) == ("vivado",)
    monkeypatch.setattr(zynq_ultrascale_plus, "FLOWS", ("nextpnr", "vivado"))
    assert find_flow(KV260).LABEL == "yosys and nextpnr"
    assert find_flow(KV260, "vivado").LABEL == "Vivado"
    with pytest.raises(
        UsageError,
        match=r"no flow 'vivid' for zynq-ultrascale\+, the family of kv260; there is nextpnr, vivado; did you mean 'vivado'",
    ):
        find_flow(KV260, "vivid")


@pytest.mark.parametrize("name", names("edgedec.boards.flows.families"))
def test_every_flow_of_a_family_has_a_file(name: str) -> None:
    flows = load("edgedec.boards.flows.families", name).FLOWS
    assert flows
    for flow in flows:
        module = load("edgedec.boards.flows.tools", flow)
        missing = [member for member in ("LABEL", *vars(Flow)) if member[0] != "_" and not hasattr(module, member)]
        assert missing == []


def test_the_flow_is_part_of_the_identity(program: Program, output: Path) -> None:
    build(KV260, program, output, run=False)
    path = output / "build.json"
    path.write_text(path.read_text().replace('"flow": "vivado"', '"flow": "another"'))
    with pytest.raises(UsageError, match="holds another build: flow another, not vivado"):
        build(KV260, program, output)


def _board_of(family: str) -> Any:
    class Odd:
        name = "odd"

    odd = Odd()
    odd.family = family  # type: ignore[attr-defined]
    return odd


def test_an_accelerator_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"does not fit pynq-z2, estimated: lut [\d,]+ of 39,900.*lower slots 8"):
        check_build(find_board("pynq-z2"), AcceleratorConfig(ultra=False))
    config = AcceleratorConfig(beat_bytes=16, ports=1, slots=1, tile_rows=40, width=256, hidden=128, prefetch_beats=64)
    with pytest.raises(
        UsageError, match="pynq-z2 has 4 ports to memory of 32, 64 bits, the configuration has 1 of 128"
    ):
        check_build(find_board("pynq-z2"), replace(config, ultra=False, heads=2, kv_heads=2, head_dim=16))


def test_a_synthesis_is_reused(program: Program, output: Path) -> None:
    calls: list[AcceleratorConfig] = []

    def synthesis(config: AcceleratorConfig) -> tuple[str, Resources]:
        calls.append(config)
        return "yosys 1", Resources(lut=11, ff=22, bram18=3, uram=4, dsp=5)

    expected = {"by": "yosys 1", "lut": 11, "ff": 22, "bram36": 2, "uram": 4, "dsp": 5}
    for _ in range(2):
        result = build(KV260, program, output, run=False, synthesis=synthesis)
        assert result.report["resources"]["synthesised"] == expected
    assert build(KV260, program, output, run=False).report["resources"]["synthesised"] == expected
    assert len(calls) == 1
    assert ">synthesised: yosys 1" not in (output / "report.html").read_text()
    assert "synthesised: yosys 1" in (output / "report.html").read_text()


def test_two_builds_at_once_write_one_folder(program: Program, output: Path) -> None:
    """Let both write: there is one whole folder."""
    errors: list[BaseException] = []

    def one() -> None:
        try:
            build(KV260, program, output, run=False)
        except EdgedecError as error:
            if "another process builds" not in str(error):
                errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    build(KV260, program, output, run=False)
