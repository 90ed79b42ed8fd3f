"""Compute how many tokens per second an accelerator writes for several users together, one token of each in a pass.

    .venv/bin/python -m benchmarks.accelerator.device_users --board kv260 --json   # one board's figures
    .venv/bin/python -m benchmarks.accelerator.device_users --write-docs           # write docs/reports/accelerator.md

All figures are estimates by the cycle model, as those of ``benchmarks.accelerator.options``, for the accelerator that the
board gets for eight texts of 512 positions. The host's instructions are counted (``host_instructions``), and their time
is estimated as a range: that of the compiled loop, and of Python at the end of a flight of 32 rounds, when the device waits
for it (``runtime/loop/flight.py``). While a flight goes on, Python reads the tokens on another core. No prompt is read
meanwhile. Where users need several passes, Python runs the rounds, and the host has no figure. It takes three seconds.

The first token is that of a request in a session that has answered one: 127 rows in posted passes, then the last token's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from typing import Any

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.accelerator.device_clock import HostCosts
from benchmarks.accelerator.host_instructions import host_costs
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
from edgedec.runtime.loop.rounds import MOST_ROUNDS

__all__ = ["figures", "first_token", "first_token_table", "users_table"]

_SHAPES = ("bitnet-0.73b", "bitnet-2b4t")
# Planes of the rough head, and members of the configuration: with eight candidates a KV260 keeps its eighth slot.
_HEADS = {"int8": (0, {}), "one plane": (1, {}), "two planes, `top_k` 8": (2, {"top_k": 8})}
_USERS, _ROWS = 8, 512  # texts, and positions of each
_DEPTHS = (128, 480)  # positions of the token that each user gets
_PROMPT = 128  # tokens of the prompt whose first token is timed
_COUNTED = "bitnet-0.73b"  # the shape whose sizes the host's counts are of
_ENDS = ("at best", "at worst")


def figures(board: Board) -> Iterator[dict[str, Any]]:
    """Yield for each shape and head: the configuration's slots, its share of LUTs, and tokens/s by depth and users."""
    for shape, (head, (planes, members)) in product(_SHAPES, _HEADS.items()):
        graph = shape_graph(SHAPES[shape])
        model, asked = shape_model(graph, rough_head=planes), dict[str, Any](context=_USERS * _ROWS, **members)
        config = config_for_board(model, board, others=all_boards(), texts=_USERS, **asked)
        program, speeds = shape_program(graph, config), dict[str, dict[str, float]]()
        with_host = {end: dict[str, dict[str, float]]() for end in _ENDS}
        for depth in _DEPTHS:
            speeds[str(depth)] = together = {}
            for end in _ENDS:
                with_host[end][str(depth)] = {}
            for users in (1, 2, 4, 8):
                size = min(users, config.sequences)
                passes = [size] * (users // size) + ([users % size] if users % size else [])
                seconds = 0.0
                for rows in passes:
                    read = positions_read(config, [SequenceRows(slots=1, committed=depth - 1)] * rows)
                    one = cycles(program, slots=rows, committed=read, bandwidth=board.bandwidth_bytes_s)
                    seconds += one.cycles / config.clock_hz
                together[str(users)] = users / seconds
                for number, end in enumerate(_ENDS):
                    if shape == _COUNTED and len(passes) == 1:
                        costs = host_costs(number), host_costs(number, rough=max(config.top_k, 16) if planes else 0)
                        due = round_seconds(*costs, users, seconds)
                        with_host[end][str(depth)][str(users)] = users / due
        yield {
            "shape": shape,
            "head": head,
            "slots": config.slots,
            "sequences": config.sequences,
            "lut_share": estimate(config).shares(board)["lut"],
            "tok_s_estimated": speeds,
            "tok_s_with_host_counted": with_host,
        }


def round_seconds(costs: HostCosts, own: HostCosts, users: int, device: float) -> float:
    """Return the seconds of a round of users in a flight, of which its pass takes ``device``; ``own``: of this head."""
    read, flight = costs.seconds("python read", users), costs.seconds("python flight", users)
    loop = costs.seconds("texts", users) + own.seconds("result", users) - costs.seconds("result", users)
    return max(device + loop, read) + (read + flight) / MOST_ROUNDS


def first_token(board: Board) -> dict[str, float]:
    """Return the seconds of a prompt's first token: the device alone, and with the host at best and at worst."""
    graph = shape_graph(SHAPES[_COUNTED])
    config = config_for_board(shape_model(graph), board, others=all_boards())
    program, rows = shape_program(graph, config), _PROMPT - 1

    def seconds(slots: int, committed: int, *, logits: bool) -> float:
        one = cycles(program, slots=slots, committed=committed, logits=logits, bandwidth=board.bandwidth_bytes_s)
        return one.cycles / config.clock_hz

    posted = [seconds(min(config.slots, rows - at), at, logits=False) for at in range(0, rows, config.slots)]
    last, found = seconds(1, rows, logits=True), dict[str, float]()
    found["device alone"] = sum(posted) + last
    for number, end in enumerate(_ENDS):
        costs = host_costs(number)
        post = costs.seconds("python post", 1)  # it is less than a pass takes, except for the first one
        waits = sum(max(0.0, post - one) for one in posted[:-1])
        beside = sum(costs.seconds(part, 1) for part in ("python ask", "python begin", "python first"))
        found[f"host {end}"] = found["device alone"] + waits + beside
    return found


def first_token_table() -> str:
    """Return the table of the first token on the KV260."""
    found = first_token(find_board("kv260"))
    return markdown_table([f"{name}, s" for name in found], [[f"{seconds:.3f}" for seconds in found.values()]])


def users_table() -> str:
    """Return the table of the KV260."""
    rows = []
    for one in figures(find_board("kv260")):
        best, worst = (one["tok_s_with_host_counted"][end] for end in _ENDS)
        speeds = [
            f"{speed:.0f}"
            + (f" ({worst[depth][users]:.0f} to {best[depth][users]:.0f})" if users in best[depth] else "")
            for depth, of in one["tok_s_estimated"].items()
            for users, speed in of.items()
        ]
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
        write_blocks({"users": users_table(), "users first": first_token_table()})
    if options.json:
        board = find_board(options.board)
        kind = "estimated; the host's instructions are counted"
        found = {
            "board": options.board,
            "kind": kind,
            "figures": list(figures(board)),
            "first_token_s": first_token(board),
        }
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        print(users_table())


if __name__ == "__main__":
    main()
