"""Compute the accelerator's speed on a board: tokens per second, passes of several tokens, prompts, beats, resources.

The figures of the KV260 with BitNet's shape are shown with the goals and with published figures for the same board and a
model of the same size; their configuration is the default one. For other boards the fastest configuration that fits is
chosen. Clock and resources are always assumed and estimated, because nothing here was placed or routed. Each figure has a
kind:

- modelled (KV260): all reads and writes of a pass of the whole model on the memory model, with the waits for results that
  the cycle model gives. Nothing of the RTL runs;
- simulated (--simulate): the RTL of some layers and of a part of the head, extended to the whole model. A pass with a layer
  more is simulated and compared with what the extension predicts for it;
- estimated (other boards, and --estimate): the cycle model alone (edgedec.hw.compiler.cycles).

The speed of decoding is given as a range: what else the memory does, and whether the host's time is counted.

    .venv/bin/python -m benchmarks.accelerator.speed --board kv260 --shape bitnet-0.73b [--json]
    .venv/bin/python -m benchmarks.accelerator.speed --board ulx3s-85f --shape demo
    .venv/bin/python -m benchmarks.accelerator.speed --board kv260 --shape bonsai-1.7b
    .venv/bin/python -m benchmarks.accelerator.speed --board kv260 --shape gemma2-2b --estimate
    .venv/bin/python -m benchmarks.accelerator.speed --write-docs      # write the KV260's figures into the pages

With --write-docs the figures go to benchmarks/accelerator/figures/ and from there into the blocks of the pages; with
--simulate as well, those of the RTL do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.accelerator import speed_docs as docs
from benchmarks.accelerator.pass_simulation import Simulated
from benchmarks.accelerator.pass_traffic import Traffic
from benchmarks.accelerator.speed_figures import (
    CONDITIONS,
    FLAT,
    Condition,
    Counted,
    Estimated,
    Extended,
    PassCase,
    Passes,
    decode_range,
    figures,
    needed,
    range_cases,
    speculative,
)
from benchmarks.support.docs_tables import write_blocks
from benchmarks.support.shapes import BITNET_073B, BITNET_2B4T, BONSAI_17B, GEMMA_2_2B
from edgedec.board import RESOURCES, Board
from edgedec.boards import all_boards, board_names, find_board
from edgedec.cli.console import note, print_json, print_table
from edgedec.demo import TARGET
from edgedec.errors import EdgedecError, UsageError
from edgedec.hw.compiler.shapes import ShapeSchemes, shape_graph, shape_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate
from edgedec.schemes import TernaryScheme

# The embedded model. Its head is int8 in a bundle, as BitNet's is here.
DEMO = {**json.loads((TARGET / "config.json").read_text()), "tie_word_embeddings": False}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "bitnet-0.73b": BITNET_073B,
    "bitnet-2b4t": BITNET_2B4T,
    "bonsai-1.7b": BONSAI_17B,
    "gemma2-2b": GEMMA_2_2B,
    "demo": DEMO,
}
_TERNARY_128 = TernaryScheme(group_size=128)
SCHEMES: Mapping[str, ShapeSchemes] = {"bonsai-1.7b": ShapeSchemes(linear=_TERNARY_128, head=_TERNARY_128)}
CONFIGS = MappingProxyType(
    {("kv260", "bitnet-0.73b"): AcceleratorConfig()}
)  # the configurations that have goals; others are chosen
CHECKED = PassCase(slots=1, committed=127)  # pass with which the extension of the RTL is checked
_MOST = ("t4_over_t1", "t8_over_t1", "ttft_s")  # figures of which a smaller one is better


def chosen(device: Board, shape: str, slots: int | None) -> AcceleratorConfig:
    """Return the board's configuration for a shape.

    Raises:
        UnsupportedError: the shape does not fit the board.
    """
    members: dict[str, Any] = {} if slots is None else {"slots": slots}
    if (device.name, shape) in CONFIGS:
        return replace(CONFIGS[device.name, shape], **members)
    graph = shape_graph(SHAPES[shape], schemes=SCHEMES.get(shape))
    return config_for_board(shape_model(graph), device, others=all_boards(), **members)


def simulated(
    shape: Mapping[str, Any], config: AcceleratorConfig, device: Board, library: Path, quick: bool, jobs: int
) -> Extended:
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


def conditions(device: Board, *, goals: bool) -> tuple[Condition, ...]:
    """Return what the memory may do beside a pass: of the KV260 by its model, else shares of the board's bandwidth."""
    if goals:
        return CONDITIONS
    rate = device.bandwidth_bytes_s
    quarter = "another master takes a quarter of the bandwidth"
    return (
        Condition(name="alone", label=f"no other master, {device.bandwidth_kind} bandwidth", bandwidth=rate),
        Condition(name="three_quarters", label=quarter, bandwidth=0.75 * rate),
    )


