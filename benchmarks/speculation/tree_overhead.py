"""Measure the microseconds of a round outside target and drafter: growing a tree and verifying it.

    .venv/bin/python -m benchmarks.speculation.tree_overhead [--nodes 8] [--depth 7] [--json]

The drafts take no time. Every policy grows trees over two drafts: ``certain`` proposes one token after each token, as n-gram
drafters do (a chain to the depth limit), and ``spread`` proposes five tokens with decreasing probabilities. Every verifier
walks a tree of ``dynamic`` that the target accepts to a leaf, at temperature 0, over a vocabulary of --vocab tokens. The
result is the best of --repeat runs of 20 rounds; the runs are short, so that on a busy machine some are not interrupted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from edgedec.plugins import load, names
from edgedec.runtime.drafting import alone
from edgedec.runtime.protocols import I32, Draft, Limits, Outcome, Sparse, TokenTree, TreePolicy
from edgedec.runtime.sampling.position_random import PositionRandom

ROUNDS = 20
TEXT = np.arange(100, dtype=np.int32)
CERTAIN = Sparse(ids=np.array([7], np.int32), probs=np.ones(1, np.float32))
SPREAD = Sparse(ids=np.arange(5, dtype=np.int32), probs=np.array([0.5, 0.2, 0.15, 0.1, 0.05], np.float32))


class _Draft:
    def __init__(self, guess: Sparse) -> None:
        self.guess = guess

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        return [self.guess] * len(nodes)

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        return None


class _Cost:
    """A cost model in which wide trees are cheap, so that ``hardware`` grows to the limit."""

    def seconds(self, nodes: int, past: int) -> float:
        return 0.01 + 1e-6 * nodes


def _microseconds(work: Callable[[], object], repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(ROUNDS):
            work()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / ROUNDS


def measure(nodes: int, depth: int, vocab: int, repeat: int) -> dict[str, dict[str, float]]:
    """Return the microseconds of policies, by draft and way of choosing children, and of verifiers."""
    limits, cost = Limits(nodes=nodes, depth=depth, positions=1024), _Cost()
    accept = np.tile(np.array([0.8, 0.3, 0.2, 0.1], np.float32), (depth, 1))
    table: dict[str, dict[str, float]] = {}

    def grown(policy: TreePolicy, draft: Draft) -> TokenTree:
        return alone(policy.grow(draft, TEXT, limits, cost, accept))

    for name in names("edgedec.runtime.trees"):
        table[name] = {}
        for column, guess, rng in (
            ("certain", CERTAIN, None),
            ("spread", SPREAD, None),
            ("spread, drawn", SPREAD, np.random.default_rng(0)),
        ):
            policy, draft = load("edgedec.runtime.trees", name).create(rng), _Draft(guess)
            table[name][column] = _microseconds(partial(grown, policy, draft), repeat)
    tree = grown(load("edgedec.runtime.trees", "dynamic").create(), _Draft(SPREAD))
    rows = np.zeros((nodes, vocab), np.float32)
    for node in range(nodes):
        after = np.flatnonzero(tree.parents == node)
        rows[node, tree.tokens[after[0]] if len(after) else vocab - 1] = 1
    random = PositionRandom(seed=0)
    for name in names("edgedec.runtime.verifiers"):
        verifier = load("edgedec.runtime.verifiers", name).create()
        table[name] = {
            "verify": _microseconds(partial(verifier.accept, tree, rows.__getitem__, random, len(TEXT)), repeat)
        }
    return table


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--nodes", 8), ("--depth", 7), ("--vocab", 2048), ("--repeat", 300)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = measure(options.nodes, options.depth, options.vocab, options.repeat)
    if options.json:
        print(json.dumps(table))
        return
    print(f"microseconds a round, {options.nodes} nodes, depth {options.depth}")
    for name, columns in table.items():
        print(f"{name:12}" + "".join(f"{column:>16} {value:6.1f}" for column, value in columns.items()))


if __name__ == "__main__":
    main()
