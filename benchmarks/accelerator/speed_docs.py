"""Keep the accelerator's figures of the KV260 in a file, and write the tables of the pages from it.

``figures/accelerator.json`` has what ``speed.py --write-docs`` counted: ``modelled``, all figures of the traffic model with
the fingerprint of their inputs, and ``simulated``, those of the RTL with the commit that they are of. The host's time for a
token is the one that ``speculation.py --write-docs`` put into ``figures/device_speculation.json``.
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.accelerator.speed_figures import Extended, PassCase, with_host
from benchmarks.support.docs_tables import markdown_table
from edgedec.errors import EdgedecError

__all__ = [
    "GOALS",
    "PUBLISHED",
    "host_seconds",
    "read_figures",
    "rtl_factors",
    "save_modelled",
    "save_simulated",
    "save_whole",
    "tables",
    "whole_rows",
]

_FOLDER = Path(__file__).resolve().parent / "figures"
_FILE, _HOST_FILE, _WHOLE_FILE = "accelerator.json", "device_speculation.json", "whole_token.json"

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
_SPEEDS = tuple(GOALS)  # keys of a result that are figures of speed
_TOKENS = ("128", "1024")
_WIDTH = 135  # characters of a line of the pages


def read_figures(name: str = _FILE) -> dict[str, Any]:
    """Return the content of a file of figures."""
    content: dict[str, Any] = json.loads((_FOLDER / name).read_text("utf-8"))
    return content


def _save(content: Mapping[str, Any]) -> None:
    (_FOLDER / _FILE).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def host_seconds() -> tuple[float, float]:
    """Return the seconds that the host of a KV260 is estimated to take for a token without guesses, at best and at worst."""
    best, worst = read_figures(_HOST_FILE)["plain_host_ms"]
    return best / 1e3, worst / 1e3


def rtl_factors() -> dict[int, float]:
    """Return cycles of the RTL over cycles of the traffic model of the same commit, by positions before the pass."""
    simulated = read_figures()["simulated"]
    rtl, model = simulated["figures"]["decode_tok_s"], simulated["modelled"]["decode_tok_s"]
    return {int(n) - 1: model[n] / rtl[n] for n in _TOKENS}


def save_modelled(result: Mapping[str, Any], fingerprint: str) -> None:
    """Keep the figures of the traffic model. ``result`` is the JSON of benchmarks/accelerator/speed.py."""
    kept = {name: result[name] for name in ("kind", "clock_hz", *_SPEEDS)}
    kept["decode_range"] = [{name: row[name] for name in ("name", "label", "tok_s")} for row in result["decode_range"]]
    _save(read_figures() | {"modelled": {"fingerprint": fingerprint, **kept}})


def save_simulated(result: Mapping[str, Any], passes: Extended, error: float) -> None:
    """Keep the figures of the RTL, the passes that were simulated, and the error of the extension to one layer more."""
    content = read_figures()
    bodies = [(case, layers, rows) for case, layers, rows in passes.counts if case.committed and case.logits]
    part = min(rows for _, _, rows in bodies)
    few = min(layers for _, layers, _ in bodies)
    start = PassCase(slots=1, committed=0)
    less, more = (passes.counts[start, few, rows] for rows in (part, 2 * part))
    passed = [
        {
            **{"slots": case.slots, "committed": case.committed, "layers": layers, "bandwidth": case.bandwidth},
            **{"beats": passes.counts[case, layers, rows].beats, "cycles": passes.counts[case, layers, rows].cycles},
        }
        for case, layers, rows in sorted(
            bodies, key=lambda one: (one[0].bandwidth or 0, one[0].committed, one[1], one[0].slots)
        )
    ]
    simulated = {
        "commit": _commit(),
        "kind": result["kind"],
        "passes": passed,
        "rows": part,
        "more_rows": {"beats": more.beats - less.beats, "cycles": more.cycles - less.cycles},
        "check": error,
        "modelled": {"decode_tok_s": content["modelled"]["decode_tok_s"]},
        "figures": {name: result[name] for name in _SPEEDS},
    }
    _save(content | {"simulated": simulated})


def save_whole(result: Mapping[str, Any]) -> None:
    """Keep the figures of whole passes. ``result`` is the JSON of benchmarks/accelerator/whole_token.py."""
    content = {"commit": _commit(), **{name: value for name, value in result.items() if name != "config"}}
    (_FOLDER / _WHOLE_FILE).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _commit() -> str:
    """Return the commit of the working tree, with "and changes" if there are some in the accelerator or the simulation.

    Raises:
        EdgedecError: the figures are not made in a checkout.
    """
    root = _FOLDER.parent.parent
    try:
        commit, changes = (
            subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--", "hw", "sim"))
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise EdgedecError(f"figures of the RTL are kept with the commit that they are of: {error}") from error
    return f"{commit} and changes" if changes else commit


def tables(content: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the text of all blocks of the pages, by name."""
    content = read_figures() if content is None else content
    modelled, simulated = content["modelled"], content["simulated"]
    return {
        "accelerator kv260 speeds": _speeds(modelled, simulated),
        "accelerator kv260 range": _range(modelled["decode_range"]),
        "accelerator kv260 passes": _passes(simulated),
        "accelerator kv260 whole": _whole(),
        "accelerator kv260 summary": _summary(modelled),
    }


