"""What several text drafters guess, in one distribution: a tree then holds the best guesses of each.

Where a pass of eight rows costs what a pass of one does, the nodes that a single certain guess leaves empty are given away.
Each source counts as much as another: weighing them by their own shares of right guesses accepted no more.
Source: derived here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgedec.runtime.drafters import copy, ngram, stand, trigram
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES
from edgedec.runtime.protocols import F32, I32, Bytes, Draft, Drafter, Limits, Outcome, Sparse, TargetInfo, TokenTree

__all__ = ["create"]

_MOST = 8  # guesses after a node


class _BlendDraft:
    """The mean of the sources' distributions, of those that have a guess, cut to its likeliest tokens."""

    def __init__(self, sources: Sequence[Draft]) -> None:
        self._sources = sources

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        """The distribution after each node; it sums to 1, or is empty where no source has a guess."""
        found = [source.expand(text, tree, nodes) for source in self._sources]
        return [_blended(guesses) for guesses in zip(*found, strict=True)]

    def riders(self, tree: TokenTree) -> tuple[I32, F32] | None:
        return None

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        for source in self._sources:
            source.observe(tree, outcome)


def _blended(guesses: Sequence[Sparse]) -> Sparse:
    given = [guess for guess in guesses if len(guess.ids)]
    if len(given) < 2:
        return given[0] if given else NOTHING
    weights: dict[int, float] = {}
    for guess in given:
        for token, prob in zip(guess.ids.tolist(), guess.probs.tolist(), strict=True):
            weights[token] = weights.get(token, 0.0) + prob
    best = sorted(weights, key=lambda token: -weights[token])[:_MOST]  # of equal ones the earlier source's
    probs = np.array([weights[token] for token in best], np.float32)
    return Sparse(ids=np.array(best, np.int32), probs=probs / probs.sum())


class _BlendDrafter:
    def __init__(self, drafters: Mapping[str, Drafter]) -> None:
        self._drafters = dict(drafters)
        self.taps = tuple(dict.fromkeys(tap for drafter in drafters.values() for tap in drafter.taps))

    def footprint(self, limits: Limits) -> Bytes:
        """Every source's, and the blending's own objects."""
        total = {"draft_objects": limits.batch * OBJECT_BYTES}
        for drafter in self._drafters.values():
            for name, size in drafter.footprint(limits).items():
                total[name] = total.get(name, 0) + size
        return total

    def open(self, target: TargetInfo, limits: Limits) -> _BlendDraft:
        """Raises:
        UnsupportedError: as ``stand``.
        """
        return _BlendDraft([drafter.open(target, limits) for drafter in self._drafters.values()])


def create() -> _BlendDrafter:
    """Plug-in entry."""
    return _BlendDrafter(
        {"copy": copy.create(), "ngram": ngram.create(), "stand": stand.create(), "trigram": trigram.create()}
    )
