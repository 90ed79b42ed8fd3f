"""Test ``edgedec build-bitstream --flow openxc7`` with stand-ins for the tools: its output, exit codes, the board bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.runtime.accelerator.board_bundle import open_board_bundle
from tests.boards.flows.openxc7.support import fake_openxc7
from tests.edgedec.cli.conftest import Edgedec
from tests.runtime.accelerator.support import make_board_bundle

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

CONFIGURATION = "small,context=64,prefetch_beats=64,beat_bytes=8,slots=1"
NOT_PROVEN = "clock 50 MHz, timing not proven: block RAM and PS7 paths are not analysed"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a model")
    return make_board_bundle.write_source(folder / "source", "native", seed=0, ids=40, template=None).path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder that all tests share, so that the model is calibrated once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def log(elsewhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    fake_openxc7.fake_hardware(monkeypatch)
    return fake_openxc7.fake_tools(tmp_path / "tools", monkeypatch)


def words(source: Path, flow: str = "openxc7", board: str = "pynq-z2") -> list[str | Path]:
    made: list[str | Path] = ["build-bitstream", "-m", source, "--board", board, "--flow", flow, "-o", "a build"]
    return [*made, "--configuration", CONFIGURATION]


@pytest.mark.thorough
def test_a_build_makes_a_board_bundle_and_says_that_timing_is_not_proven(edgedec: Edgedec, source: Path) -> None:
    outcome = edgedec(*words(source))
    assert (outcome.code, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert any("built by openXC7 (experimental)" in line for line in lines)
    assert f"{NOT_PROVEN}; the other paths would allow 61.23 MHz" in lines
    assert "met" not in outcome.stdout.split()
    bundle = open_board_bundle(Path("a build/accelerator.board"))
    assert (bundle.path / "accelerator.bit").read_bytes() == Path("a build/pynq-z2.bit").read_bytes()
    assert b"which made the design without Vivado" in (bundle.path / "accelerator.hwh").read_bytes()
    data = edgedec(*words(source), "--json").json
    assert (data["timing"]["kind"], "met" in data["timing"]) == ("not proven", False)  # type: ignore[index,operator]


@pytest.mark.thorough
@pytest.mark.parametrize("board", ["pynq-z2", "arty-z7-20"])
def test_no_build_writes_everything(edgedec: Edgedec, source: Path, board: str) -> None:
    outcome = edgedec(*words(source, board=board), "--no-build")
    assert (outcome.code, outcome.stderr) == (0, "nothing was built: --no-build\n")
    assert "clock 50 MHz, assumed" in outcome.stdout
    assert Path("a build/build.py").is_file()


@pytest.mark.thorough
def test_a_slow_path_is_an_error_without_a_board_bundle(
    edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_CLOCKS", fake_openxc7.clocks(43.21, "FAIL"))
    outcome = edgedec(*words(source))
    assert outcome.code == 1
    assert outcome.stderr == (
        "edgedec: timing is not met at 50 MHz: of the paths that are analysed, one allows 43.21 MHz; "
        "pynq-z2.timing-not-met.bit must not be used. Try another placement, --seed 2, or "
        f"--configuration {CONFIGURATION},clock_hz=21e6 in another folder\n"
    )
    assert not Path("a build/accelerator.board").exists()


@pytest.mark.thorough
def test_without_the_tools_everything_is_written_and_the_code_is_3(
    edgedec: Edgedec, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "tools/bin/nextpnr-xilinx").unlink()
    outcome = edgedec(*words(source))
    assert outcome.code == 3
    assert outcome.stderr.startswith(
        "edgedec: only the files were written: nextpnr-xilinx is not on the PATH; get openXC7"
    )
    assert Path("a build/rtl/top.il").is_file()


def test_an_unknown_flow_names_the_known_ones(edgedec: Edgedec, source: Path) -> None:
    outcome = edgedec(*words(source, flow="openxc"))
    assert (outcome.code, outcome.stderr) == (
        2,
        "edgedec: no flow 'openxc' for zynq-7000, the family of pynq-z2; there is vivado, openxc7; "
        "did you mean 'openxc7'?\n",
    )
    assert not Path("a build").exists()
