"""Build bitstreams of the ECP5 boards with several seeds, twice each, and write what the tools say of them as a table.

A row is a board, a model and a seed of the placement: whether nextpnr met each clock, the LUTs and blocks of RAM that were
placed, the hash of the bitstream, and whether a second build in a folder of its own gave the same bytes. It also names the
sources that the hardware was generated from (``code_hash``), so that a row of an earlier design can be told. Nothing was
run on a board.

A build takes minutes to an hour; it goes on where it was interrupted, and rows that are there are not built again, so run
the same command again. Run it at low priority (nice -n 15).

    .venv/bin/python -m benchmarks.accelerator.builds --boards orangecrab-85f --seeds 1 2
    .venv/bin/python -m benchmarks.accelerator.builds --write-docs      # all boards and seeds; writes docs/reports/builds.md
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.support.docs_tables import markdown_table, write_blocks
from benchmarks.support.shapes import STORIES_260K, token_ids, write_bundle
from edgedec.boards import all_boards, find_board
from edgedec.boards.flows.build import build, code_hash
from edgedec.boards.flows.check import is_possible
from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note, print_json, progress
from edgedec.cli.options import resolve_model
from edgedec.errors import EdgedecError, UsageError
from edgedec.host.paths import cache_folder
from edgedec.host.spelling import must_be_one_of
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.compiler.shapes import shape_model
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.reference.integer_profile.calibrate import calibrate_graph
from edgedec.reference.integer_profile.model import integer_graph, prepare

FILE = Path(__file__).resolve().parent / "figures" / "builds.json"
SEEDS = (1, 2, 3, 4, 5)
_SHOWN = 12  # digits of a hash in the table
_CALIBRATED = 64  # tokens of the text with which a model is calibrated


@dataclass(frozen=True, kw_only=True)
class Case:
    """A board, a model and the members of the configuration that differ from the board's choice."""

    board: str
    model: str
    members: Mapping[str, Any]


CASES = (
    Case(board="orangecrab-85f", model="stories260K's shape", members={"context": 256}),
    Case(board="ulx3s-85f", model="demo", members={}),
    Case(board="ulx3s-85f", model="demo-draft", members={}),
)


