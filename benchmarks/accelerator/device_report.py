"""Print the figures of speculation on the accelerator as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.accelerator.device_figures import PLAIN
from edgedec.cli.console import print_table

__all__ = ["print_report"]


def print_report(result: Mapping[str, Any]) -> None:
    details, variants = result["details"], result["variants"]
    print(f"{result['header'].upper()}\n")
    config = details["config"]
    clock = f"{config['clock_hz'] / 1e6:g} MHz (assumed)"
    print(f"device   {details['board']}, {config['slots']} slots, {config['beat_bytes']} bytes a cycle, {clock}")
    print(f"passes   {details['passes']}")
    for rows, by_past in details["pass_ms"].items():
        print(f"         {rows} rows, ms by positions before them: {_listed(by_past, '{:.2f}')}")
    print(f"commits  us by moved rows: {_listed(details['commit_us'], '{:.0f}')} (not compared with the RTL)")
    print(f"host     counted instructions, {details['host']} (estimate)")
    print(f"texts    {details['tokens']} tokens each, prompts: {_listed(details['prompts'], '{}')}")
    for name in variants:
        print(f"\n{name}: effective tokens/s, and tokens a round\n")
        _print_variant(variants[name])
    print(f"\n{result['main']}: rounds\n")
    _print_rounds(variants[result["main"]])
    if result["tree_shapes_mean_tok_s"]:
        print(f"\n{result['main']}: tree shapes, mean tokens/s\n")
        _print_shapes(result["tree_shapes_mean_tok_s"])
    print()
    _print_beside(result)


def _listed(values: Mapping[str, Any], form: str) -> str:
    return ", ".join(f"{name}: {form.format(value)}" for name, value in values.items())


def _print_variant(variant: Mapping[str, Any]) -> None:
    drafters = variant["drafters"]
    kinds = list(drafters[PLAIN]["kinds"])
    rows = [("drafter", *kinds, "mean", "harmonic")]
    for name, one in drafters.items():
        cells = [f"{kind['tok_s']:.0f} ({kind['tokens_per_round']:.2f})" for kind in one["kinds"].values()]
        rows.append(
            ("plain" if name == PLAIN else name, *cells, f"{one['mean_tok_s']:.1f}", f"{one['harmonic_tok_s']:.1f}")
        )
    print_table(rows, right=tuple(range(1, len(kinds) + 3)))


def _print_rounds(variant: Mapping[str, Any]) -> None:
    rows = [
        (
            "drafter",
            "kind",
            "nodes",
            "accepted",
            "tok/round",
            "round ms",
            "pass ms",
            "commit ms",
            "host ms",
        )
    ]
    for name, one in variant["drafters"].items():
        for kind, figures in one["kinds"].items():
            rows.append(
                (
                    "plain" if name == PLAIN else name,
                    kind,
                    f"{figures['mean_nodes']:.1f}",
                    f"{figures['acceptance']:.0%}",
                    f"{figures['tokens_per_round']:.2f}",
                    f"{figures['round_ms']:.1f}",
                    f"{figures['pass_ms']:.1f}",
                    f"{figures['commit_ms']:.2f}",
                    f"{sum(figures['host_ms'].values()):.2f}",
                )
            )
    print_table(rows, right=tuple(range(2, 9)))


def _print_shapes(shapes: Mapping[str, Mapping[str, float]]) -> None:
    policies = list(next(iter(shapes.values())))
    rows = [("drafter", *policies)]
    rows += [(name, *(f"{by_policy[policy]:.1f}" for policy in policies)) for name, by_policy in shapes.items()]
    print_table(rows, right=tuple(range(1, len(policies) + 1)))


def _print_beside(result: Mapping[str, Any]) -> None:
    goal, kind = result["goal_tok_s"], result["details"]["passes"].split(" ")[0]
    rows = [("", "best drafter", "mean tok/s", "harmonic", "plain", "", f"goal {goal:g}")]
    for name, best in result["best"].items():
        figures = (f"{best[key]:.1f}" for key in ("mean_tok_s", "harmonic_tok_s", "plain_tok_s"))
        rows.append((name, best["drafter"], *figures, kind, "reached" if best["goal_reached"] else "MISSED"))
    for name, one in result["published"].items():
        rows.append((f"{name}: {one['source']}", "", "", "", f"{one['tok_s']:g}", one["kind"], ""))
    print_table(rows, right=(2, 3, 4))
    if result["range"]:
        print()
        _print_range(result["range"])
    if result["rough"]:
        print()
        _print_range({planes: {**one, "label": f"rough_head={planes}"} for planes, one in result["rough"].items()})
    print(f"\nbest by kind, {result['main']}: {_listed(result['best'][result['main']]['by_kind'], '{}')}")


def _print_range(rows: Mapping[str, Any]) -> None:
    """Print the range of plain decoding and of the drafter ``auto`` by the memory's work and the host."""
    shown = [("mean tok/s", *next(iter(rows.values()))["hosts"])]
    for row in rows.values():
        cells = (" / ".join(f"{speed:.1f}" for speed in speeds.values()) for speeds in row["hosts"].values())
        shown.append((f"{row['label']}, plain / auto", *cells))
    print_table(shown, right=(1, 2))
