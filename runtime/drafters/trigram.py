"""Adaptive trigrams, proposed as far as a tree search would go.

Source: ADED, 2407.12021: the table, what adapts it, a tree search of 150 visits. The search's closed form is derived here.
"""

from __future__ import annotations

import numpy as np

from edgedec.runtime.drafters._table import ContextTable
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES, Confirmed, TextDraft
from edgedec.runtime.protocols import I32, Bytes, CostModel, Limits, Outcome, Sparse, TargetInfo, TokenTree

__all__ = ["CAP", "RECENT", "STEP", "SUCCESSORS", "create"]

STEP, CAP = 0.04, 3.0  # what a sighting adds to a trigram's weight, and how far
RECENT = 16  # tokens at the end of the text whose trigrams are sighted again each round
SUCCESSORS = 12  # of a pair of tokens
ENTRIES = 1 << 14  # pairs at most
VISITS = 150  # of the search
_CHUNK = 256  # tokens that are learned at a time
_SHARES_BYTES = 1 << 11  # of a pair's shares


class _Trigram(TextDraft):
    """Tokens that followed the last two before, in proportion to the weight that their trigrams have gathered.

    The text teaches: every trigram of a prompt is sighted once, the trigrams among the last ``RECENT`` tokens once a
    round. What was learned stays when the text is replaced.

    The paper's Monte-Carlo tree search decides which drafts make up the tree. Here the tree policy does, and what is left
    of the search is where it goes: ``VISITS`` visits start at the root and divide at each node in proportion to the
    weights, computed instead of drawn, and a successor that less than one visit reaches is not proposed. (Giving more
    to successors that lead on to long runs, as a search's values do, was tried: it drafted no better.)
    """

    def __init__(self, target: TargetInfo, limits: Limits) -> None:
        super().__init__(target, limits)
        self._table = ContextTable(_entries(limits), SUCCESSORS)
        self._confirmed = Confirmed(window=RECENT, slack=limits.depth + 1)
        self._round: dict[tuple[int, int], dict[int, float]] = {}  # shares that were asked for since the last sighting

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        history = self._confirmed.advance(tree, outcome)
        self._sight(history[-max(RECENT, len(outcome.path) + 2) :])

    def _meet(self, text: I32) -> None:
        fresh = self._confirmed.meet(text)
        for begin in range(len(text) - fresh, len(text), _CHUNK):
            self._sight(text[max(0, begin - 2) : begin + _CHUNK].tolist())

    def _after(self, text: I32, path: list[int]) -> Sparse:
        tokens = [*text[-2:].tolist(), *path]
        if len(text) < 2:
            return NOTHING
        visits = float(VISITS)
        for first, second, token in zip(tokens, tokens[1:], path, strict=False):
            visits *= self._shares((first, second)).get(token, 0.0)
        found = [
            (token, share) for token, share in self._shares((tokens[-2], tokens[-1])).items() if visits * share >= 1
        ]
        if not found:
            return NOTHING
        ids, shares = zip(*found, strict=True)
        probs = np.array(shares, np.float32)
        return Sparse(ids=np.array(ids, np.int32), probs=probs / probs.sum())

    def _sight(self, tokens: list[int]) -> None:
        self._round.clear()
        table = self._table
        for first, second, token in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if not 0 <= token < self.vocab:
                continue
            row = table.claim((first, second))
            ids, values = table.ids[row].tolist(), table.values[row].tolist()
            if token in ids:
                at = ids.index(token)
            else:  # in an unused place, or in the lightest one's
                at = values.index(min(values))
                table.ids[row, at], values[at] = token, 0.0
            table.values[row, at] = min(values[at] + STEP, CAP)

    def _shares(self, pair: tuple[int, int]) -> dict[int, float]:
        """The successors' shares of the weight, the heaviest first, of equal ones the earliest learned."""
        known = self._round.get(pair)
        if known is None:
            known, row = {}, self._table.find(pair)
            if row >= 0:
                values = self._table.values[row].tolist()
                total = sum(values)
                seen = zip(self._table.ids[row].tolist(), values, strict=True)
                known = {token: value / total for token, value in sorted(seen, key=lambda item: -item[1]) if value}
            if len(self._round) < self.limits.nodes:
                self._round[pair] = known
        return known


def _entries(limits: Limits) -> int:
    """Twice as many pairs as a text of the whole context has."""
    return min(2 * limits.positions, ENTRIES)


class _TrigramDrafter:
    taps: tuple[str, ...] = ()

    def footprint(self, limits: Limits) -> Bytes:
        return {
            "draft_table": ContextTable.table_bytes(_entries(limits), SUCCESSORS),
            "draft_objects": (OBJECT_BYTES + limits.nodes * _SHARES_BYTES),
        }

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _Trigram:
        return _Trigram(target, limits)


def create() -> _TrigramDrafter:
    """Plug-in entry."""
    return _TrigramDrafter()
