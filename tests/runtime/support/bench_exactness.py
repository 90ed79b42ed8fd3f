"""Make runs whose speculation is forced and counted, in few combinations of their settings that contain every pair."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from edgedec.runtime.protocols import Limits, Outcome, TokenTree, TreePolicy, Verifier
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.sampling.position_random import PositionRandom

__all__ = ["Counting", "FreeNodes", "Insistent", "covering_array"]


def _pairs(row: Sequence[Hashable]) -> set[tuple[Any, ...]]:
    """Return the values that occur together in a row, with their places."""
    return {(i, a, j, b) for (i, a), (j, b) in combinations(enumerate(row), 2)}


def covering_array(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return few rows in which every two values of different factors occur together at least once."""
    every = [(row, _pairs(row)) for row in product(*factors)]
    missing, rows = set[Any]().union(*(covered for _, covered in every)), []
    while missing:
        row, covered = max(every, key=lambda candidate: len(candidate[1] & missing))
        rows.append(row)
        missing -= covered
    return rows


class Insistent(Adaptive):
    """Speculate in every round, in one size after the other."""

    rounds = 0

    def size(self, policy: TreePolicy, limits: Limits, past: int) -> Limits:
        self.rounds += 1
        if not limits.depth or not policy.sizes(limits, self.accept):
            return limits
        return replace(limits, depth=1 + self.rounds * 5 % limits.depth)

    def _judge(self) -> None:
        self.on = True


class FreeNodes(ObservedCost):
    """Tell a tree that sizes itself that nodes cost almost nothing."""

    def seconds(self, nodes: int, past: int) -> float:
        return 1 + nodes / 1000


@dataclass
class Counting:
    """Count what a verifier accepts; ``moved`` counts accepted paths whose rows must be moved."""

    inner: Verifier
    drafted: int = 0
    accepted: int = 0
    moved: int = 0

    def accept(self, tree: TokenTree, target: Any, random: PositionRandom, position: int) -> Outcome:
        outcome = self.inner.accept(tree, target, random, position)
        self.drafted += len(tree.tokens) - 1
        self.accepted += len(outcome.path) - 1
        self.moved += int(outcome.path[-1]) != len(outcome.path) - 1
        return outcome
