"""Stochastic n-grams: guess the tokens that the target itself found likely after the same last tokens.

Source: STAND, 2506.04708: contexts of 4 to 1 tokens, a running average of ten probabilities for each, and the longest known
context decides. In this project the tree policy draws the children, for which the paper uses Gumbel-top-k.
"""

from __future__ import annotations

import numpy as np

from edgedec.errors import UnsupportedError
from edgedec.runtime.drafters._table import ContextTable
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES, Confirmed, TextDraft
from edgedec.runtime.loop.drafts import compiled_draft
from edgedec.runtime.protocols import F32, I32, Bytes, CostModel, Draft, Limits, Outcome, Sparse, TargetInfo, TokenTree
from edgedec.runtime.sampling.target_top import TOP_IDS, TOP_K, TOP_PROBS, TOP_TAPS

__all__ = ["LONGEST", "create"]

LONGEST = 4  # maximum number of tokens of a context
ENTRIES = 1 << 14  # maximum number of contexts
TEXTS = 4  # full texts whose contexts are remembered, so that a text learns from several before it


class _Stand(TextDraft):
    """A draft that guesses the ten likeliest tokens of the average distribution after the longest known context.

    It learns from outcomes only: from the target's probabilities at the nodes of an accepted path if the outcome has them
    (``target_top.py``), or else from the accepted tokens, with probability 1 each. It does not learn from the
    prompt. It keeps the averages when the text is replaced, so that a draft that stays open improves from answer to answer.
    """

    def __init__(self, target: TargetInfo, limits: Limits) -> None:
        super().__init__(target, limits)
        self._table = ContextTable(_entries(limits), TOP_K)
        self._confirmed = Confirmed(window=LONGEST, slack=limits.depth + 1)

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        history = self._confirmed.advance(tree, outcome)
        root = len(history) - len(outcome.path) - 1
        for end, (ids, probs) in enumerate(self._distributions(history[root + 1 :], outcome), start=root + 1):
            for size in range(1, min(LONGEST, end) + 1 if len(ids) else 0):
                self._learn(tuple(history[end - size : end]), ids, probs)

    def _distributions(self, new: list[int], outcome: Outcome) -> list[tuple[I32, F32]]:
        """Return the ids and probabilities of the target's likeliest tokens after each node of the path.

        ``new`` holds the tokens that followed the nodes.
        """
        if TOP_IDS in outcome.taps:
            all_ids, all_probs = outcome.taps[TOP_IDS].astype(np.int32), outcome.taps[TOP_PROBS]
        else:
            all_ids, all_probs = np.array(new, np.int32)[:, None], np.ones((len(new), 1), np.float32)
        keep = (all_probs > 0) & (all_ids >= 0) & (all_ids < self.vocab)
        return [(ids[kept], probs[kept]) for ids, probs, kept in zip(all_ids, all_probs, keep, strict=True)]

    def _learn(self, context: tuple[int, ...], ids: I32, probs: F32) -> None:
        """Add a distribution to the average after ``context`` and keep its ten likeliest tokens."""
        table = self._table
        row = table.claim(context)
        count = int(table.counts[row])
        if not count:
            table.ids[row, : len(ids)], table.values[row, : len(ids)] = ids, probs
        else:
            mean = dict(zip(table.ids[row].tolist(), (table.values[row] * (count / (count + 1))).tolist(), strict=True))
            for token, prob in zip(ids.tolist(), (probs / (count + 1)).tolist(), strict=True):
                mean[token] = mean.get(token, 0.0) + prob
            mean.pop(-1, None)
            best = sorted(mean, key=lambda token: (-mean[token], token))[:TOP_K]
            table.ids[row, : len(best)] = best
            table.values[row, : len(best)] = [mean[token] for token in best]
        table.counts[row] = count + 1

    def _meet(self, text: I32) -> None:
        self._confirmed.meet(text)
        self._tail = text[-LONGEST:].tolist()

    def _after(self, text: I32, path: list[int]) -> Sparse:
        context = [*self._tail, *path][-LONGEST:]
        for begin in range(len(context)):
            row = self._table.find(tuple(context[begin:]))
            if row >= 0:
                values = self._table.values[row]
                used = int(np.count_nonzero(values))
                # Added from the first to the last, because the order in which ``sum`` adds depends on the processor.
                total = np.add.accumulate(values[:used])[-1]
                return Sparse(ids=self._table.ids[row, :used].copy(), probs=values[:used] / total)
        return NOTHING


def _entries(limits: Limits) -> int:
    """Return the number of contexts that ``TEXTS`` texts of ``limits.positions`` tokens have, at most ``ENTRIES``."""
    return min(TEXTS * LONGEST * limits.positions, ENTRIES)


class _StandDrafter:
    taps: tuple[str, ...] = TOP_TAPS

    def footprint(self, limits: Limits) -> Bytes:
        return {
            "draft_table": ContextTable.table_bytes(_entries(limits), TOP_K),
            "draft_objects": OBJECT_BYTES,
        }

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> Draft:
        """Return the draft.

        Raises:
            UnsupportedError: the vocabulary is too large for ids in float32 taps.
        """
        if target.vocab > 1 << 24:
            raise UnsupportedError(
                f"the drafter 'stand' supports vocabularies of up to {1 << 24} tokens, and the model has {target.vocab}; "
                "try --spec-type ngram"
            )
        return compiled_draft("stand", target, limits, _entries(limits)) or _Stand(target, limits)


def create() -> _StandDrafter:
    """Return the drafter (entry point of the plug-in)."""
    return _StandDrafter()
