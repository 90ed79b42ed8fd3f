"""What tree policies share: a tree that only grows, and the children of a node, handed out one at a time.

Nodes are only ever appended, so that a node keeps its number from one ``expand`` of a round to the next and to
``observe``: every tree that a drafter sees in a round begins with the one that it saw before. (``hardware`` may cut the
end off before the tree is used.) ``TokenTree.draft`` is complete when the tree is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.protocols import I32, Draft, Sparse, TokenTree

__all__ = ["Chosen", "Drawn", "Growth"]

_ONES = np.ones(256, np.float32)
_ONES.setflags(write=False)


class Chosen:
    """The likeliest tokens first; of equally likely ones the first in ``guess`` comes first.

    Parameters:
        guess: the draft's distribution.
        most: children that may be asked for; bounds the sorting.

    Members:
        hope: the probability of the next child, as the draft says; 0 if there is none.
        reach: the same. What a best-first expansion orders by.
        rest: the sum of the probabilities of all children that may still come.
    """

    __slots__ = ("_at", "_ids", "_probs", "hope", "reach")

    def __init__(self, guess: Sparse, most: int) -> None:
        ids, probs = guess.ids, guess.probs
        if len(ids) == 1:
            self._ids, self._probs = [ids.item()], [probs.item()]
        elif most == 1:
            at = int(probs.argmax())
            self._ids, self._probs = [ids.item(at)], [probs.item(at)]
        else:
            if len(ids) > 4 * most:  # a whole vocabulary: sort only what can be wanted
                enough = np.flatnonzero(probs >= np.partition(probs, -most)[-most])
                ids, probs = ids[enough], probs[enough]
            order = np.argsort(-probs, kind="stable")[:most]
            self._ids, self._probs = ids[order].tolist(), probs[order].tolist()
        self._at = 0
        self.hope = self.reach = self._probs[0] if self._probs[0] > 0 else 0.0

    @property
    def rest(self) -> float:
        return sum(self._probs[self._at :])

    def deal(self) -> tuple[int, float]:
        """The next child and its probability; only while ``hope`` is positive."""
        at = self._at
        self._at = after = at + 1
        self.hope = self.reach = max(0.0, self._probs[after]) if after < len(self._probs) else 0.0
        return self._ids[at], self._probs[at]


class Drawn:
    """Tokens drawn without replacement, each from what the ones before it left, renormalized.

    Drawn one at a time, so that whoever decides whether there is to be another child cannot know which it would be:
    without that the tree would not be a sample of ``guess``. Drawing all at once by Gumbel top-k (1903.06059) has the
    same distribution.

    Parameters:
        guess: the draft's distribution. Need not sum to 1; what is drawn from is its normalization.

    Members:
        hope: the expected probability of the next child, sum(left^2) / sum(left); 0 if there is none.
        reach, rest: the probability that is left: how likely the draft thinks it that all siblings so far are wrong.

    Raises:
        EdgedecError: a probability is negative or not a number.
    """

    __slots__ = ("_count", "_ids", "_left", "_rng", "reach")

    def __init__(self, guess: Sparse, rng: np.random.Generator) -> None:
        self._ids, self._rng = guess.ids, rng
        self._left = guess.probs.astype(np.float64)
        total = float(self._left.sum())
        if not total < math.inf or self._left.min() < 0:
            raise EdgedecError(
                f"the draft's {len(guess.ids)} probabilities are not a distribution (they sum to {total}): "
                "the drafter computed nonsense; try another --spec-type"
            )
        self._count = int(np.count_nonzero(self._left))
        self.reach = min(1.0, total)

    @property
    def rest(self) -> float:
        return self.reach

    @property
    def hope(self) -> float:
        left = self._left
        return float(left @ left / left.sum()) if self._count else 0.0

    def deal(self) -> tuple[int, float]:
        """The next child and its probability; only while ``hope`` is positive."""
        left = self._left
        sums = left.cumsum()
        at = min(int(sums.searchsorted(self._rng.random() * sums[-1], side="right")), len(left) - 1)
        while left[at] == 0:  # the product above was rounded up to the whole sum
            at -= 1
        prob = float(left[at])
        left[at] = 0
        self._count -= 1
        self.reach = max(0.0, self.reach - prob) if self._count else 0.0
        return self._ids.item(at), prob


class Growth:
    """A tree in growth.

    Parameters:
        draft: is asked for the distributions.
        text: ids so far, int32 [n], n >= 1; the last one is node 0.
        nodes: the tree may have so many.
        rng: draws the children; None: they are the likeliest ones.
        children: a node may have so many; None: as many as fit.

    Members:
        deals: the children-to-come of each node that was expanded and has guesses.
        expanded: nodes whose distribution is known, those without a guess as well.
        parents, depths: of the nodes so far.
        calls: how often the draft was asked.
    """

    def __init__(
        self, draft: Draft, text: I32, nodes: int, rng: np.random.Generator | None, children: int | None = None
    ) -> None:
        self._draft, self._text, self._rng, self._children = draft, text, rng, nodes if children is None else children
        self._tokens, self._parents = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
        self._tokens[0], self._parents[0] = text[-1], -1
        self._sources: dict[int, Sparse] = {}  # what the children of a node are drawn from, if they are
        self.parents, self.depths = [-1], [0]
        self.deals: dict[int, Chosen | Drawn] = {}
        self.expanded: set[int] = set()
        self.calls = 0

    def __len__(self) -> int:
        return len(self.parents)

    def expand(self, nodes: Sequence[int]) -> None:
        """Ask the draft, once, for the distributions after these nodes."""
        count = len(self.parents)
        tree = TokenTree(tokens=self._tokens[:count], parents=self._parents[:count], draft=self._sources)
        self.calls += 1
        for node, guess in zip(nodes, self._draft.expand(self._text, tree, np.array(nodes, np.int32)), strict=True):
            self.expanded.add(node)
            ids = len(guess.ids)
            if not ids:
                continue
            if self._rng is None or ids == 1:  # one token is certain, drawn or not
                deal: Chosen | Drawn = Chosen(guess, min(self._children, len(self._tokens) - count))
            else:
                deal = Drawn(guess, self._rng)
                self._sources[node] = guess
            if deal.reach > 0:
                self.deals[node] = deal

    def add(self, node: int) -> float | None:
        """Give ``node`` its next child, the new last node. Returns the child's draft probability, None if there is none."""
        deal = self.deals.get(node)
        if deal is None:
            return None
        token, prob = deal.deal()
        if not deal.reach:
            del self.deals[node]
        at = len(self.parents)
        self._tokens[at], self._parents[at] = token, node
        self.parents.append(node)
        self.depths.append(self.depths[node] + 1)
        return prob

    def cut(self, nodes: int) -> None:
        """Drop the last nodes, so that ``nodes`` are left. Only for chosen children: it would bias drawn ones."""
        del self.parents[nodes:], self.depths[nodes:]

    def tree(self) -> TokenTree:
        """The tree, with what each node's children were drawn from, or that they were chosen."""
        count, tokens, sources = len(self.parents), self._tokens, self._sources
        children: dict[int, list[int]] = {}
        for node in range(1, count):
            children.setdefault(self.parents[node], []).append(node)
        draft = {}
        for node, below in children.items():
            source = sources.get(node)
            if source is None:
                ids = tokens[below[0] : below[0] + 1] if len(below) == 1 else tokens[below]
                ones = _ONES[: len(below)] if len(below) <= len(_ONES) else np.ones(len(below), np.float32)
                source = Sparse(ids=ids, probs=ones)
            draft[node] = source
        return TokenTree(tokens=tokens[:count], parents=self._parents[:count], draft=draft)
