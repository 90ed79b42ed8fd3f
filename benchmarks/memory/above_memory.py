"""Measure a model that is larger than its memory: weights streamed from the disk, plain and with speculation.

    .venv/bin/python -m benchmarks.memory.above_memory [--quick] [--share 0.5] [--disk-rate SIZE] [--no-peer] [--json]

The model is the embedded one padded to the shape of BitNet b1.58 0.73B, which writes the embedded one's texts at the larger
one's cost; the first run writes it (seconds, 488 MB). The whole memory budget is ``--share`` of the bytes of its
weights: keys and values, buffers and the window come out of it, and the rest pins weights. All texts are greedy and compared
with the small model's, token for token. A difference ends the benchmark with an error.

For each prompt of six kinds, a plain text, a text with the drafter ``auto`` and the embedded draft model, and a plain text
again are written in one session. The ratio of a kind is the time of its plain texts over that of its speculative ones.
Reading the prompt is not part of the times. The peak is the larger of the session's meter and the kernel's count (VmHWM).

``--disk-rate`` slows the reads of the weights down to that of a slower disk, in bytes per second (100MB is an SD card or
eMMC). The results then say "simulated disk rate". Without it the rate is that of this machine's disk, which is measured.

The peer is the same model without streaming: its weights are mapped from the file, and a control group leaves it as much
memory as the streaming process has, so that the system's page cache drops pages and reads them again. Both write a short
text in a control group of their own. This needs root; where no group can be made, the result says so. The peer always
reads at this machine's rate.

JSON: {"budget_bytes", "weight_bytes", "peak_bytes", "bytes_per_pass", "disk": {...}, "plain_tok_s", "tok_s", "ratio",
"kinds": {NAME: {"plain_tok_s", "tok_s", "ratio", "acceptance", "tokens_per_round", "mean_nodes"}}, "peer": {...}, "details":
{...}}.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.decode import Others, cpu_name
from benchmarks.memory.above_memory_child import AboveMemoryRun
from benchmarks.memory.budget_child import HighWater
from benchmarks.memory.memory_group import MemoryGroup
from benchmarks.speculation.drafters_figures import check_equal
from benchmarks.speculation.drafters_runs import SpeculationBench, TextRun
from benchmarks.speculation.padded_model import PromptTask, choose, padded_bundle
from benchmarks.support.prompts import KINDS, read_prompts, shared_prompts
from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.memory.byte_sizes import format_bytes, parse_bytes
from edgedec.progress import Progress
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig, create_drafter
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import target_module
from edgedec.runtime.targets._cpu import CpuTarget

PROMPTS, TOKENS, QUICK_TOKENS = 2, 64, 32
SPARE = 4  # prompts that are read for each prompt that is measured, because some are left out
COPYING, ALL = 2.9, 1.8  # goals of the ratios, set before the first run
KV_BITS = 8  # bits of keys and values, so that more of the budget is for weights; the small model has as many
PEER_TOKENS = 8
_CHILD = Path(__file__).with_name("above_memory_child.py")


@dataclass(frozen=True, kw_only=True)
class GuessedText:
    """A text with guesses, and the plain texts directly before and after it."""

    kind: str
    plain: tuple[TextRun, TextRun]
    guessed: TextRun

    @property
    def plain_seconds(self) -> float:
        return sum(run.seconds for run in self.plain) / len(self.plain)


def spec_of(draft_max: int) -> SpecConfig:
    return SpecConfig(drafter="auto", draft=demo.bundle_path("demo-draft"), draft_max=draft_max)


def summarize(pairs: Sequence[GuessedText]) -> dict[str, Any]:
    """Return the figures of all texts, and of each kind."""
    by_kind = {kind: [pair for pair in pairs if pair.kind == kind] for kind in KINDS}
    return _figures(pairs) | {"kinds": {kind: _figures(some) for kind, some in by_kind.items() if some}}


def _figures(pairs: Sequence[GuessedText]) -> dict[str, Any]:
    plain, seconds = sum(pair.plain_seconds for pair in pairs), sum(pair.guessed.seconds for pair in pairs)
    tokens, runs = sum(len(pair.guessed.tokens) for pair in pairs), [pair.guessed for pair in pairs]
    rounds, drafted = sum(run.rounds for run in runs), sum(run.drafted for run in runs)
    return {
        "prompts": len(pairs),
        "plain_tok_s": tokens / plain,
        "tok_s": tokens / seconds,
        "ratio": plain / seconds,
        "acceptance": sum(run.accepted for run in runs) / drafted if drafted else 0.0,
        "tokens_per_round": tokens / rounds,
        "mean_nodes": 1 + drafted / rounds,
    }


def goals(result: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return (description, figure, limit) of the goals for which the run has figures."""
    rows = [("all kinds", result["ratio"], ALL)]
    if "copying" in result["kinds"]:
        rows.insert(0, ("copying", result["kinds"]["copying"]["ratio"], COPYING))
    return rows


