"""Commands with ``--device uart:PORT``: the link's other side in Python, the program's interpreter behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle import Bundle
from edgedec.cli.options import accelerator_options
from edgedec.device import open_device
from edgedec.hw.config import AcceleratorConfig
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
    """One that the accelerator runs."""
    folder = tmp_path_factory.mktemp("a model")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return make_board_bundle.write_source(folder / "source", "native", seed=0, ids=40, template=template).path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def one_calibration(elsewhere: None, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """For all tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def configuration(bundle: Path, text: str | None = None) -> AcceleratorConfig:
    options = accelerator_options("uart:x", board=None, configuration=text, memory=None)
    assert options is not None
    return chosen_config(Bundle.open(bundle), options, 1)


@pytest.fixture
def port(bundle: Path) -> Iterator[Path]:
    """An ULX3S with the bundle's accelerator."""
    config = configuration(bundle)
    server = LinkServer(open_device("interpreter", config), memory_bytes=MEMORY, granule=config.port_bytes)
    with PseudoTerminal(server.take) as terminal:
        yield terminal.path
    assert terminal.failure is None


def test_the_accelerator_is_what_a_build_makes(bundle: Path) -> None:
    """The same function of bundle, board and --configuration, whatever --ctx-size the run has."""
    from edgedec.boards import find_board
    from edgedec.cli.build_bitstream import _config

    for text in ("board", "board,slots=1,context=512", "small"):
        wanted = _config(Bundle.open(bundle), find_board("ulx3s-85f"), text)
        assert configuration(bundle, text) == wanted


@pytest.mark.parametrize("more", [(), ("--spec-type", "ngram")])
def test_the_tokens_of_the_reference(edgedec: Edgedec, bundle: Path, port: Path, more: tuple[str, ...]) -> None:
    line = edgedec("generate", "-m", bundle, "--device", f"uart:{port}", *ASKED, *more)
    assert line.code == 0, line.stderr
    context = configuration(bundle).context
    board = ("--board", "ulx3s-85f", "--configuration", f"board,context={context}")
    reference = edgedec("generate", "-m", bundle, "--device", "interpreter", *board, *ASKED, *more)
    assert reference.code == 0, reference.stderr
    assert line.json["tokens"] == reference.json["tokens"]
    found, wanted = (_accelerator(outcome.json) for outcome in (line, reference))
    assert found["configuration"] == wanted["configuration"]
    assert (found["device"], found["board"], found["memory"]) == ("uart", "ulx3s-85f", None)


def _accelerator(data: Any) -> Any:
    return data["timings"]["accelerator"]


def test_a_conversation(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    found = edgedec("chat", "-m", bundle, "--device", f"uart:{port}", "--temp", "0", "-n", "8", stdin="w3 w4\n/stats\n")
    assert found.code == 0, found.stderr
    assert "uart: " in found.stdout
    again = edgedec("chat", "-m", bundle, "--device", f"uart:{port}", "--temp", "0", "-n", "8", stdin="w3 w4\n/stats\n")
    assert again.stdout.splitlines()[0] == found.stdout.splitlines()[0], "the port is free again"


def test_another_configuration_is_named_with_what_to_give(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    there, wanted = configuration(bundle), configuration(bundle, "board,slots=1")
    found = edgedec("generate", "-m", bundle, "--device", f"uart:{port}", "--configuration", "board,slots=1", *ASKED)
    assert found.code == 3
    assert f"is an accelerator of configuration {there.hash:016x}" in found.stderr
    assert f"--board ulx3s-85f --configuration board,slots=1 has {wanted.hash:016x}" in found.stderr
    assert "as they were given to edgedec build-bitstream" in found.stderr


def test_what_is_named_can_be_given(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    """Word by word: of booleans and of clocks as well."""
    text = "board,slots=1,ultra=false,clock_hz=50e6"
    found = edgedec("generate", "-m", bundle, "--device", f"uart:{port}", "--configuration", text, *ASKED)
    named = found.stderr.split("--configuration ")[1].split()[0]
    assert parse_configuration(named) == parse_configuration(text)


def test_a_longer_context_than_the_accelerator_has(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    found = edgedec("generate", "-m", bundle, "--device", f"uart:{port}", "-c", "4096", *ASKED)
    assert found.code == 2
    assert "--ctx-size must be 1 to 1024, which is what the accelerator has" in found.stderr


@pytest.mark.parametrize(
    ("device", "code", "message"),
    [
        ("uart", 2, "--device uart takes a port: write uart:PORT"),
        ("uart:/dev/nothing0", 3, "there is no /dev/nothing0; plug the board in"),
        ("uart:/dev/nothing0,baud=fast", 2, "--device: baud must be a number above 0, not 'fast'"),
        ("uart:/dev/nothing0,baud=-1", 2, "--device: baud must be a number above 0, not '-1'"),
        ("uart:/dev/nothing0,patience_s=nan", 2, "--device: patience_s must be a number above 0, not 'nan'"),
        ("uart:/dev/null", 3, "/dev/null is no serial port"),
        ("uart:/dev", 3, "/dev cannot be opened: Is a directory"),
    ],
)
def test_ports_that_are_none(edgedec: Edgedec, bundle: Path, device: str, code: int, message: str) -> None:
    found = edgedec("generate", "-m", bundle, "--device", device, *ASKED)
    assert (found.code, found.stdout) == (code, "")
    assert message in found.stderr


def test_options_behind_the_port(edgedec: Edgedec, bundle: Path, port: Path) -> None:
    """A rate that no serial port has: a pseudo-terminal has none."""
    found = edgedec("generate", "-m", bundle, "--device", f"uart:{port},baud=16000000,patience_s=3", *ASKED)
    assert found.code == 0, found.stderr
