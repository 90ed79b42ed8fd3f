"""Compute how many tokens per second an accelerator writes for several users together, one token of each in a pass.

    .venv/bin/python -m benchmarks.accelerator.device_users --board kv260 --json   # one board's figures
    .venv/bin/python -m benchmarks.accelerator.device_users --write-docs           # write docs/reports/accelerator.md

All figures are estimates by the cycle model, as those of ``benchmarks.accelerator.options``, for the accelerator that the
board gets for eight texts of 512 positions. The host takes no time: its share for several users has not been counted,
because the scheduler that serves them is Python. It takes three seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.accelerator.speed import SHAPES
from benchmarks.support.docs_tables import markdown_table, write_blocks
from edgedec.board import Board
from edgedec.boards import all_boards, find_board
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.shapes import shape_graph, shape_model, shape_program
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate
from edgedec.runtime.driver.parts import positions_read

__all__ = ["figures", "users_table"]

_CASES = (("bitnet-0.73b", False), ("bitnet-0.73b", True), ("bitnet-2b4t", False), ("bitnet-2b4t", True))
_USERS, _ROWS = 8, 512  # texts, and positions of each
_DEPTHS = (128, 480)  # positions of the token that each user gets


def figures(board: Board) -> Iterator[dict[str, Any]]:
    """Yield for each shape and head: the configuration's slots, its share of LUTs, and tokens/s by depth and users."""
    for shape, rough in _CASES:
        graph = shape_graph(SHAPES[shape])
        model = shape_model(graph, rough_head=rough)
        config = config_for_board(model, board, others=all_boards(), texts=_USERS, context=_USERS * _ROWS)
        program, speeds = shape_program(graph, config), dict[str, dict[str, float]]()
        for depth in _DEPTHS:
            speeds[str(depth)] = together = {}
            for users in (1, 2, 4, 8):
                size = min(users, config.sequences)
                passes = [size] * (users // size) + ([users % size] if users % size else [])
                seconds = 0.0
                for rows in passes:
                    read = positions_read(config, [SequenceRows(slots=1, committed=depth - 1)] * rows)
                    one = cycles(program, slots=rows, committed=read, bandwidth=board.bandwidth_bytes_s)
                    seconds += one.cycles / config.clock_hz
                together[str(users)] = users / seconds
        yield {
            "shape": shape,
            "head": "rough" if rough else "int8",
            "slots": config.slots,
            "sequences": config.sequences,
            "lut_share": estimate(config).shares(board)["lut"],
            "tok_s_estimated": speeds,
        }


def users_table() -> str:
    """Return the table of the KV260."""
    rows = []
    for one in figures(find_board("kv260")):
        speeds = [f"{speed:.0f}" for of in one["tok_s_estimated"].values() for speed in of.values()]
        head = f"`{one['shape']}`, {one['head']}"
        rows.append((head, str(one["sequences"]), f"{100 * one['lut_share']:.0f} %", *speeds))
    users = [f"{number} at {depth}" for depth in _DEPTHS for number in (1, 2, 4, 8)]
    return markdown_table(("shape and head", "sequences", "LUT", *users), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="kv260", help="a board of `edgedec boards` (default: kv260)")
    parser.add_argument("--json", action="store_true", help="write JSON")
    parser.add_argument("--write-docs", action="store_true", help="write the KV260's table into the page that has it")
    options = parser.parse_args()
    if options.write_docs:
        write_blocks({"users": users_table()})
    if options.json:
        json.dump(
            {"board": options.board, "kind": "estimated", "figures": list(figures(find_board(options.board)))},
            sys.stdout,
            indent=1,
        )
        print()
    else:
        print(users_table())


if __name__ == "__main__":
    main()