def measure(args: argparse.Namespace, rate: int | None, data: Path | None) -> dict[str, Any]:
    """Return all figures.

    Raises:
        EdgedecError: a model cannot be made or run, or a text differs.
    """
    small = demo.bundle_path()
    with progress("the padded model, once") as bar:
        padded = padded_bundle(small, bar)
    with progress("prompts") as bar, Session.open(small, threads=args.threads, kv_bits=KV_BITS) as session:
        prompts = read_prompts(data, SPARE * args.prompts)
        choice = choose(session, prompts, args.prompts, args.tokens, bar)
    longest = max(len(task.ids) + args.tokens for task in choice.tasks)
    weights = make_plan(Bundle.open(padded), RunSettings(threads=args.threads)).plan.items["weights"]
    budget, context = int(args.share * weights), -(-(longest + args.draft_max + 1) // 16) * 16
    others, spec = Others(), spec_of(args.draft_max)
    target_module("cpu")  # its libraries are not the model's memory
    mark = HighWater()
    with (
        Session.open(
            padded, threads=args.threads, ctx_size=context, kv_bits=KV_BITS, spec=spec, budget_bytes=budget
        ) as session,
        progress("texts") as bar,
    ):
        result = _texts(session, choice.tasks, args.tokens, rate, bar)
        high_water, _ = mark.grown(0)  # nothing of the weights is mapped
        plan, peak = session.run.plan, session.meter.peak_bytes
    assert plan.disk is not None
    return {
        "budget_bytes": budget,
        "weight_bytes": weights,
        "planned_bytes": plan.total_bytes,
        "peak_bytes": max(peak, high_water),
        "items": dict(plan.items),
        "bytes_per_pass": plan.disk.bytes_per_pass,
        "disk_at_opening": asdict(plan.disk),
        **result,
        "peer": None if args.no_peer or args.quick else _peer(padded, budget, context, args.threads),
        "details": {
            "cpu": cpu_name(),
            "cpus": os.cpu_count(),
            "others_share": others.share(),
            "threads": args.threads,
            "tokens": args.tokens,
            "draft_max": args.draft_max,
            "context": context,
            "kv_bits": KV_BITS,
            "tree_nodes": plan.tree_nodes,
            "model": padded.name,
        },
    }


def _texts(
    session: Session, tasks: Sequence[PromptTask], tokens: int, rate: int | None, bar: Progress
) -> dict[str, Any]:
    assert isinstance(session.target, CpuTarget)
    stream = session.target.stream
    if stream is None:
        raise UsageError("all weights fit the budget, so nothing is streamed; give a smaller --share")
    stream.throttle(rate or 0)
    before, bench, pairs = stream.counts, SpeculationBench(session), list[GuessedText]()
    draft, threads = Bundle.open(demo.bundle_path("demo-draft")), session.target.threads
    for at, task in enumerate(tasks):

        def write(name: str, task: PromptTask = task, done: int = at) -> TextRun:
            bar(f"{task.kind}: {name}", done, len(tasks))
            drafter = create_drafter(name, draft if name == "auto" else None, threads=threads)
            run = bench.write(bench.decoder(drafter), task.ids, tokens)
            check_equal(f"{name} on {task.source}", run, task.expected)
            return run

        bench.read(task.ids)
        first = write("none")
        guessed = write("auto")
        pairs.append(GuessedText(kind=task.kind, plain=(first, write("none")), guessed=guessed))
    counts = stream.counts - before
    disk = {
        "bytes_per_second": counts.bytes_per_second,
        "simulated_bytes_per_second": rate,
        "direct": stream.direct,
        "read_bytes": counts.read_bytes,
        "waited_seconds": counts.waited_seconds,
        "restarts": counts.restarts,
    }
    return {"disk": disk} | summarize(pairs)


def _peer(padded: Path, budget: int, context: int, threads: int) -> dict[str, Any]:
    """Return the plain speeds of the streaming process and of the mapped model under the same memory limit."""
    run = AboveMemoryRun(bundle=str(padded), budget_bytes=budget, ctx_size=context, threads=threads, tokens=PEER_TOKENS)
    try:
        alone = _child(run, None)
        limit = alone["resident_bytes"] + alone["peak_bytes"]
        return {
            "limit_bytes": limit,
            "streamed": _child(run, limit),
            "mapped": _child(AboveMemoryRun(**{**asdict(run), "budget_bytes": None}), limit),
        }
    except DeviceError as error:
        return {"not_measured": str(error)}


def _child(run: AboveMemoryRun, limit: int | None) -> dict[str, Any]:
    """Run in a process, in a control group of that limit if there is one."""
    _drop_pages(Path(run.bundle))
    command = [sys.executable, str(_CHILD), json.dumps(asdict(run))]
    environment = {**os.environ, **({} if run.budget_bytes else {"EDGEDEC_HUGE_PAGES": "0"})}
    if limit is None:
        process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    else:
        with MemoryGroup(f"edgedec-above-{os.getpid()}", limit) as group:
            process = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment, preexec_fn=group.join()
            )
    if process.returncode:
        raise DeviceError(
            f"a process of the comparison failed with code {process.returncode}:\n{process.stderr.strip()}"
        )
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def _drop_pages(bundle: Path) -> None:
    """Drop the bundle's files from the page cache, because a group is not charged for pages that others have read."""
    for file in bundle.iterdir():
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def print_report(result: Mapping[str, Any]) -> None:
    details, disk = result["details"], result["disk"]
    simulated = disk["simulated_bytes_per_second"]
    kind = f"simulated disk rate of {format_bytes(simulated)}/s" if simulated else "measured disk rate"
    cpus = f"{details['threads']} of {details['cpus']} CPUs"
    print(f"CPU      {details['cpu']}, {cpus}; others took {details['others_share']:.0%}")
    print(
        f"model    {details['model']}, {format_bytes(result['weight_bytes'])} of weights, context {details['context']}"
    )
    print(
        f"memory   budget {format_bytes(result['budget_bytes'])}, planned {format_bytes(result['planned_bytes'])}, "
        f"peak {format_bytes(result['peak_bytes'])} (measured)"
    )
    rate = format_bytes(round(disk["bytes_per_second"]))
    print(
        f"disk     {format_bytes(result['bytes_per_pass'])} a pass; {kind}, {rate}/s "
        f"over the run ({'direct reads' if disk['direct'] else 'page cache'}); {disk['waited_seconds']:.1f} s waited\n"
    )
    rows: list[tuple[str, ...]] = [
        ("kind", "prompts", "plain tok/s", "tok/s", "ratio", "accepted", "tok/round", "nodes")
    ]
    for name, figures in [*result["kinds"].items(), ("all kinds", result)]:
        rows.append(
            (
                name,
                str(figures["prompts"]),
                f"{figures['plain_tok_s']:.2f}",
                f"{figures['tok_s']:.2f}",
                f"{figures['ratio']:.2f}",
                f"{figures['acceptance']:.0%}",
                f"{figures['tokens_per_round']:.2f}",
                f"{figures['mean_nodes']:.1f}",
            )
        )
    print_table(rows, right=range(1, 8))
    print(f"(texts measured with a {kind})\n")
    for what, figure, limit in goals(result):
        print(f"goal: {what} {figure:.2f} of {limit:g}{'' if figure >= limit else ': MISSED'}")
    if peer := result["peer"]:
        _print_peer(peer)


