"""Compute figures from the texts by drafter and kind, with means over the kinds and published figures for comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, harmonic_mean
from typing import Any

from benchmarks.accelerator.device_runs import Text, kinds

__all__ = ["GOAL_TOK_S", "HEADER", "PLAIN", "PUBLISHED", "mean_tok_s", "summary", "variant"]

HEADER = "modelled times of the device, acceptance of the embedded model"
GOAL_TOK_S = (
    140.0  # goal in tokens per second, mean over kinds of text, best drafter; docs/reports/device-speculation.md
)
PLAIN = "none"
# Tokens per second of decoding BitNet-0.73B on a KV260: figures measured by other authors, and the bound of its memory.
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "TeLLMe v2": {"tok_s": 25.0, "kind": "published", "source": "2510.15926, plain decoding"},
    "PD-Swap": {"tok_s": 27.8, "kind": "published", "source": "2512.11550, plain decoding"},
    "DRAM bound of plain decoding": {"tok_s": 82.0, "kind": "computed", "source": "docs/reports/device-speculation.md"},
}


def variant(by_method: Mapping[str, Sequence[Text]]) -> dict[str, Any]:
    """Return the figures of one host: for every drafter its kinds of text, and the means over them."""
    return {"drafters": {name: _drafter(texts) for name, texts in by_method.items()}}


def mean_tok_s(by_method: Mapping[str, Sequence[Text]]) -> dict[str, float]:
    """Return the tokens per second of every drafter, as means over the kinds of text."""
    return {name: _drafter(texts)["mean_tok_s"] for name, texts in by_method.items()}


def summary(
    variants: Mapping[str, Any], trees: Mapping[str, Mapping[str, Sequence[Text]]], *, main: str
) -> dict[str, Any]:
    """Return the figures of all variants; the goal applies to the variant ``main``."""
    drafters = variants[main]["drafters"]
    shapes: dict[str, dict[str, float]] = {}
    for name, by_policy in trees.items():
        shapes[name] = {policy: _drafter(texts)["mean_tok_s"] for policy, texts in by_policy.items()}
        shapes[name]["hardware"] = drafters[name]["mean_tok_s"]
    return {
        "header": HEADER,
        "main": main,
        "goal_tok_s": GOAL_TOK_S,
        "best": {name: _best(one["drafters"]) for name, one in variants.items()},
        "published": PUBLISHED,
        "variants": dict(variants),
        "tree_shapes_mean_tok_s": shapes,
    }


def _best(drafters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drafter with the largest mean over the kinds, plain decoding for comparison, and the best by kind."""
    proposing = [name for name in drafters if name != PLAIN]
    best = max(proposing, key=lambda name: float(drafters[name]["mean_tok_s"]))
    by_kind = {}
    for kind in drafters[PLAIN]["kinds"]:
        speeds = {name: float(drafters[name]["kinds"][kind]["tok_s"]) for name in proposing}
        by_kind[kind] = max(speeds, key=lambda name: speeds[name])
    return {
        "drafter": best,
        "mean_tok_s": drafters[best]["mean_tok_s"],
        "harmonic_tok_s": drafters[best]["harmonic_tok_s"],
        "plain_tok_s": drafters[PLAIN]["mean_tok_s"],
        "goal_reached": drafters[best]["mean_tok_s"] >= GOAL_TOK_S,
        "by_kind": by_kind,
    }


def _drafter(texts: Sequence[Text]) -> dict[str, Any]:
    by_kind = {kind: _kind([text for text in texts if text.kind == kind]) for kind in kinds(texts)}
    speeds = [one["tok_s"] for one in by_kind.values()]
    return {"mean_tok_s": fmean(speeds), "harmonic_tok_s": harmonic_mean(speeds), "kinds": by_kind}


def _kind(texts: Sequence[Text]) -> dict[str, Any]:
    rounds = sum(len(text.rows) for text in texts)
    seconds = sum(text.seconds for text in texts)
    drafted = sum(sum(text.rows) for text in texts) - rounds
    work: dict[str, float] = {}
    for text in texts:
        for kind, spent in text.host.items():
            work[kind] = work.get(kind, 0.0) + spent
    return {
        "texts": len(texts),
        "tok_s": sum(text.tokens for text in texts) / seconds,
        "tokens_per_round": sum(text.tokens for text in texts) / rounds,
        "acceptance": sum(text.accepted for text in texts) / drafted if drafted else 0.0,
        "mean_nodes": sum(sum(text.rows) for text in texts) / rounds,
        "round_ms": 1e3 * seconds / rounds,
        "pass_ms": 1e3 * sum(text.device_seconds for text in texts) / rounds,
        "commit_ms": 1e3 * sum(text.commit_seconds for text in texts) / rounds,
        "host_ms": {kind: 1e3 * spent / rounds for kind, spent in sorted(work.items()) if spent},
    }
