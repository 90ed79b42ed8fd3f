"""Adaptive trigrams: guess the tokens that followed the last two tokens before, as far as a tree search would visit them.

Source: ADED, 2407.12021: the table, its adaptation, and a tree search of 150 visits. The closed form of the search is
derived here.
"""

from __future__ import annotations

import numpy as np

from edgedec.runtime.drafters._table import ContextTable
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES, Confirmed, TextDraft
from edgedec.runtime.loop.drafts import compiled_draft
from edgedec.runtime.protocols import I32, Bytes, CostModel, Draft, Limits, Outcome, Sparse, TargetInfo, TokenTree

__all__ = ["CAP", "RECENT", "STEP", "SUCCESSORS", "create"]

STEP, CAP = 0.04, 3.0  # increase of a trigram's weight at each occurrence, and the maximum weight
RECENT = 16  # tokens at the end of the text whose trigrams are counted again in each round
SUCCESSORS = 12  # maximum number of successors of a pair of tokens
ENTRIES = 1 << 14  # maximum number of pairs
VISITS = 150  # visits of the search
_CHUNK = 256  # tokens that are learned at a time
_SHARES_BYTES = 1 << 11  # bytes of the shares of a pair


class _Trigram(TextDraft):
    """A draft that guesses the successors of the last two tokens in proportion to the weights of their trigrams.

    It learns from the text: every trigram of a prompt is counted once, and the trigrams among the last ``RECENT`` tokens
    once per round. It keeps the weights when the text is replaced.

    In the paper a Monte-Carlo tree search decides which drafts make up the tree. Here the tree policy does, and only the
    extent of the search remains: ``VISITS`` visits start at the root and are divided at each node in proportion to the
    weights, and a successor that receives less than one visit is not guessed. (Giving more visits to successors that lead
    to long runs, as the values of a search do, did not draft better.)
    """

    def __init__(self, target: TargetInfo, limits: Limits) -> None:
        super().__init__(target, limits)
        self._table = ContextTable(_entries(limits), SUCCESSORS)
        self._confirmed = Confirmed(window=RECENT, slack=limits.depth + 1)
        self._round: dict[tuple[int, int], dict[int, float]] = {}  # shares computed since the last call of ``_count``

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        history = self._confirmed.advance(tree, outcome)
        self._count(history[-max(RECENT, len(outcome.path) + 2) :])

    def _meet(self, text: I32) -> None:
        fresh = self._confirmed.meet(text)
        for begin in range(len(text) - fresh, len(text), _CHUNK):
            self._count(text[max(0, begin - 2) : begin + _CHUNK].tolist())

    def _after(self, text: I32, path: list[int]) -> Sparse:
        tokens = [*text[-2:].tolist(), *path]
        if len(text) < 2:
            return NOTHING
        visits = float(VISITS)
        for first, second, token in zip(tokens, tokens[1:], path, strict=False):
            visits *= self._shares((first, second)).get(token, 0.0)
        successors = [
            (token, share) for token, share in self._shares((tokens[-2], tokens[-1])).items() if visits * share >= 1
        ]
        if not successors:
            return NOTHING
        ids, shares = zip(*successors, strict=True)
        probs = np.array(shares, np.float32)
        return Sparse(ids=np.array(ids, np.int32), probs=probs / np.add.accumulate(probs)[-1])

    def _count(self, tokens: list[int]) -> None:
        """Increase the weight of each trigram of ``tokens``."""
        self._round.clear()
        table = self._table
        for first, second, token in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if not 0 <= token < self.vocab:
                continue
            row = table.claim((first, second))
            ids, values = table.ids[row].tolist(), table.values[row].tolist()
            if token in ids:
                at = ids.index(token)
            else:  # take an unused place, whose weight is 0, or replace the successor of the smallest weight
                at = values.index(min(values))
                table.ids[row, at], values[at] = token, 0.0
            table.values[row, at] = min(values[at] + STEP, CAP)

    def _shares(self, pair: tuple[int, int]) -> dict[int, float]:
        """Return the successors' shares of the total weight, in descending order; ties are in the order of the table."""
        shares = self._round.get(pair)
        if shares is None:
            shares, row = {}, self._table.find(pair)
            if row >= 0:
                values = self._table.values[row].tolist()
                total = sum(values)
                weights = zip(self._table.ids[row].tolist(), values, strict=True)
                shares = {token: value / total for token, value in sorted(weights, key=lambda item: -item[1]) if value}
            if len(self._round) < self.limits.nodes:
                self._round[pair] = shares
        return shares


def _entries(limits: Limits) -> int:
    """Return the number of pairs to store: twice ``limits.positions``, at most ``ENTRIES``."""
    return min(2 * limits.positions, ENTRIES)


class _TrigramDrafter:
    taps: tuple[str, ...] = ()

    def footprint(self, limits: Limits) -> Bytes:
        return {
            "draft_table": ContextTable.table_bytes(_entries(limits), SUCCESSORS),
            "draft_objects": (OBJECT_BYTES + limits.nodes * _SHARES_BYTES),
        }

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> Draft:
        return compiled_draft("trigram", target, limits, _entries(limits)) or _Trigram(target, limits)


def create() -> _TrigramDrafter:
    """Return the drafter (entry point of the plug-in)."""
    return _TrigramDrafter()