class Builds:
    """Builds in ``folder``, and the rows of those that ended, by board, model and seed."""

    def __init__(self, folder: Path, *, twice: bool = True) -> None:
        self._folder, self._twice, self._code = folder, twice, code_hash()[:_SHOWN]

    def row(self, case: Case, seed: int) -> dict[str, Any]:
        """Build, unless the row of the present sources is there.

        Raises:
            EdgedecError: a tool is missing or fails, see ``build``.
        """
        name = f"{case.board}-{case.model.partition(chr(39))[0]}-{self._code}"
        file = self._folder / f"{name}-{seed}.json"
        if file.exists():
            kept: dict[str, Any] = json.loads(file.read_text("utf-8"))
            if kept["same"] is not None or not self._twice:
                return kept
        program = self._program(case)
        row = self._built(case, program, self._folder / name / "one", seed)
        row["same"] = None
        if self._twice:
            row["same"] = self._built(case, program, self._folder / name / "two", seed)["sha256"] == row["sha256"]
        with new_file(file) as partial:
            partial.write_text(json.dumps(row, indent=1), "utf-8")
        return row

    def _program(self, case: Case) -> Program:
        path = self._folder / "stories260K"
        if case.model in ("demo", "demo-draft"):
            path = Path(resolve_model(case.model))
        elif not path.exists():
            write_bundle(path, STORIES_260K)
        bundle, device = Bundle.open(path), find_board(case.board)
        graph = integer_graph(bundle)
        config = config_for_board(
            shape_model(graph),
            device,
            others=all_boards(),
            accepts=lambda one: is_possible(device, one),
            **case.members,
        )
        windows = [token_ids(_CALIBRATED, bundle.config["vocab_size"])]
        calibration = calibrate_graph(graph, bundle.weight, windows, context=config.context)
        return compile_model(prepare(bundle, calibration), config, bundle=bundle.sha256, ids=bundle.tokens.size)

    def _built(self, case: Case, program: Program, folder: Path, seed: int) -> dict[str, Any]:
        device = find_board(case.board)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with progress(f"{case.board}, {case.model}, seed {seed}") as report:
            result = build(device, program, folder, seed=seed, progress=report)
        if result.built is None:
            assert result.missing is not None
            raise result.missing
        timing, placed = result.built.timing, result.built.resources
        return {
            "board": case.board,
            "model": case.model,
            "seed": seed,
            "clocks": {
                name: {one: clock[one] for one in ("wanted_hz", "achieved_hz", "met")}
                for name, clock in timing["clocks"].items()
            },
            "met": timing["met"],
            "lut": placed["lut"],
            "bram36": placed["bram36"],
            "sha256": hashlib.sha256(result.built.bitstream.read_bytes()).hexdigest(),
            "code": self._code,
            "tools": dict(result.built.tools),
        }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all cases and seeds; those without a row are not run."""
    header = (
        "board",
        "model",
        "seed",
        "clocks, reached of wanted MHz",
        "LUT",
        "block RAM (36 Kib)",
        "bitstream",
        "same",
        "sources",
    )
    there = {(row["board"], row["model"], row["seed"]): row for row in rows}
    lines = []
    for case in CASES:
        for seed in SEEDS:
            row = there.get((case.board, case.model, seed))
            start = (f"`{case.board}`", case.model, str(seed))
            lines.append((*start, *(_cells(row) if row else ("not run", "", "", "", "", ""))))
    return markdown_table(header, lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    clocks = ", ".join(
        f"{clock['achieved_hz'] / 1e6:.1f} of {clock['wanted_hz'] / 1e6:g}{'' if clock['met'] else ' **not met**'}"
        for clock in row["clocks"].values()
    )
    same = {True: "yes", False: "**no**", None: "built once"}[row["same"]]
    counts = (f"{row['lut']:,}", f"{row['bram36']:g}")
    return clocks, *counts, f"`{row['sha256'][:_SHOWN]}`", same, f"`{row['code']}`"


def read_rows() -> list[dict[str, Any]]:
    """Return the rows that were kept."""
    rows: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return rows


def _keep(rows: Sequence[Mapping[str, Any]]) -> None:
    """Put rows in the place of those of the same board, model and seed."""
    kept = {(row["board"], row["model"], row["seed"]): row for row in [*read_rows(), *rows]}
    FILE.write_text(json.dumps([kept[key] for key in sorted(kept)], indent=1) + "\n", "utf-8")


def main() -> None:
    names = list(dict.fromkeys(case.board for case in CASES))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", nargs="+", default=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=SEEDS, metavar="N", help="of 1 to 5, which is the default"
    )
    parser.add_argument("--once", action="store_true", help="do not build a second time to compare the bytes")
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FOLDER",
        default=cache_folder() / "builds",
        help="folder of the builds, some 200 MB for each board and model; by default in edgedec's cache",
    )
    parser.add_argument("--write-docs", action="store_true", help="keep the rows, and write docs/reports/builds.md")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    try:
        for name in args.boards:
            if name not in names:
                raise UsageError(must_be_one_of("--boards", name, names))
        if wrong := [seed for seed in args.seeds if seed not in SEEDS]:
            raise UsageError(f"--seeds must be {SEEDS[0]} to {SEEDS[-1]}, not {wrong[0]}")
        builds = Builds(args.state, twice=not args.once)
        for case in CASES:
            for seed in args.seeds if case.board in args.boards else ():
                rows.append(builds.row(case, seed))
                if args.write_docs:  # each, so that an interruption loses none
                    _keep(rows)
                    write_blocks({"builds rows": table(read_rows())})
    except EdgedecError as error:
        note(f"builds: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json({"rows": rows})
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
