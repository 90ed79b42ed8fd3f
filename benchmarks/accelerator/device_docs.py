"""Keep the figures of speculation on the accelerator in a file, and write the tables of the pages from it.

They take two minutes, so that they are kept and are not computed again by a test.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.accelerator.device_figures import PLAIN
from benchmarks.accelerator.host_instructions import BOARD_HOSTS, read_counts
from benchmarks.accelerator.host_instructions import table as instructions
from benchmarks.support.docs_tables import markdown_table

__all__ = ["read_figures", "save", "tables"]

_FILE = Path(__file__).resolve().parent / "figures" / "device_speculation.json"
_WIDTH = 135  # characters of a line of the pages
_ALONE = "device alone"
_KIND = "modelled, host counted and estimated"
_HOSTS = {
    _ALONE: ("the device alone, the host takes no time", "modelled"),
    BOARD_HOSTS[0]: ("the board's host, at best", _KIND),
    BOARD_HOSTS[1]: ("the board's host, at worst", _KIND),
    "the same, one session for all texts": (
        "the same, one session writes all texts",
        _KIND,
    ),
}


def read_figures() -> dict[str, Any]:
    """Return the figures that were kept."""
    content: dict[str, Any] = json.loads(_FILE.read_text("utf-8"))
    return content


def save(result: Mapping[str, Any]) -> None:
    """Keep the figures of a run. ``result`` is the JSON of benchmarks/accelerator/speculation.py."""
    drafters = result["variants"][result["main"]]["drafters"]
    plain = drafters[PLAIN]["kinds"].values()
    content = {
        "date": time.strftime("%d %B %Y").lstrip("0"),
        "passes": result["details"]["passes"],
        "plain_host_ms": [_plain_host_ms(result["variants"][name]) for name in BOARD_HOSTS],
        "plain_pass_ms": round(fmean(kind["pass_ms"] for kind in plain), 2),
        "main": result["main"],
        "goal_tok_s": result["goal_tok_s"],
        "drafters": {
            name: {
                "mean_tok_s": one["mean_tok_s"],
                "harmonic_tok_s": one["harmonic_tok_s"],
                "kinds": {
                    kind: {key: figures[key] for key in ("tok_s", "tokens_per_round")}
                    for kind, figures in one["kinds"].items()
                },
            }
            for name, one in drafters.items()
        },
        "best": result["best"],
        "hosts": {
            host: {name: result["variants"][host]["drafters"][name]["mean_tok_s"] for name in (PLAIN, "auto")}
            for host in (_ALONE, *BOARD_HOSTS)
        },
        "range": result["range"],
        "rough": {
            planes: {key: one[key] for key in ("hosts", "slots", "top_k")} for planes, one in result["rough"].items()
        },
    }
    _FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n", "utf-8")


def _plain_host_ms(variant: Mapping[str, Any]) -> float:
    kinds = variant["drafters"][PLAIN]["kinds"].values()
    return round(fmean(sum(kind["host_ms"].values()) for kind in kinds), 3)


def tables(content: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the text of all blocks of the pages, by name."""
    content = read_figures() if content is None else content
    return {
        "speculation run": _run(content),
        "speculation drafters": _drafters(content),
        "speculation hosts": _best(content),
        "speculation range": _range(content),
        "speculation rough": _rough(content),
        "speculation summary": _summary(content),
        "speculation instructions": instructions(read_counts()),
    }


def _run(content: Mapping[str, Any]) -> str:
    text = (
        f"{content['date']}. A plain round takes {content['plain_pass_ms']:.1f} ms of the device and "
        f"{_span(content['plain_host_ms'], '.2f')} ms of the board's estimated host, as means over the kinds of text."
    )
    return textwrap.fill(text, _WIDTH)


def _span(ends: Sequence[float], form: str) -> str:
    return " to ".join(f"{one:{form}}" for one in ends)


