"""Run the Tcl in a Tcl interpreter and check every command and argument for Vivado; it was not run in Vivado.

After an intended change run ``EDGEDEC_WRITE_GOLDEN=1 pytest tests/boards/flows/vivado/test_tcl.py``, and read the
difference.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from edgedec.boards.flows.vivado.project import quoted
from edgedec.environment import WRITE_GOLDEN
from edgedec.errors import UsageError
from edgedec.hw.compiler.program import Program
from edgedec.hw.handoff.write import FAMILIES
from tests.boards.flows.vivado.support import fake_vivado
from tests.boards.flows.vivado.support.fake_vivado import SIZES, Ran, make_project, run_tcl

GOLDEN = Path(__file__).with_name("golden")
STRANGE = "a [folder] with $paces {and; \"quotes\" 'n' so"
BOARD_PARTS = {"kv260": "xilinx.com:kv260_som:part0:1.2 xilinx.com:kv260_som:part0:1.10", "pynq-z2": ""}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    bundle, first = fake_vivado.model(tmp_path_factory.mktemp("model"), **SIZES["kv260"])
    return {"kv260": first, **{name: fake_vivado.compiled(bundle, **SIZES[name]) for name in list(SIZES)[1:]}}


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Program]) -> dict[str, Path]:
    with pytest.MonkeyPatch.context() as patch:
        fake_vivado.fake_core(patch)
        root = tmp_path_factory.mktemp("projects")
        return {board: make_project(program, board, root / board / STRANGE) for board, program in programs.items()}


def run(projects: dict[str, Path], tmp_path: Path, board: str, **environment: str) -> tuple[Path, Ran]:
    """Run in a copy, like a user who moves the folder to another machine."""
    folder = tmp_path / board / STRANGE
    shutil.copytree(projects[board], folder)
    return folder, run_tcl(folder, tmp_path / "log", **environment)


@pytest.mark.parametrize("board", sorted(BOARD_PARTS))
def test_commands_equal_the_golden_ones(projects: dict[str, Path], tmp_path: Path, board: str) -> None:
    folder, result = run(projects, tmp_path, board, STUB_BOARD_PARTS=BOARD_PARTS[board])
    assert result.status == 0, result.said
    golden = GOLDEN / f"{board}.txt"
    if WRITE_GOLDEN.is_on():
        golden.write_text("\n".join(result.commands) + "\n")
    assert result.commands == golden.read_text().splitlines()
    assert (folder / "results/accelerator.bit").read_text() == "no bitstream at all"
    assert not (folder / "results.part").exists()


@pytest.mark.thorough
def test_a_missing_command_is_detected(projects: dict[str, Path], tmp_path: Path) -> None:
    """Remove each line with a command for Vivado."""
    golden = (GOLDEN / "pynq-z2.txt").read_text().splitlines()
    folder = tmp_path / "mutant"
    shutil.copytree(projects["pynq-z2"], folder)
    survivors, count = [], 0
    telling = re.compile(
        r"^ +(connect_bd|set_property|assign_bd|make_bd|validate|save|launch|wait_on|report_|ipx::|add_files)"
    )
    for path in (
        folder / name for name in ("build.tcl", "block_design.tcl", "processing_system.tcl", "ip/package.tcl")
    ):
        lines = path.read_text().splitlines(keepends=True)
        for at, line in enumerate(lines):
            if telling.match(line) and not line.endswith("\\\n"):
                count += 1
                path.write_text("".join([*lines[:at], *lines[at + 1 :]]))
                shutil.rmtree(folder / "work", ignore_errors=True)
                if run_tcl(folder, tmp_path / "log").commands == golden:
                    survivors.append(f"{path.name}: {line.strip()}")
        path.write_text("".join(lines))
    assert count > 40
    # text that occurs only with another number of ports, or with board files
    assert [line for line in survivors if "board_part" not in line] == []


def test_a_changed_argument_is_detected(projects: dict[str, Path], tmp_path: Path) -> None:
    folder, result = run(projects, tmp_path, "pynq-z2")
    text = (folder / "settings.tcl").read_text()
    for name in ("part", "ports", "port_bits", "registers_address", "registers_bytes", "vlnv", "jobs"):
        damaged = re.sub(rf"(?m)^    {name} (\S)", rf"    {name} 1\1", text)
        assert damaged != text
        (folder / "settings.tcl").write_text(damaged.replace("ports 12", "ports 1"))
        shutil.rmtree(folder / "work")
        assert run_tcl(folder, tmp_path / "log").commands != result.commands, name


@pytest.mark.parametrize("board", sorted(SIZES))
def test_every_bus_clock_and_reset_is_connected_once(
    projects: dict[str, Path], programs: dict[str, Program], tmp_path: Path, board: str
) -> None:
    """Check this without the golden file."""
    _, result = run(projects, tmp_path, board)
    ports, bits = programs[board].config.ports, 8 * programs[board].config.port_bytes
    text = "\n".join(result.commands)
    buses = [pair.split()[1:] for pair in result.commands if pair.startswith("connect_bd_intf_net ")]
    ends = [end for pair in buses for end in pair]
    assert len(ends) == len(set(ends))
    ultra = "zynq_ultra" in text
    memory = "/zynq_ultra_ps_e_0/S_AXI_HP{}_FPD" if ultra else "/processing_system7_0/S_AXI_HP{}"
    for port in range(ports):
        accelerator = f"/accelerator_0/m_axi_{port}"
        if ultra:
            assert [accelerator, memory.format(port)] in buses
        else:
            assert [accelerator, f"/memory_{port}/S_AXI"] in buses
            assert [f"/memory_{port}/M_AXI", memory.format(port)] in buses
    width = "PSU__SAXIGP{}__DATA_WIDTH" if ultra else "PCW_S_AXI_HP{}_DATA_WIDTH"
    first = 2 if ultra else 0
    for port in range(4):
        assert (f"CONFIG.{width.format(port + first)} {bits}" in text) == (port < ports)
    nets = [pair.split()[1:] for pair in result.commands if pair.startswith("connect_bd_net ")]
    driven = [end for _, end in nets]
    assert len(driven) == len(set(driven))
    cells = [line.split()[-1] for line in result.commands if line.startswith("create_bd_cell ")]
    for cell in set(cells) - {"zynq_ultra_ps_e_0", "processing_system7_0", "reset"}:
        assert sum(end.startswith(f"/{cell}/") and ("clk" in end) for end in driven) == 1, cell
        assert sum(end.startswith(f"/{cell}/") and ("resetn" in end or "rst_n" in end) for end in driven) == 1, cell
    assert not re.search(
        r"xilinx\.com:ip:\w+:\d", "".join(path.read_text() for path in projects[board].glob("**/*.tcl"))
    )
    system = FAMILIES["zynq-ultrascale+" if ultra else "zynq-7000"]
    assert f"assign_bd_address -offset {system.accelerator_address:#010x} -range 4096 " in text
    assert f"assign_bd_address -offset {system.controller_address:#010x} -range 65536 " in text


def test_an_interrupted_run_continues(projects: dict[str, Path], tmp_path: Path) -> None:
    folder, interrupted = run(projects, tmp_path, "kv260", STUB_FAIL="open_run")
    assert (interrupted.status, (folder / "results").exists()) == (1, False)
    assert "ERROR: ERROR: [Stub 1-1] open_run failed" in interrupted.said
    again = run_tcl(folder, tmp_path / "log")
    assert again.status == 0
    assert [
        line for line in again.commands if line.startswith(("open_project", "reset_run", "launch_runs", "create_"))
    ] == [
        "open_project <work>/project/edgedec.xpr",
        "reset_run impl_1",
        "launch_runs impl_1 -to_step write_bitstream -jobs 4",
    ]
    assert (folder / "results/facts.txt").read_text().splitlines()[2] == "clock_mhz 99.999"


@pytest.mark.parametrize("at", ["ipx::save_core", "validate_bd_design", "wait_on_run"])
def test_a_run_interrupted_early_starts_again(projects: dict[str, Path], tmp_path: Path, at: str) -> None:
    folder, interrupted = run(projects, tmp_path, "kv260", STUB_FAIL=at)
    assert interrupted.status == 1
    (folder / "work/left over").write_text("x")
    again = run_tcl(folder, tmp_path / "log")
    assert (again.status, (folder / "work/left over").exists()) == (0, False)
    assert again.commands[1].startswith("create_project -force packaging")


def test_the_synthesis_of_another_project_is_not_used(projects: dict[str, Path], tmp_path: Path) -> None:
    folder, _ = run(projects, tmp_path, "kv260")
    text = (folder / "settings.tcl").read_text()
    (folder / "settings.tcl").write_text(re.sub(r"    key \S+", f"    key {'0' * 64}", text))
    assert run_tcl(folder, tmp_path / "log").commands[1].startswith("create_project -force packaging")


# Faults that a person may make: file, text, what stands in its place, and what the stand-in says.
PLANTED = {
    "an unknown command": ("build.tcl", "report_power -file", "report_powr -file", "has no command report_powr"),
    "an unknown option": ("build.tcl", "-to_step write_b", "-up_to write_b", "launch_runs has no option -up_to"),
    "an unknown property": (
        "build.tcl",
        "STEPS.PHYS_OPT_DESIGN.IS_EN",
        "STEPS.PHYS_OPT.IS_EN",
        "no property STEPS.PHYS_OPT.",
    ),
    "a wrong choice": (
        "build.tcl",
        "-to_step write_bitstream",
        "-to_step route",
        "-to_step takes write_bitstream, not route",
    ),
    "a wrong type": ("settings.tcl", "jobs 4", "jobs four", "launch_runs -jobs takes int, not four"),
    "a wrong property": ("ip/package.tcl", "property width 32", "property width x", "property width takes int, not x"),
    "a missing option": ("build.tcl", " -part $settings(part)\n    use", "\n    use", "create_project needs -part"),
    "a missing argument": (
        "block_design.tcl",
        "create_bd_design $settings(design)",
        "create_bd_design",
        "takes 1 to 1",
    ),
    "an unknown strategy": ("settings.tcl", "Vivado\\ Synthesis\\ Defaults", "Fast", "no strategy Fast"),
    "no sources": ("ip/package.tcl", "    add_files -norecurse $sources\n", "", "package_project before add_files"),
    "no integrity": ("ip/package.tcl", "    ipx::check_integrity $core\n", "", "save_core before ipx::check_integrity"),
    "no wrapper": (
        "block_design.tcl",
        "    add_files -norecurse [list [make_wrapper -files $file -top]]\n",
        "",
        "of the wrapper",
    ),
    "no validation": ("block_design.tcl", "    validate_bd_design\n", "", "save_bd_design before validate_bd_design"),
    "no targets": (
        "block_design.tcl",
        "    generate_target all $file\n",
        "",
        "launch_runs synth_1 before generate_target",
    ),
    "no waiting": ("build.tcl", "    wait_on_run synth_1\n", "", "launch_runs impl_1 before the end of synth_1"),
    "no opened run": ("build.tcl", "    open_run impl_1\n", "", "report_timing_summary before open_run"),
    "no closing": ("build.tcl", "    close_design\n", "", "reset_run before close_design"),
    "no reset": ("build.tcl", "    reset_run impl_1\n", "", "a strategy of a run that was not reset"),
}


@pytest.mark.parametrize("what", sorted(PLANTED))
def test_what_vivado_would_refuse_is_refused(projects: dict[str, Path], tmp_path: Path, what: str) -> None:
    file, text, other, message = PLANTED[what]
    folder = tmp_path / "planted"
    shutil.copytree(projects["pynq-z2"], folder)
    before = (folder / file).read_text()
    assert text in before
    (folder / file).write_text(before.replace(text, other))
    result = run_tcl(folder, tmp_path / "log", STUB_SLACKS="-0.5 -0.2 0.1")
    assert result.status == 1
    assert message in result.said
    assert not (folder / "results").exists()


def attempts(folder: Path) -> list[list[str]]:
    return [line.split("\t") for line in (folder / "results/attempts.txt").read_text().splitlines()]


def test_attempts_end_with_the_first_that_meets_timing(projects: dict[str, Path], tmp_path: Path) -> None:
    folder, result = run(projects, tmp_path, "kv260", STUB_SLACKS="-0.5 -0.2 0.1 0.3")
    assert result.status == 0, result.said
    assert [row[:3] + row[4:5] for row in attempts(folder)] == [
        ["250", "Vivado Synthesis Defaults", "Vivado Implementation Defaults", "-0.5"],
        ["250", "Flow_PerfOptimized_high", "Performance_ExplorePostRoutePhysOpt", "-0.2"],
        ["250", "Flow_PerfOptimized_high", "Performance_ExtraTimingOpt", "0.1"],
    ]
    assert result.commands.count("launch_runs synth_1 -jobs 4") == 2, (
        "the third attempt has the synthesis of the second"
    )
    assert {path.name for path in (folder / "results").iterdir()} >= {"accelerator.bit", "accelerator.xsa", "facts.txt"}
    assert "path_kind" not in (folder / "results/facts.txt").read_text()
    assert [path.name for path in (folder / "results").glob("*.bit")] == ["accelerator.bit"]


def test_if_none_meets_timing_the_nearest_is_kept_under_another_name(projects: dict[str, Path], tmp_path: Path) -> None:
    folder, result = run(projects, tmp_path, "pynq-z2", STUB_SLACKS="-0.5 -0.2 -0.1 -0.3 -0.4 -0.6")
    assert result.status == 0, result.said
    assert [row[0] for row in attempts(folder)] == ["250", "250", "250", "250", "214.286", "187.5"]
    frequency = "set_property CONFIG.PCW_FPGA0_PERIPHERAL_FREQMHZ "
    clocks = [line.removeprefix(frequency).split()[0] for line in result.commands if line.startswith(frequency)]
    assert clocks == ["250", "250", "250", "214.286", "187.5"], "one for each synthesis"
    names = {path.name for path in (folder / "results").iterdir()}
    assert "accelerator.timing-not-met.bit" in names
    assert names.isdisjoint({"accelerator.bit", "accelerator.xsa"})
    facts = (folder / "results/facts.txt").read_text().splitlines()
    assert {"path_slack_ns -0.1", "path_levels 12", "path_to accelerator_0/inst/core/there_reg/D"} <= set(facts)
    assert "edgedec: timing is not met" in result.said
    again = run_tcl(folder, tmp_path / "log")
    assert (again.status, "every attempt was made before; remove work/ and results/" in again.said) == (1, True)


def test_an_interrupted_run_continues_with_its_attempt(projects: dict[str, Path], tmp_path: Path) -> None:
    folder, whole = run(projects, tmp_path, "kv260", STUB_SLACKS="-0.5 -0.2 0.1")
    expected = attempts(folder)
    shutil.rmtree(tmp_path / "kv260")
    folder, first = run(projects, tmp_path, "kv260", STUB_SLACKS="-0.5", STUB_STOP_AT="2 open_run")
    assert (first.status, (folder / "results").exists()) == (1, False)
    again = run_tcl(folder, tmp_path / "log", STUB_SLACKS="-0.2 0.1")
    assert again.status == 0, again.said
    assert attempts(folder) == expected
    assert "launch_runs synth_1 -jobs 4" not in again.commands
    assert len(whole.commands) > len(again.commands)


def test_a_report_without_slacks_stops_the_build(projects: dict[str, Path], tmp_path: Path) -> None:
    folder, result = run(projects, tmp_path, "kv260", STUB_SLACKS="NA")
    assert result.status == 1
    assert "timing_summary.rpt has no number WNS(ns): no path was timed" in result.said
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("version", "status"), [("2020.2", 1), ("2019.10", 1), ("2021.1", 0), ("2023.2.1", 0), ("2022.1_AR1", 0)]
)
def test_the_script_checks_the_version_too(
    projects: dict[str, Path], tmp_path: Path, version: str, status: int
) -> None:
    _, result = run(projects, tmp_path, "kv260", STUB_VERSION=version)
    assert result.status == status
    if status:
        assert f"edgedec: this is Vivado {version}, the project needs 2021.1 or newer" in result.said
        assert result.commands == ["version -short"]


@pytest.mark.parametrize("text", ["", "a", STRANGE, "}{", "\\", "#x", "[exit]", "$x", '"', "a  b;c"])
def test_words_are_quoted_for_tcl(tmp_path: Path, text: str) -> None:
    script = f"array set settings {{\n    a {quoted(text)}\n    b x\n}}\nputs <$settings(a)>$settings(b)\n"
    (tmp_path / "build.tcl").write_text(script)
    assert run_tcl(tmp_path, tmp_path / "log").said == f"<{text}>x\n"


@pytest.mark.parametrize("text", ["a\tb", "a\nb", "\0"])
def test_what_cannot_be_quoted_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be written into a Tcl script"):
        quoted(text)
