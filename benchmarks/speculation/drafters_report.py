"""Print the speculation benchmark's figures as tables together with the goals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.peers.speculation import print_peers
from edgedec.cli.console import print_table

__all__ = ["goals", "print_report"]

QUIET = 0.03  # share of the CPUs that other processes may take
COPYING, STORY, AUTO, PREDICTED, LOOP_US = 2.0, 1.5, 0.97, 0.92, 60.0  # goals, set before the first run


def goals(result: Mapping[str, Any]) -> list[tuple[str, float, float, bool]]:
    """Return (description, figure, limit, reached) of the goals for which the run has figures."""
    kinds, rows = result["kinds"], []
    if "copying" in kinds and kinds["copying"]["drafters"]:
        best = kinds["copying"]["drafters"][kinds["copying"]["best"]]["speedup"]
        rows.append(("copying, best drafter", best, COPYING, best >= COPYING))
    if "story" in kinds and "model" in kinds["story"]["drafters"]:
        padded = kinds["story"]["drafters"]["model"]["speedup_padded"]
        rows.append(("story, model at padded cost", padded, STORY, padded >= STORY))
    if (least := result["auto_min"]) is not None:
        rows.append(("auto, where it is least", least, AUTO, least >= AUTO))
    if ratios := result["measured_over_predicted"]:
        least = min(ratios.values())
        rows.append(("measured / predicted, least drafter", least, PREDICTED, least >= PREDICTED))
    if (loop := result["loop_us"]) is not None:
        rows.append(("loop, us a round, most", loop, LOOP_US, loop < LOOP_US))
    return rows


def print_report(result: Mapping[str, Any]) -> None:
    details = result["details"]
    noisy = "" if details["others_share"] <= QUIET else ": NOT QUIET, the figures say little"
    print(f"CPU      {details['cpu']}, {details['threads']} of {details['cpus']} CPUs; ", end="")
    print(f"others took {details['others_share']:.0%} of the CPUs{noisy}")
    print(
        f"model    {details['model']}, KV {details['kv_bits']} bits; greedy texts of {details['tokens']} tokens, ",
        end="",
    )
    print(f"policy {details['policy']}, at most {details['draft_max']} guesses")
    passes = ", ".join(f"{rows}: {ms:.1f}" for rows, ms in result["pass_ms"].items())
    print(f"passes   measured, ms by rows: {passes}")
    for kind, figures in result["kinds"].items():
        _print_kind(kind, figures, details["prompts"][kind])
    for kind, counts in details["prompts"].items():
        if kind not in result["kinds"]:
            print(f"\n{kind}: no prompt left of {counts['tried']}")
    print()
    loops = ", ".join(f"{name} {us:.0f}" for name, us in result["loop_us_by_drafter"].items())
    print(f"loop     measured, us a round outside of the pass and the growth of trees: {loops}")
    reads = ", ".join(f"{name} {ms:.1f}" for name, ms in result["draft_prompt_ms_by_drafter"].items())
    print(f"prompt   measured, ms that drafters take to read it, not part of the speed-ups: {reads}")
    ratios = ", ".join(f"{name} {ratio:.3f}" for name, ratio in result["measured_over_predicted"].items())
    print(f"measured / predicted speed-up, medians of all texts: {ratios}\n")
    rows = [("goal", "figure", "limit", "")]
    for what, figure, limit, reached in goals(result):
        rows.append((what, f"{figure:.3g}", f"{limit:g}", "" if reached else "MISSED"))
    print_table(rows, right=(1, 2))
    if "peers" in details:
        print_peers(details["peers"])


def _print_kind(kind: str, figures: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    left_out = f"of {counts['tried']} tried {counts['looping']} looped and {counts['ended_early']} ended early"
    print(f"\n{kind}: {figures['prompts']} prompts ({left_out}), plain {figures['plain_tok_s']:.1f} tok/s (measured)")
    rows = [("drafter", "tok/s", "speed-up", "padded", "accepted", "tok/round", "us/token", "predicted", "padded", "")]
    for name, drafter in figures["drafters"].items():
        rows.append(
            (
                name,
                f"{drafter['tok_s']:.1f}",
                f"{drafter['speedup']:.2f}",
                f"{drafter['speedup_padded']:.2f}",
                f"{drafter['acceptance']:.0%}",
                f"{drafter['tokens_per_round']:.2f}",
                f"{drafter['draft_us_per_token']:.0f}",
                f"{drafter['predicted']:.2f}",
                f"{drafter['predicted_padded']:.2f}",
                "best" if name == figures["best"] else "",
            )
        )
    print_table(rows, right=tuple(range(1, 9)))
