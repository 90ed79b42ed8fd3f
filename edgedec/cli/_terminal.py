"""``edgedec simulate --terminal``: simulate the build of a board with a pseudo-terminal as its serial line."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edgedec.cli.console import note, print_json, progress
from edgedec.cli.options import line_command, resolve_model
from edgedec.errors import EdgedecError
from edgedec.progress import Progress

if TYPE_CHECKING:
    from edgedec.board import Board
    from edgedec.hw.config import AcceleratorConfig
    from edgedec.sim.boards.uart_board import BoardTerminal

__all__ = ["serve"]

_POLL_S = 0.5  # seconds between two polls of the simulation


def serve(model: str, *, board: str, configuration: str, baud: int, json: bool) -> None:
    """Simulate the board until Ctrl-C.

    Args:
        baud: bits per second of the simulated line; 0: the highest rate of the gateware.

    Raises:
        UsageError: a value is wrong, or the board has no serial line.
        UnsupportedError: the model does not fit the board, or the board's memory cannot be simulated.
        ToolError: a tool is missing or fails.
        EdgedecError: the gateware broke a rule of the memory.
    """
    from edgedec.boards import find_board
    from edgedec.sim.boards.uart_board import BoardTerminal, check_board, fastest_baud, simulated_board

    target = find_board(board)
    check_board(target)
    config = _config(model, board, configuration)
    baud = baud or fastest_baud(config)
    with progress("building the simulation") as report:
        machine = simulated_board(target, config, baud=baud, progress=report)
    with BoardTerminal(machine) as terminal:
        _say(
            _facts(terminal, line_command(model, str(terminal.path), board, configuration), target, config, baud),
            target,
            json=json,
        )
        begun = time.monotonic()
        try:
            with _ended_by_signals(), progress("simulating") as report:
                _watch(terminal, report)
        except KeyboardInterrupt:
            note(f"{machine.cycles:,} cycles simulated in {time.monotonic() - begun:.0f} s")
    if terminal.failure is not None:
        raise EdgedecError(f"the simulation ended: {terminal.failure}") from terminal.failure


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM, also in the background of a shell, which ignores SIGINT there."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _config(model: str, board: str, configuration: str) -> AcceleratorConfig:
    """Return the configuration that a command with ``--device uart:`` uses."""
    from edgedec.bundle.bundle import Bundle
    from edgedec.cli._accelerator import accelerator_options
    from edgedec.runtime.accelerator.model import chosen_config

    options = accelerator_options("uart", board=board, configuration=configuration, memory=None)
    assert options is not None
    return chosen_config(Bundle.open(resolve_model(model)), options, 1)


def _facts(terminal: BoardTerminal, command: str, board: Board, config: AcceleratorConfig, baud: int) -> dict[str, Any]:
    return {
        "simulated": True,
        "port": str(terminal.path),
        "board": board.name,
        "configuration": f"{config.hash:016x}",
        "clock_hz": config.clock_hz,
        "baud": baud,
        "command": command,
    }


def _say(facts: dict[str, Any], board: Board, *, json: bool) -> None:
    if json:
        print_json(facts)
        sys.stdout.flush()  # the reader waits for the port, and the command does not end
        return
    faster = "" if board.baud == facts["baud"] else f", not the board's {(board.baud or 0) / 1e6:g}"
    print(
        f"{facts['port']}: {facts['board']} of configuration {facts['configuration']}, simulated at "
        f"{facts['clock_hz'] / 1e6:g} MHz; the line has {facts['baud'] / 1e6:g} Mbaud{faster}\n"
        f"run in another shell:\n  {facts['command']}\nstop with Ctrl-C",
        flush=True,
    )


def _watch(terminal: BoardTerminal, report: Progress) -> None:
    """Report progress until the simulation ends by itself, which is an error."""
    before, then = terminal.board.cycles, time.monotonic()
    while terminal.running:
        time.sleep(_POLL_S)
        cycles, now = terminal.board.cycles, time.monotonic()
        rate = "waiting for a command" if terminal.stands else f"{(cycles - before) / (now - then):,.0f} per second"
        report(f"{cycles:,} cycles, {rate}", 0, 1)
        before, then = cycles, now
