"""Simulate speculation on the accelerator: BitNet-0.73B's shape on a board, with the acceptance of the embedded model.

    .venv/bin/python -m benchmarks.accelerator.speculation --board kv260 [--quick] [--prompts N] [--tokens N] [--json]
    .venv/bin/python -m benchmarks.accelerator.speculation --write-docs   # write the figures into the pages

No result is measured on a board. Every text combines three parts:

- The time of a pass: all its reads and writes run through the KV260's memory model, the waits for results between them come
  from the cycle model, and the sum is scaled to the cycles that the RTL of this shape took, as far as it was simulated
  (docs/reports/accelerator.md). These times are called modelled. Commits that move rows are computed in the same way,
  without the scaling; the host goes on meanwhile. Plain decoding and the drafter ``auto`` are also computed with another
  master beside the accelerator, with a flat memory, and with the accelerator that the board gets for a rough head, whose
  passes are not scaled either. The texts are those of the int8 head.
- The acceptance: the embedded model writes greedy texts after prompts of six kinds on the CPU target. A drafter's tree is
  compared with the model's logits after each of its own tokens. The text must be the same as before, or the benchmark ends
  with an error. --check runs every pass on the CPU target as well. The embedded model writes children's stories; the
  acceptance of a model of 0.73 B parameters with the same drafters is not known.
- The time of the host: the instructions that the compiled loop takes for drafters, tree policy, submission, results and
  commits, counted for AArch64 (host_instructions.py), times a range of cycles for each. This is an estimate, of which both
  ends are given. Reading the prompt, by target or drafter, is not counted, nor is Python, which reads the tokens of a round
  while the next one runs.

The draft model is the embedded draft. On the host its passes take their counted instructions. With
"(fabric)" they run on the accelerator, between the target's passes, with a head of the target's vocabulary, at the cost of
the same traffic model.

JSON: {"variants": {NAME: {"drafters": {NAME: {"kinds": {KIND: {...}}, "mean_tok_s": X, "harmonic_tok_s": X}}}}, ...}.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.accelerator import device_docs as docs
from benchmarks.accelerator import speed_docs as accelerator_docs
from benchmarks.accelerator.device_clock import HostCosts
from benchmarks.accelerator.device_cost import DeviceCosts, open_device_cost
from benchmarks.accelerator.device_figures import PLAIN, mean_tok_s, summary, variant
from benchmarks.accelerator.device_report import print_report
from benchmarks.accelerator.device_runs import BEYOND, BoardHost, Method, Script, ScriptWriter, script
from benchmarks.accelerator.host_instructions import BOARD_HOSTS, host_costs, read_counts
from benchmarks.accelerator.speed import chosen
from benchmarks.accelerator.speed_figures import CONDITIONS
from benchmarks.speculation.padded_model import choose
from benchmarks.support.docs_tables import write_blocks
from benchmarks.support.prompts import read_prompts, shared_prompts
from benchmarks.support.shapes import BITNET_073B
from edgedec import demo
from edgedec.board import Board
from edgedec.boards import all_boards, board_names, find_board
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note, print_json, progress
from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.hw.compiler.shapes import shape_graph, shape_model
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.plugins import names
from edgedec.progress import Progress
from edgedec.runtime.planning.speculation import DRAFTERS
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target

PROMPTS, TOKENS = 3, 128
QUICK_PROMPTS, QUICK_TOKENS = 1, 64
SPARE = 4  # prompts that are read for each prompt that is measured, because some are left out
SHAPE = "bitnet-0.73b"
# The embedded draft with its own width and the target's vocabulary.
DRAFT = {
    **json.loads((demo.DRAFT / "config.json").read_text()),
    "vocab_size": BITNET_073B["vocab_size"],
    "tie_word_embeddings": False,
}
MAIN = BOARD_HOSTS[1]
ALONE = "device alone"
RANGE = ("other_reads_0.25", "other_reads_0.5", "other_reads_1", "flat_13.3")  # conditions of the memory
# Tokens per second by host and drafter, of times of an accelerator and of the hosts.
Speeds = Callable[[DeviceCosts, Mapping[str, BoardHost]], dict[str, dict[str, float]]]
_TREES, _SHAPES = ("auto",), ("chain", "static", "delayed", "dynamic")


@dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """Settings of a run. ``check``: every pass also runs on the CPU target."""

    prompts: int
    tokens: int
    quick: bool
    check: bool


def methods() -> list[Method]:
    """Return a method for every drafter that is compiled, and two for each drafter with a draft model."""
    result, counted = [], read_counts()
    for name in names(DRAFTERS):
        if name != "none" and f"{name} expand" not in counted:
            continue  # its rounds run in Python, whose instructions are not counted
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
    ends = [host_costs(end) for end in range(len(BOARD_HOSTS))]
    hosts = {
        ALONE: BoardHost(costs=HostCosts(table={})),
        **{name: BoardHost(costs=costs) for name, costs in zip(BOARD_HOSTS, ends, strict=True)},
        "the same, one session for all texts": BoardHost(costs=ends[1], keeps=True),
    }
    variants: dict[str, Any] = {}
    trees: dict[str, Any] = {}
    with progress("texts") as bar:
        for at, (name, host) in enumerate(hosts.items()):
            bar(name, at, len(hosts) + 1)
            variants[name] = variant({one.label: writer.write(texts, one, host)[0] for one in every})
        ranges: dict[str, Any] = {}

        def speeds(device_cost: DeviceCosts, board_hosts: Mapping[str, BoardHost]) -> dict[str, dict[str, float]]:
            other, kept = writer_of(device_cost), [one for one in every if one.label in (PLAIN, "auto")]
            return {
                name: mean_tok_s({one.label: other.write(texts, one, board_hosts[name])[0] for one in kept})
                for name in (ALONE, *BOARD_HOSTS)
            }

        for at, condition in enumerate(one for one in CONDITIONS if one.name in cost.busy):
            bar(condition.label, at, len(cost.busy))
            ranges[condition.name] = {"label": condition.label, "hosts": speeds(cost.under(condition.name), hosts)}
        bar("rough head", 0, 1)
        rough = {str(planes): _rough(planes, device, hosts, speeds) for planes in (1, 2)} if cost.busy else {}
        bar("tree shapes", len(hosts), len(hosts) + 1)
        for one in others:
            trees.setdefault(one.label, {})[one.policy] = writer.write(texts, one, hosts[MAIN])[0]
    return summary(variants, trees, main=MAIN) | {
        "range": ranges,
        "rough": rough,
        "details": {
            "board": device.name,
            "config": asdict(config),
            "prompts": {
                kind: sum(one.kind == kind for one in texts) for kind in dict.fromkeys(one.kind for one in texts)
            },
            "tokens": settings.tokens,
            "host_us": [costs.as_json() for costs in ends],
            "host": "Cortex-A53 at 1.333 GHz, both ends of the range",
            "passes": cost.kind,
            "pass_ms": cost.passes.as_json(),
            "draft_pass_ms": None if cost.draft is None else cost.draft.as_json(),
            "commit_us": {
                str(moved): round(1e6 * seconds, 1) for moved, seconds in enumerate(cost.commits.table.tolist())
            },
            "checked": settings.check,
        },
    }


def _rough(planes: int, device: Board, hosts: Mapping[str, BoardHost], speeds: Speeds) -> dict[str, Any]:
    """Return the figures of the accelerator that the board gets for a rough head of so many planes; no RTL of it ran."""
    model = shape_model(shape_graph(BITNET_073B), rough_head=planes)
    config = config_for_board(model, device, others=all_boards())
    cost = open_device_cost(device, config, BITNET_073B, DRAFT, rtl=False)
    own = {name: BoardHost(costs=host_costs(end, rough=config.top_k)) for end, name in enumerate(BOARD_HOSTS)}
    return {
        "hosts": speeds(cost, {**hosts, **own}),
        "slots": config.slots,
        "top_k": config.top_k,
        "pass_ms": cost.passes.as_json(),
        "result_us": [own[name].costs.as_json()["result"] for name in BOARD_HOSTS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="kv260", help=f"one of {', '.join(board_names())}, or a board's file")
    parser.add_argument(
        "--quick", action="store_true", help="within a minute: fewer prompts, tokens and passes, one tree policy"
    )
    parser.add_argument("--prompts", type=int, help=f"prompts of each kind (default: {PROMPTS})")
    parser.add_argument("--tokens", type=int, help=f"tokens of each text (default: {TOKENS})")
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
        quick=args.quick,
        check=args.check,
    )
    try:
        if settings.prompts < 1 or not 16 <= settings.tokens <= 512:
            raise UsageError("--prompts must be at least 1, and --tokens 16 to 512")
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