def _both(row: Mapping[str, float]) -> str:
    return " / ".join(f"{row[n]:.1f}" for n in _TOKENS)


def _range(rows: list[Mapping[str, Any]]) -> str:
    header = ("tokens/s at 128 / 1,024 positions", "the host takes no time", "the board's host, at best", "at worst")
    kinds = ("", "modelled", *("modelled, host estimated",) * 2)
    cells = [
        (row["label"], _both(row["tok_s"]), *(_both(with_host(row["tok_s"], host)) for host in host_seconds()))
        for row in rows
    ]
    return markdown_table(header, [kinds, *cells])


def _summary(modelled: Mapping[str, Any]) -> str:
    rows = {row["name"]: row for row in modelled["decode_range"]}
    speeds = {name: row["tok_s"]["128"] for name, row in rows.items()}
    best, worst = (
        {name: with_host(row["tok_s"], host)["128"] for name, row in rows.items()} for host in host_seconds()
    )
    others = ", ".join(f"{speeds[f'other_reads_{rate}']:.1f}" for rate in ("0.25", "0.5", "1"))
    text = (
        f"**{int(min(worst.values()))} to {speeds['alone']:.0f} tokens/s at position 128**, modelled, at an assumed clock "
        f"of {modelled['clock_hz'] / 1e6:g} MHz. The device alone writes {speeds['alone']:.1f}{_whole_speed()}. It writes "
        f"{speeds['flat_13.3']:.1f} with a flat memory of 13.3 GB/s; {others} while another master reads 0.25, 0.5 and "
        f"1 GB/s at random places; and {worst['alone']:.1f} to {best['alone']:.1f} with the board's host, whose time is "
        "estimated. The smallest figure is that of the slower host and 1 GB/s of another master, a quarter of it in writes."
    )
    return textwrap.fill(text, _WIDTH)


