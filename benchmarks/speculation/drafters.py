"""Measure speculative decoding at the cost of a real model: every drafter on the embedded model padded to 0.73B.

    .venv/bin/python -m benchmarks.speculation.drafters [--quick] [--prompts N] [--tokens N] [--threads N] [--no-peer]
                                                        [--json]

The padded model writes exactly the embedded one's text at the cost of BitNet b1.58 0.73B's shape; the first run writes it
into edgedec's cache (seconds, 488 MB). All texts are greedy, and each is compared with plain decoding's text and
with the small model's, token for token. A difference ends the benchmark with an error.

For each prompt these texts are measured in turns: plain, a drafter at its own cost and at the padded cost, plain again, the
next drafter. A drafter is compared with the plain texts around it, and medians are taken over the prompts of a kind. Prompts
whose text repeats more than 20 % of its 4-word sequences, or ends early, are left out; the report has their number. A
drafter is new for each prompt, and its learning is included in its time. Reading the prompt is not included for the target
or the drafter; the report has the time of it. At the padded cost a drafter waits busily until each drafted token has taken
5 % of T(1), which is the cost of a draft of a real model's size.

For comparison llama.cpp (TQ2_0) and onnxruntime-genai (2-bit MatMulNBits) write the same prompts with the same model and
threads, plain and with their own speculation. The first run builds or installs them into edgedec's cache; llama.cpp takes
minutes. --quick and --no-peer leave them out.

The predicted speed-up is computed as tokens per round * T(1) / (mean T(rows of the rounds) + drafting per round), from
measured passes of 1 to 9 rows after the same prompt. JSON: {"kinds": {NAME: {"plain_tok_s": X, "best": NAME, "drafters":
{NAME: {"tok_s": X, "speedup": X, "speedup_padded": X, "acceptance": X, "predicted": X}}}}, "auto_min": X, "loop_us": X,
"details": {...}}; loop_us is the mean time of a round outside of the pass and of the growth of its tree, in the median text,
for the drafter with the largest.

Rounds run in the compiled loop where it has the parts: by default with `ngram`, `copy`, `stand` and `trigram` at their own
cost. The rounds of other drafters, of --policy hardware and at the padded cost run in Python.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu.decode import Others, cpu_name
from benchmarks.peers.speculation import run_peers
from benchmarks.speculation.drafters_figures import PADDING, DrafterRuns, PromptRuns, check_equal, summarize
from benchmarks.speculation.drafters_report import print_report
from benchmarks.speculation.drafters_runs import SpeculationBench, TextRun
from benchmarks.speculation.padded_model import PromptChoice, PromptTask, choose, padded_bundle
from benchmarks.support.prompts import KINDS, read_prompts, shared_prompts
from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note, print_json, progress
from edgedec.errors import EdgedecError, UsageError
from edgedec.plugins import names
from edgedec.progress import Progress
from edgedec.runtime.planning.speculation import DRAFTERS, SpecConfig, create_drafter
from edgedec.runtime.protocols import Drafter
from edgedec.runtime.session.session import Session
from edgedec.runtime.trees import DEFAULT

PROMPTS, TOKENS = 5, 128
QUICK_PROMPTS, QUICK_TOKENS, QUICK_DRAFTERS = 1, 64, ("copy", "model", "auto")
SPARE = 4  # prompts that are read for each prompt that is measured, because some are left out
REPEATS = 3  # measurements of a pass
DRAFT_MAX = 8


@dataclass(frozen=True, kw_only=True)
class SpeculationSettings:
    """Settings of a run."""

    prompts: int
    tokens: int
    threads: int
    drafters: Sequence[str]
    policy: str
    peers: bool


def measure(settings: SpeculationSettings, data: Path | None) -> dict[str, Any]:
    """Return all figures.

    Raises:
        EdgedecError: a model cannot be made or run, or a drafter changed the text.
    """
    small, draft = demo.bundle_path(), demo.bundle_path("demo-draft")
    with progress("the padded model, once") as bar:
        padded = padded_bundle(small, bar)
    with progress("prompts") as bar, Session.open(small, threads=settings.threads) as session:
        prompts = read_prompts(data, SPARE * settings.prompts)
        choice = choose(session, prompts, settings.prompts, settings.tokens, bar)
    spec = SpecConfig(drafter="ngram", policy=settings.policy, draft_max=DRAFT_MAX)
    others, takes = Others(), []
    with Session.open(padded, threads=settings.threads, spec=spec) as session, progress("texts") as bar:
        opened = Bundle.open(draft)
        drafters = {name: create_drafter(name, opened, threads=settings.threads) for name in settings.drafters}
        bench = SpeculationBench(session)
        for longest in sorted(choice.tasks, key=lambda task: len(task.ids))[-1:]:
            # Allocates the cache's pages before anything is measured.
            bench.read(np.array([*longest.ids, *longest.expected], np.int32)[:-1])
        for at, task in enumerate(choice.tasks):
            takes.append(_take(bench, task, drafters, settings.tokens, bar, at / len(choice.tasks)))
    details = _details(settings, choice, others, padded, session)
    if settings.peers:
        with progress("peers") as bar:
            details["peers"] = run_peers(
                choice.tasks, tokens=settings.tokens, threads=settings.threads, draft_max=DRAFT_MAX, progress=bar
            )
    return summarize(takes) | {"details": details}


def _take(
    bench: SpeculationBench, task: PromptTask, drafters: Mapping[str, Drafter], tokens: int, bar: Progress, done: float
) -> PromptRuns:
    """Measure one prompt with all drafters."""

    def write(name: str, drafter: Drafter, token_seconds: float = 0.0) -> TextRun:
        bar(f"{task.kind}: {name}", int(1000 * done), 1000)
        run = bench.write(bench.decoder(drafter, token_seconds), task.ids, tokens)
        check_equal(f"{name} on {task.source}", run, task.expected)
        return run

    none = create_drafter("none", None)
    bench.read(task.ids)
    times = bench.pass_times(task.ids, DRAFT_MAX + 1, REPEATS)
    plain = [write("plain", none)]
    pairs = {}
    for name, drafter in drafters.items():
        own, padded = write(name, drafter), write(f"{name}, padded", drafter, PADDING * times[1])
        plain.append(write("plain", none))
        pairs[name] = DrafterRuns(own=own, padded=padded, plain=(plain[-2], plain[-1]))
    return PromptRuns(kind=task.kind, source=task.source, plain=tuple(plain), drafters=pairs, pass_times=times)


def _details(
    settings: SpeculationSettings, choice: PromptChoice, others: Others, padded: Path, session: Session
) -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "others_share": others.share(),
        "load_average": list(os.getloadavg()),
        "threads": settings.threads,
        "tokens": settings.tokens,
        "policy": settings.policy,
        "draft_max": DRAFT_MAX,
        "padding": PADDING,
        "model": padded.name,
        "kv_bits": session.run.plan.kv_bits,
        "prompts": {
            kind: {"tried": choice.tried[kind], "looping": choice.looping[kind], "ended_early": choice.short[kind]}
            for kind in KINDS
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cpus, known = os.cpu_count() or 1, [name for name in names(DRAFTERS) if name != "none"]
    parser.add_argument(
        "--quick", action="store_true", help="a minute or two: fewer prompts, tokens and drafters, no peer"
    )
    parser.add_argument("--prompts", type=int, help=f"prompts of each kind (default: {PROMPTS})")
    parser.add_argument("--tokens", type=int, help=f"tokens of each text (default: {TOKENS})")
    parser.add_argument("--threads", type=int, default=min(2, cpus))
    parser.add_argument("--drafters", nargs="+", choices=known, metavar="NAME", help=f"some of {', '.join(known)}")
    parser.add_argument("--policy", default=DEFAULT, choices=names("edgedec.runtime.trees"))
    parser.add_argument("--no-peer", action="store_true", help="measure edgedec alone; nothing is downloaded or built")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    settings = SpeculationSettings(
        prompts=args.prompts if args.prompts is not None else QUICK_PROMPTS if args.quick else PROMPTS,
        tokens=args.tokens if args.tokens is not None else QUICK_TOKENS if args.quick else TOKENS,
        threads=args.threads,
        drafters=args.drafters or (QUICK_DRAFTERS if args.quick else known),
        policy=args.policy,
        peers=not (args.no_peer or args.quick),
    )
    try:
        if settings.prompts < 1 or settings.tokens < 16 or not 1 <= settings.threads <= cpus:
            raise UsageError(
                f"--prompts must be at least 1, --tokens at least 16, and --threads 1 to {cpus}, the CPUs of this machine"
            )
        result = measure(settings, shared_prompts())
    except EdgedecError as error:
        note(f"speculation: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    else:
        print_report(result)


if __name__ == "__main__":
    main()
