"""Test ``edgedec simulate --terminal``, the serial line of a simulated board, with the link in Python as the board."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec.cli import _terminal
from edgedec.device import open_device
from edgedec.errors import DeviceError
from edgedec.hw.config import AcceleratorConfig
from edgedec.sim.boards.link_server import LinkServer
from tests.edgedec.cli.conftest import Edgedec
from tests.runtime.accelerator.support import make_board_bundle

pytest.importorskip("amaranth")

from edgedec.sim.boards import uart_board
from edgedec.sim.boards.uart_board import BoardTerminal

MEMORY = 8 << 20
CONFIGURATION = "board,slots=1,context=128"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle that the accelerator runs."""
    folder = tmp_path_factory.mktemp("a model")
    return make_board_bundle.write_source(folder / "source", "native", seed=0, ids=40, template=None).path


class Board:
    """Stand in for a UartBoard."""

    def __init__(self, config: AcceleratorConfig) -> None:
        device = open_device("interpreter", config)
        self.server = LinkServer(device, memory_bytes=MEMORY, granule=config.port_bytes)
        self.cycles, self.sending, self.closed, self.broken = 0, False, False, False

    def run(self, cycles: int, data: bytes = b"") -> bytes:
        if self.broken:
            raise AssertionError("tRCD: READ after 1 cycles")
        self.cycles += cycles
        return self.server.take(data)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Board, dict[str, Any]]]:
    """Return a list of the boards that were simulated, each with the options of its call."""
    requests: list[tuple[Board, dict[str, Any]]] = []

    def simulated_board(board: Any, config: AcceleratorConfig, **options: Any) -> Board:
        requests.append((Board(config), {"board": board.name, **options}))
        return requests[-1][0]

    monkeypatch.setattr(uart_board, "simulated_board", simulated_board)
    return requests


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[BoardTerminal], None]], None]:
    """Return a function that runs an action while the command serves, and then presses Ctrl-C."""

    def do(action: Callable[[BoardTerminal], None]) -> None:
        def watch(terminal: BoardTerminal, report: object) -> None:
            action(terminal)
            raise KeyboardInterrupt

        monkeypatch.setattr(_terminal, "_watch", watch)

    return do


@pytest.mark.thorough
def test_the_command_that_it_prints_runs(
    edgedec: Edgedec, bundle: Path, boards: list[Any], meanwhile: Callable[..., None]
) -> None:
    outcomes: list[Any] = []

    def generate(terminal: BoardTerminal) -> None:
        options = ("--configuration", CONFIGURATION, "-p", "w1 w2", "-n", "4", "--temp", "0", "--json")
        outcomes.append(edgedec("generate", "-m", bundle, "--device", f"uart:{terminal.path}", *options))

    meanwhile(generate)
    served = edgedec("simulate", "-m", bundle, "--terminal", "--configuration", CONFIGURATION)
    assert served.code == 0, served.stderr
    (board, options), (outcome,) = boards[0], outcomes
    assert outcome.code == 0, outcome.stderr
    accelerator = outcome.json["timings"]["accelerator"]
    first, *_, command, last = served.stdout.splitlines()
    port = first.partition(":")[0]
    assert first == (
        f"{port}: ulx3s-85f of configuration {accelerator['configuration']['hash']}, simulated at 80 MHz; the line has 20 "
        "Mbaud, not the board's 3"
    )
    assert command == (
        f"  edgedec chat -m '{bundle}' --device uart:{port} --board ulx3s-85f --configuration {CONFIGURATION}"
    )
    assert last == "stop with Ctrl-C"
    assert (options["board"], options["baud"]) == ("ulx3s-85f", 20_000_000)
    assert board.closed
    assert "cycles simulated in" in served.stderr


