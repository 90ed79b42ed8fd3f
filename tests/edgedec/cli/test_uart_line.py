"""Test commands with ``--device uart:PORT`` against a link in Python that runs the program in the interpreter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.cli._accelerator import accelerator_options
from edgedec.device import open_device
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.link_protocol import LinkCommand
from edgedec.runtime.accelerator.model import chosen_config
from edgedec.runtime.accelerator.options import parse_configuration
from edgedec.sim.boards.link_server import LinkServer, PseudoTerminal
from tests.edgedec.cli.conftest import Edgedec
from tests.runtime.accelerator.support import make_board_bundle

pytest.importorskip("amaranth")

MEMORY = 8 << 20
ASKED = ("-p", "w3 w4 w3", "--temp", "0", "-n", "12", "--ignore-eos", "--json")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle that the accelerator runs."""
    folder = tmp_path_factory.mktemp("a model")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return make_board_bundle.write_source(folder / "source", "native", seed=0, ids=40, template=template).path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def one_calibration(elsewhere: None, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Use one cache folder for all tests, so that the model is calibrated once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def configuration(bundle: Path, text: str | None = None) -> AcceleratorConfig:
    options = accelerator_options("uart:x", board=None, configuration=text, memory=None)
    assert options is not None
    return chosen_config(Bundle.open(bundle), options, 1)


@pytest.fixture
def port(bundle: Path) -> Iterator[Path]:
    """Return the port of a ULX3S with the bundle's accelerator."""
    config = configuration(bundle)
    server = LinkServer(open_device("interpreter", config), memory_bytes=MEMORY, granule=config.port_bytes)
    with PseudoTerminal(server.take) as terminal:
        yield terminal.path
    assert terminal.failure is None


def test_the_accelerator_is_the_one_of_a_build(bundle: Path) -> None:
    """Check that it depends on bundle, board and --configuration alone, and not on --ctx-size of the run."""
    from edgedec.boards import find_board
    from edgedec.cli.build_bitstream import _config

    for text in ("board", "board,slots=1,context=512", "small"):
        expected = _config(Bundle.open(bundle), find_board("ulx3s-85f"), text)
        assert configuration(bundle, text) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("--spec-type", "ngram")])
def test_the_tokens_are_those_of_the_reference(
    edgedec: Edgedec, bundle: Path, port: Path, options: tuple[str, ...]
) -> None:
    line = edgedec("generate", "-m", bundle, "--device", f"uart:{port}", *ASKED, *options)
    assert line.code == 0, line.stderr
    context = configuration(bundle).context
    board = ("--board", "ulx3s-85f", "--configuration", f"board,context={context}")
    reference = edgedec("generate", "-m", bundle, "--device", "interpreter", *board, *ASKED, *options)
    assert reference.code == 0, reference.stderr
    assert line.json["tokens"] == reference.json["tokens"]
    actual, expected = (_accelerator(outcome.json) for outcome in (line, reference))
    assert actual["configuration"] == expected["configuration"]
    assert (actual["device"], actual["board"], actual["memory"]) == ("uart", "ulx3s-85f", None)


def _accelerator(data: Any) -> Any:
    return data["timings"]["accelerator"]


