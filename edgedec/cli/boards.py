"""``edgedec boards``: list the boards, and show every figure of a board with its source."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli._origins import OriginCommand
from edgedec.cli._spelling_check import SpelledGroup
from edgedec.cli.console import note, print_json, print_table
from edgedec.cli.options import Json, Verbose

if TYPE_CHECKING:
    from edgedec.board import Board

__all__ = ["boards"]

boards = typer.Typer(cls=SpelledGroup, no_args_is_help=True, help="List the boards, or show one of them.")

# Kinds of figures that are not from a data sheet.
_KINDS = {
    "clock_hz": "assumed",
    "most": "goal",
    "memory_peak_bytes_s": "peak",
    "memory_measured_bytes_s": "measured",
}
_EMBEDDED = "the embedded model"


@boards.command("list", cls=OriginCommand)
def list_boards(json: Json = False, verbose: Verbose = 0) -> None:
    """List the boards that edgedec knows."""
    from edgedec.boards import all_boards

    known = all_boards()
    fitting = _accelerators(known)
    if json:
        print_json({"boards": [_summary(board) | {"accelerator": fitting.get(board.name)} for board in known]})
        return
    header = ["board", "part", "LUT", "DSP", "memory", "reads", "clock", "host"]
    rows = [header + ([f"for {_EMBEDDED}, estimated"] if fitting else [])]
    for board in known:
        reads = f"{_written('bandwidth_bytes_s', board.bandwidth_bytes_s)} {board.bandwidth_kind}"
        clock = f"{_written('clock_hz', board.clock_hz)} {_KINDS['clock_hz']}"
        memory = f"{_written('memory_bytes', board.memory_bytes)} {board.memory_kind}"
        cells = [
            board.name,
            board.part,
            f"{board.has['lut']:,}",
            f"{board.has['dsp']:,}",
            memory,
            reads,
            clock,
            board.link,
        ]
        rows.append(cells + ([_in_words(fitting[board.name])] if fitting else []))
    _print(rows, right=(2, 3))
    note("to add a board, write a file for it: --board ./my_board.toml; see docs/boards.md")


@boards.command("show", cls=OriginCommand)
def show_board(
    board: Annotated[
        str,
        typer.Argument(metavar="BOARD", help="Name of a board in `edgedec boards list`, or path of a board's file."),
    ],
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Show every figure of a board with its source."""
    from edgedec.boards import find_board

    shown = find_board(board)
    fitting = _accelerators([shown])
    if json:
        bandwidth = {"bandwidth_bytes_s": shown.bandwidth_bytes_s, "bandwidth_kind": shown.bandwidth_kind}
        print_json(shown.members() | bandwidth | {"kinds": _KINDS, "accelerator": fitting.get(shown.name)})
        return
    rows = [["", shown.name, "", "source"]]
    members = shown.members()
    sources = members.pop("sources")
    for name, value in list(members.items())[1:]:
        if value not in (None, ()) or name in sources:
            rows.append([name, _written(name, value), _KINDS.get(name, ""), sources.get(name, "not given")])
    if fitting:
        rows.append(
            [f"for {_EMBEDDED}", _in_words(fitting[shown.name]), "estimated", "edgedec's choice of a configuration"]
        )
    _print(rows)


def _summary(board: Board) -> dict[str, Any]:
    keys = (
        "name",
        "title",
        "part",
        "family",
        "has",
        "clock_hz",
        "memory_kind",
        "memory_bytes",
        "link",
        "pynq",
        "loader",
        "loads",
    )
    members = board.members()
    bandwidth = {"bandwidth_bytes_s": board.bandwidth_bytes_s, "bandwidth_kind": board.bandwidth_kind}
    return {key: members[key] for key in keys} | bandwidth


def _accelerators(known: Sequence[Board]) -> dict[str, dict[str, Any]]:
    """Return the estimated accelerator of each board for the embedded model; empty if the generator is not installed."""
    if find_spec("amaranth") is None:
        return {}
    import json

    from edgedec.demo import TARGET
    from edgedec.errors import UnsupportedError
    from edgedec.hw.compiler.shapes import shape_graph, shape_model
    from edgedec.hw.plan.choose_board import config_for_board
    from edgedec.hw.plan.estimate import estimate

    # In a bundle, the head is a separate int8 matrix.
    shape = json.loads((TARGET / "config.json").read_text()) | {"tie_word_embeddings": False}
    model = shape_model(shape_graph(shape))
    fitting: dict[str, dict[str, Any]] = {}
    for board in known:
        try:
            config = config_for_board(model, board)
        except UnsupportedError as error:
            fitting[board.name] = {"fits": False, "reason": str(error)}
            continue
        shares = {name: round(share, 3) for name, share in estimate(config).shares(board).items()}
        sizes = {"beat_bytes": config.beat_bytes, "slots": config.slots, "context": config.context}
        fitting[board.name] = {"fits": True, "kind": "estimated", **sizes, "shares": shares}
    return fitting


def _in_words(accelerator: Mapping[str, Any]) -> str:
    if not accelerator["fits"]:
        return f"does not fit: {accelerator['reason']}"
    slots = f"{accelerator['slots']} slot{'s' if accelerator['slots'] > 1 else ''}"
    return f"{accelerator['beat_bytes']} bytes a cycle, {slots}, {accelerator['shares']['lut']:.0%} of the LUTs"


def _written(name: str, value: Any) -> str:
    """Return a member as text."""
    from edgedec.memory.byte_sizes import format_bytes

    if value is None or value == ():
        return "-"
    if name == "most":
        return ", ".join(f"{key} {share:.0%}" for key, share in value.items())
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {count:,}" for key, count in value.items())
    if name.endswith("_bytes_s"):
        return f"{value / 1e9:.3g} GB/s" if value < 10e9 else f"{value / 1e9:.2f} GB/s"
    if name.endswith("_hz"):
        return f"{value / 1e6:g} MHz"
    if name in ("memory_bytes", "cma_bytes"):
        return format_bytes(value)
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _print(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print columns that wrap on a terminal; elsewhere print a line for each row, so that output can be searched."""
    if not sys.stdout.isatty():
        print_table(rows, right=right)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for at, title in enumerate(rows[0]):
        table.add_column(Text(title), justify="right" if at in right else "left")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout).print(table)