def test_json_is_one_object(edgedec: Edgedec, bundle: Path, boards: list[Any], meanwhile: Callable[..., None]) -> None:
    meanwhile(lambda terminal: None)
    served = edgedec("simulate", "-m", bundle, "--terminal", "--baud", "3000000", "--json")
    data = json.loads(served.stdout)
    assert set(data) == {"simulated", "port", "board", "configuration", "clock_hz", "baud", "command"}
    assert (data["simulated"], data["baud"], boards[0][1]["baud"]) == (True, 3_000_000, 3_000_000)
    assert "--configuration" not in data["command"]


def test_a_simulation_that_fails_ends_the_command(
    edgedec: Edgedec, bundle: Path, boards: list[Any], monkeypatch: Any
) -> None:
    """Check that its host gets the error, and that the command ends by itself."""
    monkeypatch.setattr(_terminal, "_POLL_S", 0.01)
    real = _terminal._say

    def say(facts: Any, board: Any, **options: Any) -> None:
        real(facts, board, **options)
        boards[0][0].broken = True
        with pytest.raises(DeviceError, match="no answer from"):
            open_device("uart", AcceleratorConfig(), port=Path(facts["port"]), patience_s=0.01)

    monkeypatch.setattr(_terminal, "_say", say)
    served = edgedec("simulate", "-m", bundle, "--terminal")
    assert served.code == 1
    assert "the simulation ended: tRCD: READ after 1 cycles" in served.stderr


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--terminal"], 2, "use either --bench NAME or -m BUNDLE"),
        (["--terminal", "--bench", "top"], 2, "--terminal needs the model of the accelerator"),
        (["-m", "MODEL", "--board", "ulx3s-85f"], 2, "--board, --configuration and --baud need --terminal"),
        (
            ["-m", "MODEL", "--terminal", "--board", "kv260"],
            2,
            "kv260 has no serial line, so it has no terminal; name a board that has one, such as ulx3s-85f or",
        ),
        (["-m", "MODEL", "--terminal", "--board", "moon"], 2, "no board 'moon'; there are"),
        (["-m", "MODEL", "--terminal", "--configuration", "huge"], 2, "--configuration must begin with one of"),
        (["-m", "MODEL", "--terminal", "--baud", "20000001"], 2, "--baud must be from 1 to 20000000, a quarter of"),
        (["-m", "MODEL", "--terminal", "--configuration", "board,context=65536,slots=8"], 1, "does not fit ulx3s-85f"),
    ],
)
def test_mistakes_are_refused_before_anything_is_built(
    edgedec: Edgedec, bundle: Path, words: list[str], code: int, message: str
) -> None:
    outcome = edgedec("simulate", *(str(bundle) if word == "MODEL" else word for word in words))
    assert (outcome.code, outcome.stdout) == (code, "")
    assert message in outcome.stderr


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[BoardTerminal]:
    monkeypatch.setattr(uart_board, "_QUIET", 40_000)
    board: Any = Board(AcceleratorConfig())
    with BoardTerminal(board) as terminal:
        yield terminal
    terminal.close()
    assert terminal.failure is None


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_simulated_time_stops_when_the_link_is_idle(terminal: BoardTerminal) -> None:
    _until(lambda: terminal.stands)
    before = terminal.board.cycles
    time.sleep(0.05)
    assert terminal.board.cycles == before
    device = open_device("uart", AcceleratorConfig(), port=terminal.path)
    assert terminal.board.cycles > before
    device.close()
    _until(lambda: terminal.stands)


def test_simulated_time_advances_during_a_command(terminal: BoardTerminal) -> None:
    """Delay the answer to a wait, which may take any number of cycles."""
    board: Any = terminal.board
    pending, late, real = bytearray(), [0], board.server.take

    def take(data: bytes) -> bytes:
        pending.extend(real(data))
        late[0] = late[0] + 1 if pending else 0
        if late[0] < 200:
            return b""
        answer = bytes(pending)
        pending.clear()
        return answer

    _until(lambda: terminal.stands)
    board.server.take, before = take, board.cycles
    device: Any = open_device("uart", AcceleratorConfig(), port=terminal.path, patience_s=5.0)
    assert board.cycles - before >= 199 * 4000
    assert device.link.retries == 0
    device.close()
