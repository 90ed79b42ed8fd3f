"""Measure what a learning drafter gains from one text of a prompt to the next: tokens per round, by sample.

    .venv/bin/python -m benchmarks.speculation.samples [--kind question] [--source gsm8k] [--prompts 10] [--samples 8]
                                                       [--json]

For each prompt a session writes ``--samples`` texts of ``--tokens`` tokens, as ``edgedec generate --samples`` does. Every
round has the largest tree that the policy makes, so that no clock decides and the figures are the same in every run. The
prompts are of one kind of ``benchmarks/support/prompts.py`` (``--kind``), from ../shared/data/prompts if it exists; with
``--source``, only those from files whose names begin so.

The embedded model knows stories only, and often repeats itself after other prompts. Prompts whose first text loops are
therefore counted (``loops_from`` of benchmarks/support/prompts.py), but not left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.support.prompts import (
    KINDS,
    LOOPS_FROM,
    Prompt,
    prepare,
    read_prompts,
    repeated_share,
    shared_prompts,
    spread,
)
from edgedec import demo
from edgedec.plugins import names
from edgedec.runtime.planning.speculation import DRAFTERS, POLICIES, SpecConfig
from edgedec.runtime.protocols import Limits, TreePolicy
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.trees import DEFAULT

__all__ = ["largest_trees", "measure", "summarize"]

CONTEXT = 512


@contextmanager
def largest_trees() -> Iterator[None]:
    """Let every round have the largest tree, whatever it costs."""

    def largest(self: Adaptive, policy: TreePolicy, limits: Limits, past: int) -> Limits:
        return limits

    judge, size = Adaptive._judge, Adaptive.size
    Adaptive._judge, Adaptive.size = (lambda self: None), largest  # type: ignore[method-assign]
    try:
        yield
    finally:
        Adaptive._judge, Adaptive.size = judge, size  # type: ignore[method-assign]


def measure(prompt: Prompt, spec: SpecConfig, *, samples: int, tokens: int, temperature: float) -> dict[str, Any]:
    """Return the tokens and rounds of each text of a prompt, and the repeated share of the first text."""
    with Session.open(demo.bundle_path(), ctx_size=CONTEXT, spec=spec, threads=1) as session, largest_trees():
        ids = prepare(session, prompt, tokens)
        sampling = SamplingConfig(temperature=temperature, seed=0)
        answers = [
            session.generate(ids, n_predict=tokens, sampling=sampling, sample=sample, ignore_eos=True)
            for sample in range(samples)
        ]
    return {
        "source": prompt.source,
        "tokens": [len(answer.tokens) for answer in answers],
        "rounds": [answer.timings.rounds.count for answer in answers],
        "repeated": repeated_share(answers[0].text),
    }


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return, by sample, the mean over the prompts of tokens per round, and of all prompts together; and their gains.

    A gain is the figure of the last sample divided by that of the first.
    """
    tokens, rounds = (np.array([run[name] for run in runs]) for name in ("tokens", "rounds"))
    means, pooled = (tokens / rounds).mean(axis=0), tokens.sum(axis=0) / rounds.sum(axis=0)
    return {
        "tokens_per_round": means.tolist(),
        "gain": float(means[-1] / means[0]),
        "tokens_per_round_pooled": pooled.tolist(),
        "gain_pooled": float(pooled[-1] / pooled[0]),
        "looping": sum(run["repeated"] >= LOOPS_FROM for run in runs),
        "prompts": list(runs),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=10, metavar="N")
    parser.add_argument("--samples", type=int, default=8, metavar="N")
    parser.add_argument("--tokens", type=int, default=150, metavar="N", help="tokens of a text")
    parser.add_argument("--kind", choices=KINDS, default="question")
    parser.add_argument("--source", default="", metavar="PREFIX", help="take prompts of these files only")
    parser.add_argument("--temp", type=float, default=0.6)
    parser.add_argument("--spec-type", choices=[*names(DRAFTERS)], default="stand")
    parser.add_argument("--spec-tree", choices=[*names(POLICIES)], default=DEFAULT)
    parser.add_argument("--tree-nodes", type=int, default=16)
    parser.add_argument("--draft-max", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    spec = SpecConfig(
        drafter=options.spec_type,
        policy=options.spec_tree,
        draft_max=options.draft_max,
        tree_nodes=options.tree_nodes,
        samples=options.samples,
    )
    every = [one for one in read_prompts(shared_prompts(), sys.maxsize) if one.kind == options.kind]
    prompts = spread([one for one in every if one.source.startswith(options.source)], options.prompts)
    if not prompts:
        parser.error(f"no prompt of the kind {options.kind} is from a file that begins with {options.source!r}")
    runs = [
        measure(prompt, spec, samples=options.samples, tokens=options.tokens, temperature=options.temp)
        for prompt in prompts
    ]
    figures = summarize(runs)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"tokens per round by sample: mean of {len(runs)} prompts, and of all together")
    print("  " + " ".join(f"{value:5.2f}" for value in figures["tokens_per_round"]) + f"  x {figures['gain']:.3f}")
    pooled = " ".join(f"{value:5.2f}" for value in figures["tokens_per_round_pooled"])
    print(f"  {pooled}  x {figures['gain_pooled']:.3f}")
    print(f"{figures['looping']} of the prompts have a first text that loops")


if __name__ == "__main__":
    main()