def _print_peer(peer: Mapping[str, Any]) -> None:
    if "not_measured" in peer:
        print(f"peer: not measured: {peer['not_measured']}")
        return
    print(f"\nin a control group of {format_bytes(peer['limit_bytes'])}, at this machine's disk rate, plain:")
    for name in ("streamed", "mapped"):
        print(f"  {name}: {peer[name]['tok_s']:.2f} tok/s (measured, {PEER_TOKENS} tokens)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cpus = os.cpu_count() or 1
    parser.add_argument("--quick", action="store_true", help="one prompt of each kind, short texts, no peer")
    parser.add_argument("--prompts", type=int, help=f"prompts of each kind (default: {PROMPTS})")
    parser.add_argument("--tokens", type=int, help=f"tokens of each text (default: {TOKENS})")
    parser.add_argument("--threads", type=int, default=min(2, cpus))
    parser.add_argument("--draft-max", type=int, default=SpecConfig().draft_max)
    parser.add_argument(
        "--share", type=float, default=0.5, help="budget as a share of the weights' bytes (default: 0.5)"
    )
    parser.add_argument("--disk-rate", metavar="SIZE", help="simulate a disk of so many bytes per second: 100MB, 300MB")
    parser.add_argument("--no-peer", action="store_true", help="measure no model whose weights are mapped")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.prompts = args.prompts or (1 if args.quick else PROMPTS)
    args.tokens = args.tokens or (QUICK_TOKENS if args.quick else TOKENS)
    try:
        if not 0 < args.share < 1 or args.prompts < 1 or args.tokens < 16 or not 1 <= args.threads <= cpus:
            raise UsageError(
                f"--share must be between 0 and 1, --prompts at least 1, --tokens at least 16, and --threads 1 to {cpus}"
            )
        rate = None if args.disk_rate is None else parse_bytes(args.disk_rate)
        result = measure(args, rate, shared_prompts())
    except EdgedecError as error:
        note(f"above_memory: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    else:
        print_report(result)


if __name__ == "__main__":
    main()