def _drafters(content: Mapping[str, Any]) -> str:
    drafters = content["drafters"]
    kinds = list(drafters[PLAIN]["kinds"])
    header = [f'"{content["main"]}"', *kinds, "mean", "harmonic"]
    names = [PLAIN, *sorted(drafters.keys() - {PLAIN}, key=lambda name: -float(drafters[name]["mean_tok_s"]))]
    rows = []
    for name in names:
        one = drafters[name]
        word, _, place = name.partition(" ")
        label = "plain" if name == PLAIN else f"`{word}` {place}".strip()
        cells = [
            f"{kind['tok_s']:.0f}" + ("" if name == PLAIN else f" ({kind['tokens_per_round']:.2f})")
            for kind in one["kinds"].values()
        ]
        rows.append([label, *cells, f"{one['mean_tok_s']:.1f}", f"{one['harmonic_tok_s']:.1f}"])
    return markdown_table(header, rows)


def _best(content: Mapping[str, Any]) -> str:
    header = ["", "best drafter", "mean", "harmonic", "plain", f"goal of {content['goal_tok_s']:.0f}", "kind"]
    rows = []
    for name, best in content["best"].items():
        label, kind = _HOSTS[name]
        speeds = (f"{best[key]:.1f}" for key in ("mean_tok_s", "harmonic_tok_s", "plain_tok_s"))
        rows.append([label, f"`{best['drafter']}`", *speeds, "reached" if best["goal_reached"] else "missed", kind])
    return markdown_table(header, rows)


def _ranges(content: Mapping[str, Any]) -> list[tuple[str, dict[str, dict[str, float]]]]:
    """Return the condition of the memory and speeds by host and drafter; the first is without another master."""
    return [("no other master", content["hosts"]), *((row["label"], row["hosts"]) for row in content["range"].values())]


def _range(content: Mapping[str, Any]) -> str:
    header = ["mean tokens/s, plain / `auto`", *(_HOSTS[host][0] for host in (_ALONE, *BOARD_HOSTS))]
    rows = [["", *(_HOSTS[host][1] for host in (_ALONE, *BOARD_HOSTS))]]
    for label, hosts in _ranges(content):
        rows.append(
            [label, *(f"{hosts[host][PLAIN]:.1f} / {hosts[host]['auto']:.1f}" for host in (_ALONE, *BOARD_HOSTS))]
        )
    return markdown_table(header, rows)


def _rough(content: Mapping[str, Any]) -> str:
    header = ["mean tokens/s, plain / `auto`", *(_HOSTS[host][0] for host in (_ALONE, *BOARD_HOSTS))]
    heads = [("int8 head", content["hosts"])]
    for planes, one in content["rough"].items():
        heads.append((f"`rough_head={planes}`, {one['slots']} slots, {one['top_k']} tokens scored again", one["hosts"]))
    rows = [
        [name, *(f"{hosts[host][PLAIN]:.1f} / {hosts[host]['auto']:.1f}" for host in (_ALONE, *BOARD_HOSTS))]
        for name, hosts in heads
    ]
    return markdown_table(header, rows)


def _summary(content: Mapping[str, Any]) -> str:
    rows = [hosts for _, hosts in _ranges(content)]
    spans = {}
    for name in (PLAIN, "auto"):
        speeds = [hosts[host][name] for hosts in rows for host in hosts]
        spans[name] = f"{int(min(speeds))} to {max(speeds):.0f}"
    main = [rows[0][host] for host in reversed(BOARD_HOSTS)]
    hosts = {name: _span([one[name] for one in main], form) for name, form in (("auto", ".0f"), (PLAIN, ".1f"))}
    text = (
        f"For a model of 0.73 B parameters on a KV260, `benchmarks/accelerator/speculation.py` computes "
        f"{spans['auto']} tokens/s with `auto` and {spans[PLAIN]} without guesses, as means of six kinds of text: "
        f"{hosts['auto']} and {hosts[PLAIN]} with the board's host. The largest figures are those of a host that takes no "
        "time, the smallest those of a slow host and a memory that others use as well "
        "([modelled](docs/reports/device-speculation.md), with the acceptance of the embedded model, and a host whose "
        "instructions are counted and whose speed is estimated)."
    )
    return textwrap.fill(text, _WIDTH)
