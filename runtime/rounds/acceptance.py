"""The acceptance of guesses, measured by depth and rank.

The likeliest guess at a place has rank 0, its sibling rank 1, and so on. Further guesses are right much less often than the
first one: with an earlier embedded pair, the first was right in 62 % of its trials, and the second, third and fourth in 25,
16 and 14 % of those in which all before them were wrong. A tree that treats them as equal is too wide.
"""

from __future__ import annotations

import numpy as np

from edgedec.runtime.protocols import F32, Outcome, TokenTree

__all__ = ["RANKS", "RankAcceptance"]

RANKS = 8  # columns of the table; the last one holds all further ranks together

# Assumed acceptance by rank before any observation. That of the first guess is low, because many wrong guesses cost more
# than a missing one; the others were measured on an earlier embedded pair.
_PRIOR = (0.6, 0.26, 0.17, 0.14, 0.11, 0.09, 0.08, 0.07)
# Number of trials that the value of the depth above, or the prior, counts as, by rank. First guesses follow changes of the
# text. The others depend little on depth, are tried less often, and would no longer be tried after a few failures.
_WEIGHT = np.array([2.0] + (RANKS - 1) * [10.0])
_MEMORY = 16  # number of trials of first guesses that an average covers
_LONG_MEMORY = 256  # number of rounds that the averages of the other ranks cover, so that a low one is forgotten, too


class RankAcceptance:
    """The measured acceptance by depth and rank.

    Parameters:
        depth: maximum depth of a path.

    Members:
        table: float32 [depth, RANKS]. table[d, r] is the share of accepted paths of d guesses that the sibling of rank r
            extended, among those where the siblings before it were wrong. A place without trials has the value of the depth
            above, and few trials are averaged with that value.
    """

    def __init__(self, depth: int) -> None:
        self._start = np.array(_PRIOR)
        self._hits, self._tries = np.zeros((depth, RANKS)), np.zeros((depth, RANKS))
        self._deepest = 0  # number of depths that were tried
        self.table: F32 = np.tile(self._start, (depth, 1)).astype(np.float32)

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Learn which siblings along the accepted path were right."""
        path, depths = outcome.path.tolist(), len(self.table)
        self._hits[:, 1:] *= 1 - 1 / _LONG_MEMORY
        self._tries[:, 1:] *= 1 - 1 / _LONG_MEMORY
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents.tolist()):
            children.setdefault(parent, []).append(node)
        for depth, node in enumerate(path[:depths]):
            siblings = children.get(node)
            if not siblings:
                break  # the end of the tree is not a wrong guess
            right = siblings.index(path[depth + 1]) if depth + 1 < len(path) else len(siblings)
            for rank in range(min(right + 1, len(siblings))):
                self._count(depth, min(rank, RANKS - 1), rank == right)
            self._deepest = max(self._deepest, depth + 1)
        self._average()

    def doubt(self) -> None:
        """Forget the trials of first guesses and expect at least their prior, because the text may have changed.

        The estimate would otherwise stay low where no guess is made any more because of it.
        """
        if len(self.table):
            self._start[0] = max(float(self.table[0, 0]), _PRIOR[0])
        self._hits[:, 0] = self._tries[:, 0] = 0
        self._average()

    def _count(self, depth: int, rank: int, right: bool) -> None:
        fade = 1.0 if rank else 1 - 1 / _MEMORY
        self._hits[depth, rank] = fade * self._hits[depth, rank] + right
        self._tries[depth, rank] = fade * self._tries[depth, rank] + 1

    def _average(self) -> None:
        above = self._start
        for depth in range(self._deepest):
            above = (self._hits[depth] + _WEIGHT * above) / (self._tries[depth] + _WEIGHT)
            self.table[depth] = above
        self.table[self._deepest :] = above
