"""Test ``edgedec build-bitstream``: its exit codes, its output, and the board bundle that a build makes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgedec.host.install_hint import install_extra
from edgedec.hw.compiler.program_file import load_program
from edgedec.hw.handoff.write import write_hwh
from edgedec.runtime.accelerator.board_bundle import open_board_bundle
from tests.boards.flows.vivado.support import fake_vivado, make_reports
from tests.edgedec.cli.conftest import Edgedec
from tests.runtime.accelerator.support import make_board_bundle

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

CONFIGURATION = "small,context=64,prefetch_beats=64"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle that the accelerator runs."""
    return make_board_bundle.write_source(
        tmp_path_factory.mktemp("a model") / "source", "native", seed=0, ids=40, template=None
    ).path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder that all tests share, so that the model is calibrated once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def no_vivado(elsewhere: None, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    fake_vivado.fake_core(monkeypatch)
    monkeypatch.delenv("XILINX_VIVADO", raising=False)


def words(source: Path, board: str = "kv260", configuration: str = CONFIGURATION) -> list[str | Path]:
    return ["build-bitstream", "-m", source, "--board", board, "-o", "a build", "--configuration", configuration]


@pytest.mark.thorough
def test_without_vivado_everything_is_written_and_the_code_is_3(edgedec: Edgedec, source: Path) -> None:
    outcome = edgedec(*words(source))
    assert outcome.code == 3
    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr.startswith("edgedec: only the files were written: Vivado is not on the PATH")
    command = f"cd '{Path('a build').absolute()}' && vivado -mode batch -source build.tcl -log vivado.log -nojournal"
    assert outcome.stderr.endswith(f"and run: {command}\n")
    assert "not run in Vivado; configuration " in outcome.stdout
    assert re.search(r"^[\d.]+ to [\d.]+ tokens/s, estimated", outcome.stdout, re.MULTILINE)
    assert (Path("a build") / "rtl/accelerator.v").is_file()


@pytest.mark.thorough
def test_no_build_exits_with_0(edgedec: Edgedec, source: Path) -> None:
    outcome = edgedec(*words(source), "--no-build")
    assert (outcome.code, outcome.stderr) == (0, "nothing was built: --no-build\n")
    data: dict[str, Any] = edgedec(*words(source), "--no-build", "--json").json
    assert (data["state"], data["bitstream"], data["board_bundle"], data["missing"]) == ("written", None, None, None)
    assert data["resources"]["placed"] is None
    assert data["timing"]["kind"] == "assumed"


@pytest.mark.thorough
def test_json_without_vivado_says_what_is_missing(edgedec: Edgedec, source: Path) -> None:
    outcome = edgedec(*words(source), "--json")
    assert outcome.code == 3
    assert "get Vivado 2021.1 or newer" in outcome.json["missing"]  # type: ignore[operator]


@pytest.mark.thorough
@pytest.mark.parametrize(("wns", "code"), [("0.050", 0), ("-1.500", 1)])
def test_a_build_makes_a_board_bundle_if_timing_is_met(
    edgedec: Edgedec, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wns: str, code: int
) -> None:
    """Build with a fake Vivado, which returns the hand-off file and the reports that it is given."""
    assert edgedec(*words(source), "--no-build").code == 0
    config = load_program(Path("a build/program")).config
    rtlil_hash = fake_vivado.RTLIL_HASH
    write_hwh(config, tmp_path / "made.hwh", family="zynq-ultrascale+", part="by Vivado", rtlil_hash=rtlil_hash)
    reports = make_reports.write_reports(tmp_path / "reports", wns=wns)
    fake_vivado.fake_vivado(tmp_path / "bin", monkeypatch, hwh=str(tmp_path / "made.hwh"), reports=str(reports))
    outcome = edgedec(*words(source))
    assert outcome.code == code
    assert "placed" in outcome.stdout
    folder = Path("a build/accelerator.board")
    if code:
        assert outcome.stderr.startswith("edgedec: timing is not met: slack -1.5 ns (hold 0.011) at 99.999 MHz")
        assert f"--configuration {CONFIGURATION},clock_hz=86e6" in outcome.stderr
        assert (
            "the best of 6 attempts: the first failing path (setup) starts at accelerator_0/inst/core" in outcome.stderr
        )
        assert "accelerator.timing-not-met.bit must not be used, and there is no board bundle" in outcome.stderr
        assert outcome.stdout.count("  tried ") == 6
        assert not folder.exists()
        return
    bundle = open_board_bundle(folder)
    assert (bundle.board, bundle.config, bundle.rtlil_hash) == ("kv260", config, rtlil_hash)
    assert bundle.hwh.read_bytes() == (tmp_path / "made.hwh").read_bytes()
    assert f"board bundle: {folder.absolute()}" in outcome.stdout
    before = bundle.sha256
    assert edgedec(*words(source)).code == 0
    assert open_board_bundle(folder).sha256 == before


@pytest.mark.thorough
def test_a_hand_off_file_of_another_accelerator_is_refused(
    edgedec: Edgedec, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = make_reports.write_reports(tmp_path / "reports")
    fake_vivado.fake_vivado(tmp_path / "bin", monkeypatch, reports=str(reports))
    outcome = edgedec(*words(source))
    assert outcome.code == 1
    assert "accelerator.hwh does not describe an accelerator" in outcome.stderr


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("board", "configuration", "code", "message"),
    [
        ("kv261", "board", 2, "no board 'kv261'; there are arty-z7-20, "),
        ("./none.toml", "board", 2, "there is no such file"),
        ("kv260", "huge", 2, "--configuration must begin with one of small, board"),
        ("kv260", "board,slots=9", 2, "slots must be 1 to 8, not 9"),
        ("kv260", "board,colour=9", 2, "--configuration has no member 'colour=9'"),
        ("pynq-z2", "small", 2, "pynq-z2 has 4 ports to memory of 32, 64 bits, the configuration has 1 of 128"),
        ("pynq-z2", "board,context=65536,slots=8,beat_bytes=64", 1, "the model does not fit pynq-z2: with slots=8"),
    ],
)
def test_wrong_requests_are_refused(
    edgedec: Edgedec, source: Path, board: str, configuration: str, code: int, message: str
) -> None:
    outcome = edgedec(*words(source, board, configuration))
    assert (outcome.code, outcome.stdout) == (code, "")
    assert message in outcome.stderr
    assert not Path("a build").exists()


def test_without_the_generator_the_package_is_named(
    edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.cli.build_bitstream.find_spec", lambda name: None)
    outcome = edgedec(*words(source))
    assert (outcome.code, outcome.stdout) == (3, "")
    assert install_extra("hdl") in outcome.stderr


@pytest.mark.thorough
def test_another_model_in_the_same_folder_is_refused(edgedec: Edgedec, source: Path, tmp_path: Path) -> None:
    assert edgedec(*words(source), "--no-build").code == 0
    other = make_board_bundle.write_source(tmp_path / "other", "native", seed=1, ids=40, template=None).path
    outcome = edgedec(*words(other), "--no-build")
    assert outcome.code == 2
    assert "holds another build: of another model. Choose another folder, or remove it" in outcome.stderr


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("taken", "it exists and holds no build.json"),
        ("a file/build", "a file is not a folder"),
        ("other", "holds another build: board ulx3s-85f, not kv260"),
        ("full", "needs at least"),
    ],
)
def test_the_folder_is_looked_at_before_the_model_is_compiled(
    edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch, place: str, problem: str
) -> None:
    monkeypatch.setattr("edgedec.cli.build_bitstream._program", lambda *_: pytest.fail("the model is compiled"))
    Path("taken").mkdir()
    Path("taken/diary").write_text("dear")
    Path("a file").write_text("dear")
    if place == "full":
        monkeypatch.setattr("edgedec.bundle.atomic.shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    if place == "other":
        Path("other").mkdir()
        identity = {"board": "ulx3s-85f"}
        content = {"format": "edgedec-build", "version": 1, "identity": identity, "files": {}}
        Path("other/build.json").write_text(json.dumps(content))
    outcome = edgedec(
        "build-bitstream", "-m", source, "--board", "kv260", "--configuration", CONFIGURATION, "-o", place
    )
    assert outcome.code in (1, 2)
    assert problem in outcome.stderr