@pytest.mark.thorough
def test_a_second_conversation_opens_the_port_again(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    outcome = edgedec(
        "chat", "-m", bundle, "--device", f"uart:{port}", "--temp", "0", "-n", "8", stdin="w3 w4\n/stats\n"
    )
    assert outcome.code == 0, outcome.stderr
    assert "uart: " in outcome.stdout
    again = edgedec("chat", "-m", bundle, "--device", f"uart:{port}", "--temp", "0", "-n", "8", stdin="w3 w4\n/stats\n")
    assert again.stdout.splitlines()[0] == outcome.stdout.splitlines()[0], "the port is free again"


@pytest.mark.thorough
def test_another_configuration_is_refused_with_the_option_to_give(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    actual, expected = configuration(bundle), configuration(bundle, "board,slots=1")
    outcome = edgedec("generate", "-m", bundle, "--device", f"uart:{port}", "--configuration", "board,slots=1", *ASKED)
    assert outcome.code == 3
    assert f"is an accelerator of configuration {actual.hash:016x}" in outcome.stderr
    assert f"--board ulx3s-85f --configuration board,slots=1 has {expected.hash:016x}" in outcome.stderr
    assert "as they were given to edgedec build-bitstream" in outcome.stderr


@pytest.mark.thorough
def test_a_configuration_is_named_as_it_can_be_given(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    """Check booleans and clocks as well."""
    text = "board,slots=1,ultra=false,clock_hz=50e6"
    outcome = edgedec("generate", "-m", bundle, "--device", f"uart:{port}", "--configuration", text, *ASKED)
    configuration_text = outcome.stderr.split("--configuration ")[1].split()[0]
    assert parse_configuration(configuration_text) == parse_configuration(text)


def built(folder: Path, rtlil_hash: int, config: AcceleratorConfig) -> Path:
    """Write what a build's folder says of its RTL."""
    folder.mkdir()
    content = {"identity": {"configuration": f"{config.hash:016x}"}, "rtlil_hash": f"{rtlil_hash:016x}"}
    (folder / "build.json").write_text(json.dumps(content), "utf-8")
    (folder / "ulx3s-85f.bit").write_bytes(b"bits")
    return folder


@pytest.mark.thorough
def test_another_build_is_refused_before_a_register_is_written(edgedec: Edgedec, bundle: Path, tmp_path: Path) -> None:
    """Answer with a hash of another build, from a board whose memory would be calibrated first."""
    config = configuration(bundle)
    inside = open_device("interpreter", config, rtlil_hash=7)
    server = LinkServer(inside, memory_bytes=MEMORY, granule=config.port_bytes, good=range(3, 7))
    folder = built(tmp_path / "a build", 8, config)
    with PseudoTerminal(server.take) as terminal:
        device = f"uart:{terminal.path},build={folder}"
        outcome = edgedec("generate", "-m", bundle, "--device", device, *ASKED)
        assert outcome.code == 3
        said = f"rtlil_hash reads {7:016x}, {folder / 'build.json'} says {8:016x}: another bitstream is loaded"
        assert said in outcome.stderr
        assert f"load {folder / 'ulx3s-85f.bit'}" in outcome.stderr
        assert {command for command, _ in server.executed} == {LinkCommand.IDENTIFY, LinkCommand.READ_REGISTER}
        (folder / "build.json").write_text((folder / "build.json").read_text().replace(f"{8:016x}", f"{7:016x}"))
        outcome = edgedec("generate", "-m", bundle, "--device", f"{device},baud=3000000", *ASKED)
        assert outcome.code == 0, outcome.stderr
    assert terminal.failure is None


def test_a_longer_context_than_that_of_the_accelerator_is_refused(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    outcome = edgedec("generate", "-m", bundle, "--device", f"uart:{port}", "-c", "4096", *ASKED)
    assert outcome.code == 2
    assert "--ctx-size must be 1 to 1024, which is what the accelerator has" in outcome.stderr


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("device", "code", "message"),
    [
        ("uart", 2, "--device uart takes a port: write uart:PORT"),
        ("uart:/dev/nothing0", 3, "there is no /dev/nothing0; plug the board in"),
        ("uart:/dev/nothing0,baud=fast", 2, "--device: baud must be a number above 0, not 'fast'"),
        ("uart:/dev/nothing0,baud=-1", 2, "--device: baud must be a number above 0, not '-1'"),
        ("uart:/dev/nothing0,patience_s=nan", 2, "--device: patience_s must be a number above 0, not 'nan'"),
        ("uart:/dev/null", 3, "/dev/null is no serial port"),
        ("uart:/dev/null,build=", 2, "--device: build is empty; name the folder of the build"),
        ("uart:/dev/null,build=/nowhere", 2, "--device: build=/nowhere has no build.json and no board.json; name the"),
        ("uart:/dev", 3, "/dev cannot be opened: Is a directory"),
    ],
)
def test_wrong_ports_are_refused(edgedec: Edgedec, bundle: Path, device: str, code: int, message: str) -> None:
    outcome = edgedec("generate", "-m", bundle, "--device", device, *ASKED)
    assert (outcome.code, outcome.stdout) == (code, "")
    assert message in outcome.stderr


@pytest.mark.thorough
def test_options_follow_the_port(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    """Use a rate that no serial port has, which a pseudo-terminal accepts."""
    outcome = edgedec("generate", "-m", bundle, "--device", f"uart:{port},baud=16000000,patience_s=3", *ASKED)
    assert outcome.code == 0, outcome.stderr
