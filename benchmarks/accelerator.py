"""Estimate the accelerator's speed on a board: tokens per second, passes of several tokens, prompts, beats, resources.

The figures of the KV260 with BitNet's shape are shown with the goals and with published figures for the same board and a
model of the same size; their configuration is the default one. For other boards the fastest configuration that fits is
chosen. Clock and resources are always assumed and estimated, because nothing here was placed or routed. Cycles with the
KV260's memory model are simulated: all reads and writes of a pass, with the waits for results of the cycle model, or with
--simulate the RTL of some layers, extrapolated to all. On other boards, and with --estimate, they are those of the cycle
model alone (edgedec.hw.compiler.cycles).

    .venv/bin/python benchmarks/accelerator.py --board kv260 --shape bitnet-0.73b [--quick] [--json]
    .venv/bin/python benchmarks/accelerator.py --board ulx3s-85f --shape demo
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the path of a script has only its own folder

from benchmarks._accelerator_figures import Counted, Extended, Modelled, PassCase, Passes, figures, needed
from benchmarks._accelerator_simulation import Simulated
from benchmarks._accelerator_traffic import Traffic
from benchmarks._shapes import BITNET_073B
from edgedec.board import RESOURCES, Board
from edgedec.boards import all_boards, board_names, find_board
from edgedec.cli.console import note, print_json, print_table
from edgedec.demo import TARGET
from edgedec.errors import EdgedecError
from edgedec.hw.compiler.shapes import shape_graph, shape_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate

# The embedded model. Its head is int8 in a bundle, as BitNet's is here.
DEMO = {**json.loads((TARGET / "config.json").read_text()), "tie_word_embeddings": False}
SHAPES: Mapping[str, Mapping[str, Any]] = {"bitnet-0.73b": BITNET_073B, "demo": DEMO}
CONFIGS = MappingProxyType(
    {("kv260", "bitnet-0.73b"): AcceleratorConfig()}
)  # the configurations that have goals; others are chosen
FLAT = 13.3e9
GOALS: Mapping[str, Any] = {
    "decode_tok_s": {"128": 77.0, "1024": 57.0},
    "decode_tok_s_13g": {"128": 63.0, "1024": 47.0},
    "t4_over_t1": 1.05,
    "t8_over_t1": 1.10,
    "ttft_s": {"64": 0.080, "128": 0.155},
    "beats_used": 0.94,
}
PUBLISHED = {
    ("decode_tok_s", "128"): "25 TeLLMe v2, 27.8 PD-Swap",
    ("t4_over_t1", None): "2.70 bitnet-kv260",
    ("ttft_s", "64"): "0.45 TeLLMe v2",
    ("ttft_s", "128"): "0.96 TeLLMe v2",
    ("beats_used", None): "about 0.26 TeLLMe v2",
}
_MOST = ("t4_over_t1", "t8_over_t1", "ttft_s")  # figures of which a smaller one is better


def chosen(device: Board, shape: str, slots: int | None) -> AcceleratorConfig:
    """Return the board's configuration for a shape.

    Raises:
        UnsupportedError: the shape does not fit the board.
    """
    members: dict[str, Any] = {} if slots is None else {"slots": slots}
    if (device.name, shape) in CONFIGS:
        return replace(CONFIGS[device.name, shape], **members)
    return config_for_board(shape_model(shape_graph(SHAPES[shape])), device, others=all_boards(), **members)


def simulated(
    shape: Mapping[str, Any], config: AcceleratorConfig, device: Board, library: Path, quick: bool, jobs: int
) -> Passes:
    """Return passes of the RTL with the KV260's memory model, or with a flat memory of another board's bandwidth."""
    rate = None if device.memory_model == "KV260" else device.bandwidth_bytes_s
    run = Simulated(shape, config, library, bandwidth=rate)

    def measured(case: PassCase, layers: int, vocab: int) -> Counted:
        began = time.monotonic()
        counted = run(case, layers, vocab)
        memory = "" if case.bandwidth is None else f", {case.bandwidth / 1e9:g} GB/s"
        head = f", {vocab} rows of the head" if case.logits else ""
        note(
            f"{case.slots} slots, {case.committed} positions before them, {layers} layers{head}{memory}: "
            f"{counted.cycles:g} cycles, {counted.beats:g} beats ({time.monotonic() - began:.0f} s)"
        )
        return counted

    passes = Extended(
        measured,
        layers=shape["num_hidden_layers"],
        vocab=shape["vocab_size"],
        few=1 if quick else 2,
        head_parts=64 if quick else 16,
    )
    passes.prepare(needed(config, FLAT), jobs)
    return passes


def measure(device: Board, passes: Passes, config: AcceleratorConfig, *, goals: bool = True) -> dict[str, Any]:
    """Return all figures. ``goals``: the configuration has goals, some of which refer to a flat memory."""
    needs = estimate(config)
    speeds = figures(passes, config, FLAT if goals else device.bandwidth_bytes_s)
    if not goals:
        del speeds["decode_tok_s_13g"]
    return {
        **speeds,
        "board": device.name,
        "goals": goals,
        "config": asdict(config),
        "bandwidth_bytes_s": device.bandwidth_bytes_s,
        "memory": device.bandwidth_source,
        "estimate": needs.on(device),
        "beyond": needs.beyond(device),
        "fits": not needs.beyond(device),
        "clock_hz": config.clock_hz,
        "clock": "assumed",
        "kind": passes.kind,
    }


def _lines(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    names = {
        "decode_tok_s": "decode at {} positions, tok/s",
        "decode_tok_s_13g": "the same at a flat 13.3 GB/s",
        "t4_over_t1": "T(4) / T(1)",
        "t8_over_t1": "T(8) / T(1)",
        "ttft_s": "first token of a prompt of {}, s",
        "beats_used": "cycles that move a beat",
    }
    rows: list[tuple[str, ...]] = [("", "here", "goal", "", "published", "kind")]
    for name, label in names.items():
        value = result.get(name)
        items = value.items() if isinstance(value, Mapping) else [(None, value)]
        for key, number in items:
            if number is None:
                continue
            shown = f"{number:.1f}" if number > 10 else f"{number:.3f}"
            beside = _beside(name, key, number) if result["goals"] else ("", "", "")
            rows.append((label.format(key), shown, *beside, result["kind"].split(" ")[0]))
    return rows


def _beside(name: str, key: str | None, number: float) -> tuple[str, str, str]:
    """Return a figure's goal, "ok" or "MISSED", and the published figure."""
    goal = GOALS[name][key] if key else GOALS[name]
    met = number <= goal if name in _MOST else number >= goal
    limit = f"{'<=' if name in _MOST else '>='} {goal:g}"
    return limit, "ok" if met else "MISSED", PUBLISHED.get((name, key), "")


