"""Measure what plans assume of each drafter: the share of its guesses that are right, and the seconds of a guess.

    .venv/bin/python -m benchmarks.speculation.estimates [--prompts 3] [--tokens 96] [--write | --write-docs] [--json]

The embedded model writes texts of six kinds at the default temperature, from prompts that are in the repository. Each
drafter makes a chain of eight guesses in every round, so that no clock decides, and the shares are the same everywhere. The
share of a kind is accepted / (accepted + rounds that did not accept all of their chain): with chains of this share, as plans
assume them, a text has as many rounds. A round without a guess counts as one with a wrong guess. Prompts whose text loops or
ends early are left out.

The seconds of a guess are those of a round's drafting by its guesses, with one thread; a tenth of the rounds has fewer,
because other programs only add to them. Those of a draft model are without what the plan computes from its bytes.

``--write`` writes ``runtime/planning/drafters.json``, which ``runtime/planning/estimates.py`` reads. ``grammar`` is not in
it, because its guesses depend on the grammar alone, and ``auto`` counts as the drafter that it would choose.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from typing import Any

from benchmarks.cpu.decode import cpu_name
from benchmarks.speculation.padded_model import PromptTask, choose
from benchmarks.speculation.samples import largest_trees
from benchmarks.support.docs_tables import markdown_table, write_blocks
from benchmarks.support.prompts import read_prompts
from edgedec import demo
from edgedec.cli.console import print_json, progress
from edgedec.plugins import names
from edgedec.progress import Progress, silent
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.planning.drafter_figures import FIGURES, read_figures
from edgedec.runtime.planning.estimates import draft_bytes, memory_bandwidth
from edgedec.runtime.planning.speculation import DRAFTERS, SpecConfig
from edgedec.runtime.rounds.statistics import RoundSeconds
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session

__all__ = ["MEASURED", "drafted", "kept_table", "tasks_of"]

MEASURED = tuple(name for name in names(DRAFTERS) if name not in ("auto", "grammar", "none"))
PROMPTS, TOKENS, GUESSES = 3, 96, 8
SPARE = 4  # prompts that are read for each prompt that is measured, because some are left out


def tasks_of(prompts: int, tokens: int, kinds: Sequence[str] = (), bar: Progress = silent) -> Sequence[PromptTask]:
    """Return ``prompts`` prompts of each kind, or of some ``kinds``."""
    every = [one for one in read_prompts(None, SPARE * prompts) if not kinds or one.kind in kinds]
    with Session.open(demo.bundle_path(), threads=1) as session:
        return choose(session, every, prompts, tokens, bar).tasks


def drafted(drafter: str, tasks: Sequence[PromptTask], tokens: int, bar: Progress = silent) -> dict[str, Any]:
    """Return ``acceptance``, the share of right guesses by kind, and ``guess_microseconds``."""
    draft = demo.bundle_path("demo-draft") if drafter == "model" else None
    spec = SpecConfig(drafter=drafter, draft=draft, policy="chain", draft_max=GUESSES)
    right, wrong = dict[str, int](), dict[str, int]()
    seconds = list[float]()  # seconds of a guess, by round
    with Session.open(demo.bundle_path(), spec=spec, threads=1) as session, largest_trees():
        decoder, before = session.decoder, 0
        assert isinstance(decoder, AutoregressiveDecoder)

        def record(round_seconds: RoundSeconds) -> None:
            nonlocal before
            guesses, before = decoder.rounds.drafted - before, decoder.rounds.drafted
            if guesses > 0:
                seconds.append(round_seconds.drafting / guesses)

        decoder.on_round = record
        for at, task in enumerate(tasks):
            before = 0
            bar(f"{drafter}: {task.kind}", at, len(tasks))
            answer = session.generate(task.ids, n_predict=tokens, sampling=SamplingConfig(seed=0), ignore_eos=True)
            rounds = answer.timings.rounds
            whole = rounds.accepted[GUESSES - 1] if len(rounds.accepted) == GUESSES else 0
            right[task.kind] = right.get(task.kind, 0) + sum(rounds.accepted)
            wrong[task.kind] = wrong.get(task.kind, 0) + rounds.count - whole
        own = draft_bytes(session.run.plan.items) / memory_bandwidth(1)
    return {
        "acceptance": {kind: round(right[kind] / (right[kind] + wrong[kind]), 3) for kind in right},
        "guess_microseconds": round(1e6 * max(0.0, sorted(seconds)[len(seconds) // 10] - own), 1),
    }


def measure(prompts: int, tokens: int) -> dict[str, Any]:
    """Return the contents of the file."""
    with progress("prompts") as bar:
        tasks = tasks_of(prompts, tokens, bar=bar)
    with progress("drafters") as bar:
        drafters = {name: drafted(name, tasks, tokens, bar) for name in MEASURED}
    commit = subprocess.run(("git", "rev-parse", "--short=8", "HEAD"), capture_output=True, text=True, check=True)
    about = {
        "command": f"python -m benchmarks.speculation.estimates --prompts {prompts} --tokens {tokens} --write",
        "commit": commit.stdout.strip(),
        "machine": cpu_name(),
        "prompts": prompts,
        "tokens": tokens,
    }
    return {"measured": about, "drafters": drafters}


def kept_table() -> str:
    """Return the table of the file for the page."""
    data = json.loads(FIGURES.read_text("utf-8"))["drafters"]
    kinds = list(next(iter(data.values()))["acceptance"])
    rows = [
        (f"`{name}`", *(f"{one['acceptance'][kind]:.3f}" for kind in kinds), f"{one['guess_microseconds']:.1f} us")
        for name, one in data.items()
    ]
    return markdown_table(("share of right guesses", *kinds, "a guess"), rows)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=PROMPTS, metavar="N", help="prompts of each kind")
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help="tokens of each text")
    parser.add_argument("--write", action="store_true", help="write the file, and its table into the page")
    parser.add_argument(
        "--write-docs", action="store_true", help="measure nothing; write the file's table into the page"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.write_docs:
        result = measure(options.prompts, options.tokens)
        if options.write:
            FIGURES.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
            read_figures(FIGURES)
        if options.json or not options.write:
            print_json(result)
    if options.write or options.write_docs:
        write_blocks({"drafters": kept_table()})
        print(kept_table())


if __name__ == "__main__":
    main()
