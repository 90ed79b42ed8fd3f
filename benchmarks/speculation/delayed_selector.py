"""Fit the weights of the selector of ``delayed``, and measure what it gains.

    .venv/bin/python -m benchmarks.speculation.delayed_selector [--rounds 400] [--json]

The embedded pair writes continuations of held-out stories, with guesses that are chosen (verified by ``match``) and with
guesses that are drawn (verified by ``rejection``), at several temperatures. At every accepted node that had children, each
child that was tried is an observation: the draft's probability of it, the measured acceptance of its depth and rank, and
whether it was right. Two thirds of the stories serve the fit, a logistic regression by Newton's method. The others serve
the comparison of its loss, in nats per guess, with that of the measured acceptance alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from benchmarks.speculation.verifiers_matched import LIMITS, Pair, held_out_prompts, write
from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Drafting, Limits, TokenTree, TreeSize
from edgedec.runtime.rounds.acceptance import RankAcceptance
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.trees._growth import Growth
from edgedec.runtime.trees._selector import CHOSEN, DRAWN, Selector, logit

__all__ = ["collect", "fit"]

F64 = NDArray[np.float64]
MODES = {"chosen": "match", "drawn": "rejection"}
TEMPERATURES = (0.0, 0.2, 0.6, 0.9, 1.2)
CHILDREN = 3
_NEWTON, _RIDGE = 20, 1e-3  # steps of the fit, and the weight of the squared weights


class _Observing:
    """A policy that grows a stem of five nodes, all with three children, and notes what was known before they were grown."""

    def __init__(self, rng: np.random.Generator | None) -> None:
        self._rng, self._selector = rng, Selector()
        self.deviations: dict[int, list[float]] = {}

    def sizes(self, limits: Limits, accept: F32) -> tuple[TreeSize, ...]:
        return ()

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        growth, stem = Growth(draft, text, 16, self._rng), 0
        self.deviations.clear()
        for _ in range(5):
            yield from growth.expand([stem])
            if stem not in growth.pending:
                break
            self.deviations[stem] = self._selector.deviations(growth.pending[stem], CHILDREN)
            below = len(growth)
            for _ in range(CHILDREN):
                growth.add(stem)
            stem = below
        return growth.tree()


def collect(pair: Pair, prompts: Sequence[I32], mode: str, temperature: float, rounds: int) -> list[tuple[int, F64]]:
    """Return (rank, [1, deviation of the draft, logit of the measured acceptance, 1 if right]) of the guesses tried."""
    acceptance, policies = RankAcceptance(LIMITS.depth), list[_Observing]()

    def observing(rng: np.random.Generator | None) -> _Observing:
        policies.append(_Observing(rng))
        return policies[-1]

    config = replace(SamplingConfig(), temperature=temperature)
    result = []
    texts = write(pair, prompts, MODES[mode], observing, config, lambda: acceptance.table)
    for one in islice(texts, rounds):
        path, table = one.outcome.path.tolist(), acceptance.table
        for depth, node in enumerate(path):
            siblings = np.flatnonzero(one.tree.parents == node).tolist()
            for rank, value in enumerate(policies[-1].deviations.get(node, [])[: len(siblings)]):
                right = depth + 1 < len(path) and path[depth + 1] == siblings[rank]
                result.append((rank, np.array([1, value, logit(float(table[depth, rank])), right])))
                if right:
                    break
        acceptance.observe(one.tree, one.outcome)
    return result


def fit(rows: F64) -> F64:
    """Return bias and draft weight [2] with the largest likelihood of rows [n, 4] as ``collect`` returns them."""
    x, offset, y = rows[:, :2], rows[:, 2], rows[:, 3]
    weights = np.zeros(2)
    for _ in range(_NEWTON):
        chance = 1 / (1 + np.exp(-offset - x @ weights))
        slope = x.T @ (y - chance) - _RIDGE * weights
        curvature = (x * (chance * (1 - chance))[:, None]).T @ x + _RIDGE * np.eye(2)
        weights += np.linalg.solve(curvature, slope)
    return weights


def loss(rows: F64, weights: F64) -> float:
    """Return the mean negative log-likelihood of rows [n, 4], in nats."""
    chance = 1 / (1 + np.exp(-rows[:, 2] - rows[:, :2] @ weights))
    return float(-np.log(np.where(rows[:, 3] > 0, chance, 1 - chance)).mean())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, metavar="N", help="rounds of each mode and temperature")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pair = Pair(columns=0)
    prompts = held_out_prompts(pair.bundle)
    third = len(prompts) // 3
    data: dict[str, list[dict[str, object]]] = {}
    for mode in MODES:
        parts = [
            [one for t in TEMPERATURES[mode == "drawn" :] for one in collect(pair, part, mode, t, rounds)]
            for part, rounds in ((prompts[third:], options.rounds), (prompts[:third], options.rounds // 2))
        ]
        for rank in range(2 if mode == "chosen" else 1):
            train, test = (np.array([row for at, row in part if min(at, 1) == rank]) for part in parts)
            began = time.perf_counter()
            weights = fit(train)
            data.setdefault(mode, []).append(
                {
                    "rank": "0" if rank == 0 else "1 and more",
                    "bias": float(weights[0]),
                    "draft": float(weights[1]),
                    "mean": float(train[:, 1].mean()) + (DRAWN if mode == "drawn" else CHOSEN)[rank].mean,
                    "fit_seconds": time.perf_counter() - began,
                    "guesses": len(train),
                    "loss": loss(test, weights),
                    "loss_measured_alone": loss(test, np.zeros(2)),
                }
            )
    if options.json:
        print(json.dumps(data))
        return
    for mode, ranks in data.items():
        for figures in ranks:
            print(f"{mode}: {figures}")


if __name__ == "__main__":
    main()