def print_report(result: Mapping[str, Any], device: Board) -> None:
    rows = _lines(result)
    for name in RESOURCES:
        need, share, most = (
            result["estimate"][name],
            result["estimate"][name] / max(device.has[name], 1),
            device.most.get(name),
        )
        goal = "" if most is None else f"<= {most:.0%}"
        met = "" if most is None else "ok" if share <= most else "MISSED"
        published = {"lut": "84 % TeLLMe v2", "uram": "94 % TeLLMe v2"}.get(name, "") if result["goals"] else ""
        rows.append((f"{name}, of {device.has[name]}", f"{need} ({share:.0%})", goal, met, published, "estimated"))
    rows.append(("clock, MHz", f"{result['clock_hz'] / 1e6:g}", "", "", "", result["clock"]))
    print_table(rows, right=(1, 2))
    note(f"cycles are {result['kind']}")
    sizes = ("beat_bytes", "ports", "slots", "context", "ultra")
    size = ", ".join(f"{name}={result['config'][name]}" for name in sizes)
    note(f"{device.part}: {size}; memory {result['bandwidth_bytes_s'] / 1e9:g} GB/s, {result['memory']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="kv260", help=f"one of {', '.join(board_names())}, or a board's file")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="bitnet-0.73b")
    parser.add_argument(
        "--slots", type=int, help="tokens of a pass; by default as many as the board's configuration has"
    )
    parser.add_argument(
        "--simulate",
        type=Path,
        metavar="LIBRARY",
        help="simulate this library of the accelerator, made by edgedec.sim.cxxrtl.library.build",
    )
    parser.add_argument(
        "--quick", action="store_true", help="simulate 1 and 2 layers of the RTL, not 2 and 3, and less of the head"
    )
    parser.add_argument("--estimate", action="store_true", help="use the cycle model alone, which takes a second")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="passes that are simulated at a time")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        device = find_board(args.board)
        config, shape = chosen(device, args.shape, args.slots), SHAPES[args.shape]
        passes: Passes
        if args.simulate is None and (args.estimate or (device.name, args.shape) not in CONFIGS):
            passes = Modelled(shape, config, device.bandwidth_bytes_s)
        elif args.simulate is None:
            passes = Traffic(shape, config)
        else:
            passes = simulated(shape, config, device, args.simulate, args.quick, args.jobs)
        result = measure(device, passes, config, goals=(device.name, args.shape) in CONFIGS)
    except EdgedecError as error:
        note(f"accelerator: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    else:
        print_report(result, device)


if __name__ == "__main__":
    main()
