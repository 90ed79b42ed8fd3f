"""``edgedec build-bitstream --explore``: estimate the accelerators that fit a board, without building them."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import ToolError, UsageError

if TYPE_CHECKING:
    from edgedec.board import Board
    from edgedec.boards.flows.explore import Exploration, Point
    from edgedec.bundle.bundle import Bundle

__all__ = ["run_explore"]

_FORMAT, _VERSION = "edgedec-exploration", 1
_BY = {"resources": "edgedec's formulas, the accelerator alone", "speed": "edgedec's cycle model"}
_TITLES = {"token": "one token in a pass", "pass": "a token for each slot in a pass"}


def run_explore(
    bundle: Bundle,
    board: Board,
    configuration: str,
    *,
    flow: str | None,
    output: Path | None,
    pool_name: str,
    workers: int,
    as_json: bool,
) -> None:
    """Estimate accelerators, print them, and write them to the folder ``output`` if it is given.

    Raises:
        UsageError: the configuration is not ``board``, or ``output`` contains a build or is not a folder.
        UnsupportedError: no accelerator fits.
        ToolError: a package that the pool needs is not installed.
    """
    from edgedec.boards import all_boards
    from edgedec.boards.flows.explore import explore
    from edgedec.reference.integer_profile.model import integer_graph
    from edgedec.runtime.accelerator.options import parse_configuration
    from edgedec.workers import open_pool

    size, members = parse_configuration(configuration)
    if size != "board":
        raise UsageError(f"--explore varies the board's configuration; write --configuration board, not {size}")
    if output is not None:
        _check_output(output)
    with progress("exploring") as report, open_pool(pool_name, workers=workers) as pool:
        graph, others = integer_graph(bundle), all_boards()
        exploration = explore(graph, board, members, pool=pool, flow=flow, others=others, progress=report)
    data = _described(exploration)
    if as_json:
        print_json(data)
    else:
        _print(exploration)
    if output is not None:
        _write(output, exploration, data)


def _check_output(folder: Path) -> None:
    from edgedec.boards.flows.build import MANIFEST

    if (folder / MANIFEST).exists():
        raise UsageError(f"-o {folder}: contains a build; choose another folder for --explore")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder}: is a file; name a folder")
    target = Path(os.path.realpath(folder)) if folder.is_symlink() else folder  # its target may not exist yet
    if os.path.islink(target):
        raise UsageError(f"-o {folder}: is a link that leads back to itself; choose another name or remove it")
    there = next(place for place in (target, *target.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"-o {folder}: {there} cannot be written; choose another folder")


def _described(exploration: Exploration) -> dict[str, Any]:
    """Return the content of explore.json. It has no times and paths, so that it does not depend on the machine."""
    board = exploration.board
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "kind": "estimated",
        "by": _BY,
        "board": {name: board.members()[name] for name in ("name", "title", "part", "family")},
        "available": dict(board.has),
        "usable": {name: board.usable(name) for name in board.has},
        "memory_bytes": board.memory_bytes,
        "bandwidth_bytes_s": board.bandwidth_bytes_s,
        "bandwidth_kind": board.bandwidth_kind,
        "committed": list(exploration.depths),
        "best": dict(exploration.best),
        "chosen": exploration.chosen,
        "refusal": exploration.refusal,
        "fronts": {name: list(numbers) for name, numbers in exploration.fronts.items()},
        "points": [_point(point) for point in exploration.points],
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "text": point.text,
        "configuration": {"hash": f"{point.config.hash:016x}", **asdict(point.config)},
        "resources": dict(point.resources),
        "memory_bytes": point.memory_bytes,
        "fits": point.fits,
        "beyond": list(point.beyond),
        "passes": [asdict(speed) for speed in point.speeds],
    }


def _print(exploration: Exploration) -> None:
    board, fitting = exploration.board, [point for point in exploration.points if point.fits]
    clocks = " to ".join(f"{clock / 1e6:g}" for clock in sorted({point.config.clock_hz for point in fitting}))
    print(
        f"{board.title}: {len(exploration.points):,} accelerators estimated, {len(fitting):,} fit; at {clocks} MHz, "
        f"memory with {board.bandwidth_bytes_s / 1e9:.2f} GB/s ({board.bandwidth_kind})"
    )
    for front in exploration.fronts:
        print(f"\nPareto front of estimated tokens/s and LUTs, {_TITLES[front]}:")
        _print_front(exploration, front)
    print()
    for line in _marks(exploration):
        print(line)
    print(
        "All figures are estimates for the accelerator alone. --json has every point; build one with --configuration TEXT."
    )


def _marks(exploration: Exploration) -> Iterator[str]:
    """Yield the sentences about the marks of the rows."""
    yield "* on the front: the smallest accelerator whose speed is within 1 % of the fastest one's"
    if exploration.refusal:
        yield f"--configuration board, with the same members, chooses none of them: {exploration.refusal}"
    elif exploration.chosen is None:
        yield "--configuration board chooses none of them."
    elif beyond := exploration.points[exploration.chosen].beyond:
        yield f"b choice of --configuration board, which does not fit: {', '.join(beyond)}"
    else:
        yield f"b choice of --configuration board, by rules of its own{_improved(exploration)}"


def _improved(exploration: Exploration) -> str:
    """Return what is better than the choice of the board on the front of whole passes, which that choice is meant for."""
    number = exploration.better_than_chosen("pass")
    if number is None or exploration.chosen is None:
        return ""
    chosen, point = exploration.points[exploration.chosen], exploration.points[number]
    saved = chosen.resources["lut"] - point.resources["lut"]
    gain = point.rate("pass") / chosen.rate("pass") - 1
    speed = f"{gain:.1%} faster" if gain > 0.0005 else "as fast"
    return f"; {point.text} takes {saved:,} LUTs less and is {speed}, by estimate"


def _print_front(exploration: Exploration, front: str) -> None:
    resources = [name for name, there in exploration.board.has.items() if there]
    rows = [["", *resources, *(f"tokens/s @{depth:,}" for depth in exploration.depths), "--configuration"]]
    shown = sorted({*_worth(exploration, front), exploration.best[front]}, key=exploration.fronts[front].index)
    if exploration.chosen is not None and exploration.points[exploration.chosen].fits:
        shown = sorted({*shown, exploration.chosen}, key=lambda number: exploration.points[number].resources["lut"])
    for number in shown:
        point = exploration.points[number]
        rows.append(
            [
                "*" * (number == exploration.best[front]) + "b" * (number == exploration.chosen),
                *(f"{point.resources[name]:,}" for name in resources),
                *(f"{point.rate(front, at):,.1f}" for at in range(len(exploration.depths))),
                point.text,
            ]
        )
    print_table(rows, right=range(1, 1 + len(resources) + len(exploration.depths)))


def _worth(exploration: Exploration, front: str) -> list[int]:
    """Return the front without points that are hardly faster than a smaller one."""
    from edgedec.boards.flows.explore import WITHIN

    shown: list[int] = []
    for number in exploration.fronts[front]:
        if not shown or exploration.points[number].rate(front) >= WITHIN * exploration.points[shown[-1]].rate(front):
            shown.append(number)
    return shown


def _write(folder: Path, exploration: Exploration, data: dict[str, Any]) -> None:
    """Write explore.json, explore.csv and explore.svg, each completely or not at all."""
    from edgedec.boards.flows.explore_plot import write_plot
    from edgedec.bundle.atomic import new_file

    Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)
    with new_file(folder / "explore.json") as partial:
        partial.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    with new_file(folder / "explore.csv") as partial, partial.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(_rows(exploration))
    try:
        write_plot(folder / "explore.svg", exploration)
    except ToolError as error:
        note(f"explore.svg was not drawn: {error}")
    note(f"written to {folder}")


def _rows(exploration: Exploration) -> list[Sequence[Any]]:
    """Return a row for each point; ``token_front`` and ``pass_front`` are 1 if it is on the front, and ``token_best`` and
    ``pass_best`` if it has the star there.
    """
    from edgedec.boards.flows.explore import FRONTS, SWEPT

    speeds = [(front, at) for front in FRONTS for at in range(len(exploration.depths))]
    head = [
        "text",
        *SWEPT,
        *exploration.board.has,
        "memory_bytes",
        "beyond",
        *(f"{front}_tokens_per_second_at_{exploration.depths[at]}" for front, at in speeds),
        *(f"{front}_front" for front in FRONTS),
        *(f"{front}_best" for front in FRONTS),
        "chosen",
    ]
    rows: list[Sequence[Any]] = [head]
    for number, point in enumerate(exploration.points):
        rows.append(
            [
                point.text,
                *(getattr(point.config, name) for name in SWEPT),
                *point.resources.values(),
                point.memory_bytes,
                "; ".join(point.beyond),
                *(f"{point.rate(front, at):.6g}" if point.fits else "" for front, at in speeds),
                *(int(number in exploration.fronts[front]) for front in FRONTS),
                *(int(number == exploration.best[front]) for front in FRONTS),
                int(number == exploration.chosen),
            ]
        )
    return rows
