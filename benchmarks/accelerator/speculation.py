"""Simulate speculation on the accelerator: BitNet-0.73B's shape on a board, with the acceptance of the embedded model.

    .venv/bin/python -m benchmarks.accelerator.speculation --board kv260 [--quick] [--prompts N] [--tokens N] [--json]
    .venv/bin/python -m benchmarks.accelerator.speculation --write-docs   # write the figures into the pages

No result is measured on a board. Every text combines three parts:

- The time of a pass: all its reads and writes run through the KV260's memory model, the waits for results between them come
  from the cycle model, and the sum is scaled to the cycles that the RTL of this shape took, as far as it was simulated
  (docs/reports/accelerator.md). These times are called modelled. Commits that move rows are computed in the same way,
  without the scaling. Plain decoding and the drafter ``auto`` are also computed with another master beside the accelerator,
  and with a flat memory.
- The acceptance: the embedded model writes greedy texts after prompts of six kinds on the CPU target. A drafter's tree is
  compared with the model's logits after each of its own tokens. The text must be the same as before, or the benchmark ends
  with an error. --check runs every pass on the CPU target as well. The embedded model writes children's stories; the
  acceptance of a model of 0.73 B parameters with the same drafters is not known.
- The time of the host: it is measured on this machine by kind of work, for the drafters, the tree policy, the decoding
  loop, and the accelerator's driver with a device that answers immediately. The board's processor is assumed to need
  --host-factor times as long, which is an estimate. Reading the prompt, by target or drafter, is not counted.

The draft model is the embedded draft. On the host its passes take their time on this machine times the factor. With
"(fabric)" they run on the accelerator, between the target's passes, with a head of the target's vocabulary, at the cost of
the same traffic model.

JSON: {"variants": {NAME: {"drafters": {NAME: {"kinds": {KIND: {...}}, "mean_tok_s": X, "harmonic_tok_s": X}}}}, ...}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.accelerator import device_docs as docs
from benchmarks.accelerator import speed_docs as accelerator_docs
from benchmarks.accelerator.device_clock import HostCosts, typical
from benchmarks.accelerator.device_cost import DeviceCosts, open_device_cost
from benchmarks.accelerator.device_figures import PLAIN, mean_tok_s, summary, variant
from benchmarks.accelerator.device_host import driver_costs
from benchmarks.accelerator.device_report import print_report
from benchmarks.accelerator.device_runs import BEYOND, BoardHost, Method, Script, ScriptWriter, script
from benchmarks.accelerator.speed import chosen
from benchmarks.accelerator.speed_figures import CONDITIONS
from benchmarks.cpu.decode import cpu_name
from benchmarks.speculation.padded_model import choose
from benchmarks.support.docs_tables import write_blocks
from benchmarks.support.prompts import read_prompts, shared_prompts
from benchmarks.support.shapes import BITNET_073B
from edgedec import demo
from edgedec.board import Board
from edgedec.boards import board_names, find_board
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note, print_json, progress
from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.plugins import names
from edgedec.progress import Progress
from edgedec.runtime.planning.speculation import DRAFTERS
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target

PROMPTS, TOKENS = 3, 128
QUICK_PROMPTS, QUICK_TOKENS = 1, 64
SPARE = 4  # prompts that are read for each prompt that is measured, because some are left out
HOST_FACTOR = 8.0
SHAPE = "bitnet-0.73b"
# The embedded draft with its own width and the target's vocabulary.
DRAFT = {
    **json.loads((demo.DRAFT / "config.json").read_text()),
    "vocab_size": BITNET_073B["vocab_size"],
    "tie_word_embeddings": False,
}
MAIN = "board's host, overlapped"
ALONE = "device alone"
RANGE = ("other_reads_0.25", "other_reads_0.5", "other_reads_1", "flat_13.3")  # conditions of the memory
_TREES, _SHAPES = ("auto",), ("chain", "static", "delayed", "dynamic")


@dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """Settings of a run. ``check``: every pass also runs on the CPU target."""

    prompts: int
    tokens: int
    host_factor: float
    quick: bool
    check: bool


def methods() -> list[Method]:
    """Return a method for every drafter, and two for each drafter with a draft model."""
    result = []
    for name in names(DRAFTERS):
        result.append(Method(name=name, policy="chain" if name == "none" else "hardware"))
        if name in ("model", "auto"):
            result.append(Method(name=name, fabric=True))
    return result


def scripts(settings: DeviceSettings, context: int, bar: Progress) -> list[Script]:
    """Return the texts that the embedded model writes after the prompts, within the device's ``context`` positions."""
    with Session.open(demo.bundle_path(), threads=1, ctx_size=context) as session:
        # The session's own text stays in its cache, so that there is no room to read it again.
        reader = open_target(Bundle.open(demo.bundle_path()), limits=session.run.limits, threads=1)
        prompts = read_prompts(shared_prompts(), SPARE * settings.prompts)
        choice = choose(session, prompts, settings.prompts, settings.tokens + BEYOND, bar)
        return _in_turns([script(session, reader, task, settings.tokens) for task in choice.tasks])


