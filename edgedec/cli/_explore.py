"""``edgedec build-bitstream --explore``: accelerators that a board could have, without building any."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import ToolError, UsageError

if TYPE_CHECKING:
    from edgedec.board import Board
    from edgedec.boards.flows.explore import Exploration, Point
    from edgedec.bundle import Bundle

__all__ = ["run_explore"]

_FORMAT, _VERSION = "edgedec-exploration", 1
_BY = {"resources": "edgedec's formulas, the accelerator alone", "speed": "edgedec's cycle model"}
_WORTH = 1.01  # times as fast as the row above: what gains less is not printed
_TITLES = {"token": "one token in a pass", "pass": "a token for each slot in a pass"}


def run_explore(
    bundle: Bundle,
    board: Board,
    configuration: str,
    *,
    output: Path | None,
    pool_name: str,
    workers: int,
    as_json: bool,
) -> None:
    """Estimate, print, and write into ``output`` if there is one.

    Raises:
        UsageError: the configuration is not the board's, or ``output`` holds a build or is no folder.
        UnsupportedError: nothing fits.
        ToolError: a package that the pool needs is not installed.
    """
    from edgedec.boards import all_boards
    from edgedec.boards.flows.explore import explore
    from edgedec.reference.integer_profile.model import integer_graph
    from edgedec.runtime.accelerator.options import parse_configuration
    from edgedec.workers import open_pool

    size, members = parse_configuration(configuration)
    if size != "board":
        raise UsageError(f"--explore varies what the board gets; write --configuration board, not {size}")
    if output is not None:
        _check_output(output)
    with progress("exploring") as report, open_pool(pool_name, workers=workers) as pool:
        found = explore(integer_graph(bundle), board, members, pool=pool, others=all_boards(), progress=report)
    data = _described(found)
    if as_json:
        print_json(data)
    else:
        _print(found)
    if output is not None:
        _write(output, found, data)


def _check_output(folder: Path) -> None:
    from edgedec.boards.flows.build import MANIFEST

    if (folder / MANIFEST).exists():
        raise UsageError(f"-o {folder}: holds a build; choose another folder for what --explore writes")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder}: is a file; name a folder")
    target = Path(os.path.realpath(folder)) if folder.is_symlink() else folder  # it may lead to what is made later
    if os.path.islink(target):
        raise UsageError(f"-o {folder}: is a link that leads back to itself; choose another name or remove it")
    there = next(place for place in (target, *target.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"-o {folder}: nothing can be written to {there}; choose another place")


def _described(found: Exploration) -> dict[str, Any]:
    """The content of explore.json; without times and places, so that it is the same wherever it was computed."""
    board = found.board
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
        "committed": list(found.depths),
        "chosen": found.chosen,
        "refusal": found.refusal,
        "fronts": {name: list(numbers) for name, numbers in found.fronts.items()},
        "points": [_point(point) for point in found.points],
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


def _print(found: Exploration) -> None:
    board, fitting = found.board, [point for point in found.points if point.fits]
    clocks = " to ".join(f"{clock / 1e6:g}" for clock in sorted({point.config.clock_hz for point in fitting}))
    print(
        f"{board.title}: {len(found.points):,} accelerators estimated, {len(fitting):,} fit; at {clocks} MHz, memory with "
        f"{board.bandwidth_bytes_s / 1e9:.2f} GB/s ({board.bandwidth_kind})"
    )
    for front in found.fronts:
        print(f"\nPareto front of estimated tokens/s and LUTs, {_TITLES[front]}:")
        _print_front(found, front)
    print(f"\n{_chosen(found)}")
    print(
        "All figures are estimated, of the accelerator alone. --json has every point; build one with --configuration TEXT."
    )


def _chosen(found: Exploration) -> str:
    """What --configuration board makes of it."""
    if found.refusal:
        return f"--configuration board, with the same members, takes none of them: {found.refusal}"
    if found.chosen is None:
        return "What --configuration board takes is none of them."
    beyond = found.points[found.chosen].beyond
    return "* what --configuration board takes" + (f": does not fit, {', '.join(beyond)}" if beyond else "")


def _print_front(found: Exploration, front: str) -> None:
    resources = [name for name, there in found.board.has.items() if there]
    rows = [["", *resources, *(f"tokens/s @{depth:,}" for depth in found.depths), "--configuration"]]
    shown = _worth(found, front)
    if found.chosen is not None and found.points[found.chosen].fits:
        shown = sorted({*shown, found.chosen}, key=lambda number: found.points[number].resources["lut"])
    for number in shown:
        point = found.points[number]
        rows.append(
            [
                "*" if number == found.chosen else "",
                *(f"{point.resources[name]:,}" for name in resources),
                *(f"{point.rate(front, at):,.1f}" for at in range(len(found.depths))),
                point.text,
            ]
        )
    print_table(rows, right=range(1, 1 + len(resources) + len(found.depths)))


def _worth(found: Exploration, front: str) -> list[int]:
    """The front without those that are hardly faster than a cheaper one."""
    shown: list[int] = []
    for number in found.fronts[front]:
        if not shown or found.points[number].rate(front) >= _WORTH * found.points[shown[-1]].rate(front):
            shown.append(number)
    return shown


def _write(folder: Path, found: Exploration, data: dict[str, Any]) -> None:
    """explore.json, explore.csv, explore.svg, each whole or not at all."""
    from edgedec.atomic import new_file
    from edgedec.boards.flows.explore_plot import write_plot

    Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)
    with new_file(folder / "explore.json") as partial:
        partial.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    with new_file(folder / "explore.csv") as partial, partial.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(_rows(found))
    try:
        write_plot(folder / "explore.svg", found)
    except ToolError as error:
        note(f"explore.svg was not drawn: {error}")
    note(f"written to {folder}")


def _rows(found: Exploration) -> list[Sequence[Any]]:
    """A point each; ``token_front`` and ``pass_front`` say whether it is on them."""
    from edgedec.boards.flows.explore import FRONTS, SWEPT

    speeds = [(front, at) for front in FRONTS for at in range(len(found.depths))]
    head = [
        "text",
        *SWEPT,
        *found.board.has,
        "memory_bytes",
        "beyond",
        *(f"{front}_tokens_per_second_at_{found.depths[at]}" for front, at in speeds),
        *(f"{front}_front" for front in FRONTS),
        "chosen",
    ]
    rows: list[Sequence[Any]] = [head]
    for number, point in enumerate(found.points):
        rows.append(
            [
                point.text,
                *(getattr(point.config, name) for name in SWEPT),
                *point.resources.values(),
                point.memory_bytes,
                "; ".join(point.beyond),
                *(f"{point.rate(front, at):.6g}" if point.fits else "" for front, at in speeds),
                *(int(number in found.fronts[front]) for front in FRONTS),
                int(number == found.chosen),
            ]
        )
    return rows