def measure(device: Board, passes: Passes, config: AcceleratorConfig, *, goals: bool = True) -> dict[str, Any]:
    """Return all figures.

    Args:
        goals: the configuration has goals, some of which refer to a flat memory; else speculation is estimated as well.
    """
    needs = estimate(config)
    speeds = figures(passes, config, FLAT if goals else device.bandwidth_bytes_s)
    if not goals:
        del speeds["decode_tok_s_13g"]
        speeds["speculative_tok_s"] = speculative(passes, config)
    hosts_s = docs.host_seconds() if goals else ()
    return {
        **speeds,
        "decode_range": decode_range(passes, config, hosts_s, conditions(device, goals=goals)),
        "host_ms": [1e3 * host for host in hosts_s],
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
        "decode_tok_s": "decode at {} positions, device alone, tok/s",
        "decode_tok_s_13g": "the same at a flat 13.3 GB/s",
        "t4_over_t1": "T(4) / T(1)",
        "t8_over_t1": "T(8) / T(1)",
        "ttft_s": "first token of a prompt of {}, s",
        "beats_used": "cycles that move a beat",
    }
    rows: list[tuple[str, ...]] = [("", "here", "goal", "", "published", "kind")]
    kind = result["kind"].split(" ")[0]
    for name, label in names.items():
        value = result.get(name)
        items = value.items() if isinstance(value, Mapping) else [(None, value)]
        for key, number in items:
            if number is None:
                continue
            shown = f"{number:.1f}" if number > 10 else f"{number:.3f}"
            beside = _beside(name, key, number) if result["goals"] else ("", "", "")
            rows.append((label.format(key), shown, *beside, kind))
    return rows


def _range_lines(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    kind = result["kind"].split(" ")[0]
    rows: list[tuple[str, ...]] = [("decode, tok/s, the host takes no time", "at 128", "1024", "kind")]
    took = " to ".join(f"{one:.2f}" for one in result["host_ms"])
    hosts: list[tuple[str, ...]] = [(f"with the board's host, {took} ms a token", "", "", "")]
    for row in result["decode_range"]:
        rows.append((row["label"], *(f"{one:.1f}" for one in row["tok_s"].values()), kind))
        if ends := row["tok_s_with_host"]:
            speeds = (f"{ends[1][at]:.1f} to {ends[0][at]:.1f}" for at in row["tok_s"])
            hosts.append((row["label"], *speeds, f"{kind}, host estimated"))
    return [*rows, *(hosts if len(hosts) > 1 else [])]


def _beside(name: str, key: str | None, number: float) -> tuple[str, str, str]:
    """Return a figure's goal, "ok" or "MISSED", and the published figure."""
    goal = docs.GOALS[name][key] if key else docs.GOALS[name]
    met = number <= goal if name in _MOST else number >= goal
    limit = f"{'<=' if name in _MOST else '>='} {goal:g}"
    return limit, "ok" if met else "MISSED", docs.PUBLISHED.get((name, key), "")


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
    print()
    print_table(_range_lines(result), right=(1, 2))
    for kept, speeds in result.get("speculative_tok_s", {}).items():
        shown = " and ".join(f"{speed:.1f} at {n}" for n, speed in speeds.items())
        note(f"with guesses of which a pass keeps {kept} rows on average (assumed), tok/s: {shown} positions")
    note(f"cycles are {result['kind']}")
    sizes = ("beat_bytes", "ports", "slots", "context", "shared", "head_norms", "ultra")
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
        "--quick", action="store_true", help="simulate 1 and 3 layers of the RTL, not 2 and 4, and less of the head"
    )
    parser.add_argument("--estimate", action="store_true", help="use the cycle model alone, which takes a second")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="passes that are counted at a time")
    parser.add_argument(
        "--write-docs", action="store_true", help="keep the KV260's figures and write them into README.md and docs/"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        device = find_board(args.board)
        config, shape = chosen(device, args.shape, args.slots), SHAPES[args.shape]
        goals = (device.name, args.shape) in CONFIGS
        if args.write_docs and (not goals or args.estimate or args.slots is not None):
            raise UsageError(
                "--write-docs writes the KV260's figures of BitNet's shape: no other --board, --shape or --slots"
            )
        if args.shape in SCHEMES and args.simulate is not None:
            raise UsageError(f"--simulate runs models with an int8 head and one scale per matrix, not {args.shape}")
        passes = _passes(args, device, config, shape, goals=goals)
        result = measure(device, passes, config, goals=goals)
        if args.write_docs:
            _write_docs(result, passes, config)
    except EdgedecError as error:
        note(f"accelerator: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    else:
        print_report(result, device)


def _passes(
    args: argparse.Namespace, device: Board, config: AcceleratorConfig, shape: Mapping[str, Any], *, goals: bool
) -> Estimated | Traffic | Extended:
    if args.simulate is not None:
        return simulated(shape, config, device, args.simulate, args.quick, args.jobs)
    if args.estimate or not goals:
        return Estimated(shape, config, device.bandwidth_bytes_s, SCHEMES.get(args.shape))
    traffic = Traffic(shape, config)
    traffic.prepare([*needed(config, FLAT), *range_cases(config)], args.jobs)
    return traffic


def _write_docs(result: Mapping[str, Any], passes: Estimated | Traffic | Extended, config: AcceleratorConfig) -> None:
    if isinstance(passes, Extended):
        docs.save_simulated(result, passes, passes.check(CHECKED))
    elif isinstance(passes, Traffic):
        docs.save_modelled(result, passes.fingerprint([*needed(config, FLAT), *range_cases(config)]))
    changed = write_blocks(docs.tables())
    note(f"written: {', '.join(path.name for path in changed) or 'no page changed'}")


if __name__ == "__main__":
    main()