def _in_turns(texts: Sequence[Script]) -> list[Script]:
    """Order the texts so that their kinds alternate, also for a session that writes all of them."""
    seen: dict[str, int] = {}
    turns = []
    for one in texts:
        seen[one.kind] = seen.get(one.kind, 0) + 1
        turns.append(seen[one.kind])
    return [one for _, one in sorted(zip(turns, texts, strict=True), key=lambda pair: pair[0])]


def measured(
    writer: ScriptWriter, texts: Sequence[Script], every: Sequence[Method], driver: Mapping[tuple[str, int], float]
) -> HostCosts:
    """Measure the host's work on one text of each kind with every drafter and policy."""
    firsts = list({one.kind: one for one in reversed(texts)}.values())
    samples: dict[tuple[str, int], list[float]] = {}
    for method in every:
        _, books = writer.write(firsts, method, BoardHost(factor=0.0))
        for key, seconds in books.samples.items():
            samples.setdefault(key, []).extend(seconds)
    return HostCosts(table={**{key: typical(seconds) for key, seconds in samples.items()}, **driver})


def measure(settings: DeviceSettings, device: Board, library: Path | None) -> dict[str, Any]:
    """Return all figures.

    Raises:
        EdgedecError: the shape does not fit the board, a model cannot be run, or a drafter changed the text.
    """
    config = chosen(device, SHAPE, None)
    if config.slots < 2:
        raise UnsupportedError(
            f"the accelerator of {device.name} has one slot with this shape and cannot verify proposals; try --board kv260"
        )
    with progress("device") as bar:
        bar("passes", 0, 1)
        conditions = () if settings.quick else [one for one in CONDITIONS if one.name in RANGE]
        cost = open_device_cost(
            device, config, BITNET_073B, DRAFT, library=library, quick=settings.quick, conditions=conditions
        )
        driver = driver_costs(BITNET_073B, config)
    with progress("prompts") as bar:
        texts = scripts(settings, config.context, bar)
    bundle = Bundle.open(demo.bundle_path())
    with Session.open(demo.bundle_path(), threads=1) as session:
        info = session.target.info

    def writer_of(device_cost: DeviceCosts) -> ScriptWriter:
        return ScriptWriter(
            info,
            Bundle.open(demo.bundle_path("demo-draft")),
            device_cost,
            vocab=BITNET_073B["vocab_size"],
            cpu=(lambda limits: open_target(bundle, limits=limits, threads=1)) if settings.check else None,
        )

    writer = writer_of(cost)
    every = methods()
    others = (
        [] if settings.quick else [replace(one, policy=name) for name in _SHAPES for one in every if one.name in _TREES]
    )
    with progress("host") as bar:
        bar("measured", 0, 1)
        costs = measured(writer, texts, [*every, *others], driver)
    slow = settings.host_factor
    hosts = {
        ALONE: BoardHost(factor=0.0, costs=costs),
        "host like this one, overlapped": BoardHost(factor=1.0, overlaps=True, costs=costs),
        "board's host": BoardHost(factor=slow, costs=costs),
        MAIN: BoardHost(factor=slow, overlaps=True, costs=costs),
        "the same, one session for all texts": BoardHost(factor=slow, overlaps=True, keeps=True, costs=costs),
    }
    variants: dict[str, Any] = {}
    trees: dict[str, Any] = {}
    with progress("texts") as bar:
        for at, (name, host) in enumerate(hosts.items()):
            bar(name, at, len(hosts) + 1)
            variants[name] = variant({one.label: writer.write(texts, one, host)[0] for one in every})
        ranges: dict[str, Any] = {}
        for at, condition in enumerate(one for one in CONDITIONS if one.name in cost.busy):
            bar(condition.label, at, len(cost.busy))
            busy = writer_of(cost.under(condition.name))
            speeds = {
                name: mean_tok_s(
                    {one.label: busy.write(texts, one, hosts[name])[0] for one in every if one.label in (PLAIN, "auto")}
                )
                for name in (ALONE, MAIN)
            }
            ranges[condition.name] = {"label": condition.label, "hosts": speeds}
        bar("tree shapes", len(hosts), len(hosts) + 1)
        for one in others:
            trees.setdefault(one.label, {})[one.policy] = writer.write(texts, one, hosts[MAIN])[0]
    return summary(variants, trees, main=MAIN) | {
        "range": ranges,
        "details": {
            "board": device.name,
            "config": asdict(config),
            "prompts": {
                kind: sum(one.kind == kind for one in texts) for kind in dict.fromkeys(one.kind for one in texts)
            },
            "tokens": settings.tokens,
            "host_factor": settings.host_factor,
            "host_us": costs.as_json(),
            "host": cpu_name(),
            "load_average": list(os.getloadavg()),
            "passes": cost.kind,
            "pass_ms": cost.passes.as_json(),
            "draft_pass_ms": None if cost.draft is None else cost.draft.as_json(),
            "commit_us": {
                str(moved): round(1e6 * seconds, 1) for moved, seconds in enumerate(cost.commits.table.tolist())
            },
            "checked": settings.check,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="kv260", help=f"one of {', '.join(board_names())}, or a board's file")
    parser.add_argument(
        "--quick", action="store_true", help="within a minute: fewer prompts, tokens and passes, one tree policy"
    )
    parser.add_argument("--prompts", type=int, help=f"prompts of each kind (default: {PROMPTS})")
    parser.add_argument("--tokens", type=int, help=f"tokens of each text (default: {TOKENS})")
    parser.add_argument(
        "--host-factor",
        type=float,
        default=HOST_FACTOR,
        help="estimated ratio of the board's processor's time to this machine's (default: %(default)s)",
    )
    parser.add_argument("--check", action="store_true", help="run every pass on the CPU target as well; takes minutes")
    parser.add_argument(
        "--simulate", type=Path, metavar="LIBRARY", help="the accelerator's RTL, for the passes; takes an hour or so"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="keep the KV260's figures and write them into README.md and docs/"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    settings = DeviceSettings(
        prompts=args.prompts if args.prompts is not None else QUICK_PROMPTS if args.quick else PROMPTS,
        tokens=args.tokens if args.tokens is not None else QUICK_TOKENS if args.quick else TOKENS,
        host_factor=args.host_factor,
        quick=args.quick,
        check=args.check,
    )
    try:
        if settings.prompts < 1 or not 16 <= settings.tokens <= 512 or not 0 <= settings.host_factor <= 1000:
            raise UsageError("--prompts must be at least 1, --tokens 16 to 512, and --host-factor 0 to 1000")
        if args.write_docs and (settings.quick or args.simulate is not None or args.board != "kv260"):
            raise UsageError("--write-docs writes all figures of the KV260: no --quick, --simulate or other --board")
        result = measure(settings, find_board(args.board), args.simulate)
        if args.write_docs:
            docs.save(result)
            changed = write_blocks(docs.tables() | accelerator_docs.tables())  # both have the host's time
            note(f"written: {', '.join(path.name for path in changed) or 'no page changed'}")
    except EdgedecError as error:
        note(f"device_speculation: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    else:
        print_report(result)


if __name__ == "__main__":
    main()
