"""Provide a known world: a text, a target that writes it, drafters that know it or do not, and a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgedec.runtime.protocols import (
    I32,
    Bytes,
    CostModel,
    Limits,
    Outcome,
    Pass,
    PassResult,
    Sparse,
    State,
    TargetInfo,
    TokenTree,
    TreePolicy,
)
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.targets._results import FinishedTicket

VOCAB = 61


class Clock:
    """Stand still until a caller advances it; use it as ``time`` in a module, or as a function."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += seconds


class Willing(Adaptive):
    """Speculate in every round, as deep as allowed, in the place of ``autoregressive.Adaptive``."""

    def size(self, policy: TreePolicy, limits: Limits, past: int) -> Limits:
        return limits if self.on else replace(limits, nodes=1, depth=0)

    def _judge(self) -> None:
        self.on = True


class ScriptedDraft:
    """Guess the token that ``guess(position)`` returns for a position; None makes no guess.

    It is its own drafter.

    Parameters:
        seconds: time by which each call advances ``clock``.
    """

    taps: tuple[str, ...] = ()

    def __init__(
        self,
        guess: Callable[[int], int | None],
        *,
        clock: Clock | None = None,
        seconds: float = 0.0,
        bytes: Mapping[str, int] | None = None,
    ) -> None:
        self.guess, self.clock, self.seconds = guess, clock or Clock(), seconds
        self.outcomes: list[Outcome] = []
        self.asked: list[int] = []  # length of the text at each call
        self._bytes = bytes or {}

    def footprint(self, limits: Limits) -> Bytes:
        return self._bytes

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> ScriptedDraft:
        return self

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        self.asked.append(len(text))
        self.clock.go(self.seconds)
        rows = []
        for node in nodes.tolist():
            token = self.guess(len(text) + _depth(tree, node))
            ids = np.array([] if token is None else [token], np.int32)
            rows.append(Sparse(ids=ids, probs=np.ones(len(ids), np.float32)))
        return rows

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def _depth(tree: TokenTree, node: int) -> int:
    depth = 0
    while node:
        node, depth = int(tree.parents[node]), depth + 1
    return depth


class _State:
    commit_seconds: float | None = None

    def __init__(self) -> None:
        self.length = 0

    def commit(self, nodes: I32) -> None:
        self.length += len(nodes)

    def truncate(self, length: int) -> int:
        self.length = length
        return length

    def reach(self, length: int) -> int:
        return min(length, self.length)

    def fork(self) -> State:
        raise NotImplementedError

    def close(self) -> None:
        return None


class ScriptedTarget:
    """Return ``text[p + 1]`` after position p for any input.

    Parameters:
        seconds: time of a pass by its number of rows, by which ``clock`` advances.
    """

    cost_model: CostModel | None = None
    free_rows: int | None = None

    def __init__(self, text: Sequence[int], clock: Clock, seconds: Callable[[int], float]) -> None:
        self.text, self.clock, self.seconds = text, clock, seconds
        self.info = TargetInfo(
            vocab=VOCAB,
            tokenizer_hash="0" * 64,
            positions=len(text),
            taps=(),
            masks="any",
            batch_invariant=True,
        )

    def footprint(self, limits: Limits) -> Bytes:
        return {}

    def open(self, limits: Limits) -> State:
        return _State()

    def submit(self, work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
        results = []
        for _, item in work:
            seconds = self.seconds(len(item.ids))
            self.clock.go(seconds)
            rows = item.positions[-1:] if item.logits is None else item.positions[item.logits]
            logits = np.zeros((len(rows), VOCAB), np.float32)
            for row, position in zip(logits, rows.tolist(), strict=True):
                row[self.text[position + 1]] = 1
            results.append(PassResult(logits=logits, top=None, taps={}, seconds=seconds))
        return FinishedTicket(results)
