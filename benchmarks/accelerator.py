"""What the accelerator makes of a board: tokens per second, passes of several tokens, prompts, beats, resources.

Beside the goals, and beside what others published of the same board with a model of the same size. Clock and resources are
assumed and estimated in any case: nothing here was placed or routed. Cycles are the model's (edgedec.hw.cycles,
"estimated") or, with --simulate, the RTL's before the board's memory model: some layers, extended to all ("simulated").

    .venv/bin/python benchmarks/accelerator.py --board kv260 --shape bitnet-0.73b [--quick] [--json]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file, Python sees only this folder

from benchmarks._accelerator_figures import Extended, Modelled, Passes, figures
from benchmarks._accelerator_simulation import Simulated
from benchmarks._shapes import BITNET_073B
from edgedec.cli.console import note, print_json, print_table
from edgedec.errors import EdgedecError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.estimate import RESOURCES, Board, board, estimate

SHAPES: Mapping[str, Mapping[str, Any]] = {"bitnet-0.73b": BITNET_073B}
# A board's configuration, and the bytes in a second that its memory gives to long reads: docs/ddr-model.md.
CONFIGS = MappingProxyType({"kv260": (AcceleratorConfig(), 15.96e9)})
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
_MOST = ("t4_over_t1", "t8_over_t1", "ttft_s")  # smaller is better


def simulated(shape: Mapping[str, Any], config: AcceleratorConfig, library: Path, quick: bool) -> Passes:
    """Passes of the RTL before the board's memory model."""
    return Extended(
        measure=Simulated(shape, config, library),
        layers=shape["num_hidden_layers"],
        vocab=shape["vocab_size"],
        few=1 if quick else 2,
        head_parts=16 if quick else 4,
    )


def measure(device: Board, passes: Passes, config: AcceleratorConfig) -> dict[str, Any]:
    needs = estimate(config)
    return {
        **figures(passes, config, FLAT),
        "estimate": needs.on(device),
        "beyond": needs.beyond(device),
        "fits": not needs.beyond(device),
        "clock_hz": config.clock_hz,
        "clock": "assumed",
        "kind": passes.kind,
    }


def _lines(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
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
        value = found[name]
        items = value.items() if isinstance(value, Mapping) else [(None, value)]
        for key, number in items:
            goal = GOALS[name][key] if key else GOALS[name]
            if number is None:
                continue
            met = number <= goal if name in _MOST else number >= goal
            shown = f"{number:.1f}" if number > 10 else f"{number:.3f}"
            wanted = f"{'<=' if name in _MOST else '>='} {goal:g}"
            rows.append(
                (
                    label.format(key),
                    shown,
                    wanted,
                    "ok" if met else "MISSED",
                    PUBLISHED.get((name, key), ""),
                    found["kind"],
                )
            )
    return rows


def print_report(found: Mapping[str, Any], device: Board) -> None:
    rows = _lines(found)
    for name in RESOURCES:
        need, share, most = (
            found["estimate"][name],
            found["estimate"][name] / max(device.has[name], 1),
            device.most.get(name),
        )
        goal = "" if most is None else f"<= {most:.0%}"
        met = "" if most is None else "ok" if share <= most else "MISSED"
        published = {"lut": "84 % TeLLMe v2", "uram": "94 % TeLLMe v2"}.get(name, "")
        rows.append((f"{name}, of {device.has[name]}", f"{need} ({share:.0%})", goal, met, published, "estimated"))
    rows.append(("clock, MHz", f"{found['clock_hz'] / 1e6:g}", "", "", "", found["clock"]))
    print_table(rows, right=(1, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="kv260", help=f"one of {', '.join(CONFIGS)}")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="bitnet-0.73b")
    parser.add_argument(
        "--slots", type=int, help="tokens of a pass; by default as many as the board's configuration has"
    )
    parser.add_argument(
        "--simulate", type=Path, metavar="LIBRARY", help="the accelerator's, made by edgedec.sim.cxxrtl.library.build"
    )
    parser.add_argument("--quick", action="store_true", help="simulate 1 and 2 layers, and 1/16 and 1/8 of the head")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        device = board(args.board)
        if device.name not in CONFIGS:
            raise UsageError(f"no configuration for board {device.name}; there are {', '.join(CONFIGS)}")
        config, rate = CONFIGS[device.name]
        if args.slots is not None:
            config = replace(config, slots=args.slots)
        shape = SHAPES[args.shape]
        passes: Passes = Modelled(shape, config, rate)
        if args.simulate is not None:
            passes = simulated(shape, config, args.simulate, args.quick)
        found = measure(device, passes, config)
    except EdgedecError as error:
        note(f"accelerator: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(found)
    else:
        print_report(found, device)


if __name__ == "__main__":
    main()