def _speeds(modelled: Mapping[str, Any], simulated: Mapping[str, Any]) -> str:
    header = ("", "modelled", f"simulated, of commit `{simulated['commit']}`", "goal", "published")
    rows: list[tuple[str, ...]] = [
        ("what ran", "traffic of all layers", f"the passes below, extended{_missed()}", "", "")
    ]

    def row(label: str, form: str, *names: tuple[str, str | None]) -> None:
        def shown(source: Mapping[str, Any]) -> str:
            return " / ".join(form.format(source[name][key] if key else source[name]) for name, key in names)

        published = ", ".join(PUBLISHED[one] for one in names if one in PUBLISHED)
        goals = " / ".join(f"{GOALS[name][key] if key else GOALS[name]:g}" for name, key in names)
        rows.append((label, shown(modelled), shown(simulated["figures"]), goals, published))

    row("decode at 128 / 1,024 positions, device alone, tokens/s", "{:.1f}", *(("decode_tok_s", n) for n in _TOKENS))
    row("the same at a flat 13.3 GB/s", "{:.1f}", *(("decode_tok_s_13g", n) for n in _TOKENS))
    row("T(4) / T(1), T(8) / T(1)", "{:.3f}", ("t4_over_t1", None), ("t8_over_t1", None))
    row("first token of 64 / 128 tokens, s", "{:.3f}", ("ttft_s", "64"), ("ttft_s", "128"))
    row("share of cycles that move a beat", "{:.3f}", ("beats_used", None))
    return markdown_table(header, rows)


def _whole_speed() -> str:
    """Return the tokens/s of a whole token of the RTL, in parentheses; empty if nobody has run it."""
    if not (_FOLDER / _WHOLE_FILE).exists():
        return ""
    whole = read_figures(_WHOLE_FILE)
    speed = whole["clock_hz"] / whole["passes"][0]["cycles"]
    return f" ({speed:.1f} on the RTL, all of whose {whole['layers']} layers were simulated)"


def _missed() -> str:
    """Return by how much extended passes miss whole ones of the RTL; empty if nobody has run them."""
    if not (_FOLDER / _WHOLE_FILE).exists():
        return ""
    errors = (one["extended"]["error"] for one in read_figures(_WHOLE_FILE)["passes"])
    return f"; of the cycles of whole passes they miss {' and '.join(f'{-error:.1%}' for error in errors)}"


def _passes(simulated: Mapping[str, Any]) -> str:
    rows = [
        (_pass_label(one, simulated["rows"]), f"{one['beats']:,.0f}", f"{one['cycles']:,.0f}")
        for one in simulated["passes"]
    ]
    more = simulated["more_rows"]
    rows.append((f"{simulated['rows']:,} rows of logits more", f"{more['beats']:,.0f}", f"{more['cycles']:,.0f}"))
    table = markdown_table(("pass", "beats", "cycles"), rows)
    error = simulated["check"]
    checked = "" if error is None else f" A pass with one layer more was predicted with an error of {error:+.2%}."
    return f"{table}\n\nSimulated, of commit `{simulated['commit']}`, with the memory model of the KV260.{checked}"


def whole_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the lines of a table of whole passes, the first of which is its header."""
    methods = ("estimated", "modelled", "extended")
    rows: list[tuple[str, ...]] = [("pass", "cycles of the RTL", *methods)]
    for one in result["passes"]:
        label = f"{one['slots']} token{'s' if one['slots'] > 1 else ''} after {result['past']} positions"
        others = (f"{one[name]['cycles']:,.0f} ({one[name]['error']:+.2%})" for name in methods)
        rows.append((label, f"{one['cycles']:,}", *others))
    return rows


def _whole() -> str:
    if not (_FOLDER / _WHOLE_FILE).exists():
        return "Nobody has run them to the end yet."
    result = read_figures(_WHOLE_FILE)
    header, *rows = whole_rows(result)
    equal = sum(sum(one["compared"].values()) for one in result["passes"])
    return (
        f"{markdown_table(header, rows)}\n\nSimulated, of commit `{result['commit']}`: all {result['layers']} layers and "
        f"{result['rows']:,} rows of logits; {equal:,} integers are equal."
    )


def _pass_label(one: Mapping[str, Any], rows: int) -> str:
    parts = [
        f"{one['slots']} slot{'s' if one['slots'] > 1 else ''}",
        f"{one['committed']:,} positions",
        f"{one['layers']} layer{'s' if one['layers'] > 1 else ''}",
        f"{rows:,} rows of logits",
    ]
    flat = "" if one["bandwidth"] is None else f", flat memory of {one['bandwidth'] / 1e9:g} GB/s"
    return ", ".join(parts) + flat
