"""Common parts of tree policies: a tree that grows, and the candidates for children of a node.

Nodes are only appended, so that a node keeps its number within a round: each tree that a drafter gets in ``expand`` and
``observe`` begins with the one before it. (``hardware`` may remove the last nodes before the tree is used.)
``TokenTree.draft`` is complete once the tree is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.drafting import expanding
from edgedec.runtime.protocols import I32, Draft, Drafting, Sparse, TokenTree

__all__ = ["ChosenChildren", "DrawnChildren", "Growth"]

_ONES = np.ones(256, np.float32)
_ONES.setflags(write=False)


def _draws_independently(rng: np.random.Generator | None) -> bool:
    if rng is None:  # the usual case, which does without NumPy's generators
        return False
    from edgedec.runtime.trees._independent import Independent

    return isinstance(rng, Independent)


class ChosenChildren:
    """Candidates in descending order of their draft probability; ties are in the order of ``guess``.

    Parameters:
        guess: the draft's distribution.
        most: maximum number of children that will be taken; it bounds the sorting.

    Members:
        expected: the draft's probability of the next child; 0 if there is none.
        reach: the same value; best-first growth orders by it.
        rest: sum of the probabilities of the remaining candidates.
    """

    __slots__ = ("_at", "_ids", "_probs", "expected", "reach")

    def __init__(self, guess: Sparse, most: int) -> None:
        ids, probs = guess.ids, guess.probs
        if len(ids) == 1:
            self._ids, self._probs = [ids.item()], [probs.item()]
        elif most == 1:
            at = int(probs.argmax())
            self._ids, self._probs = [ids.item(at)], [probs.item(at)]
        else:
            if len(ids) > 4 * most:  # a whole vocabulary: sort only the candidates that can be taken
                enough = np.flatnonzero(probs >= np.partition(probs, -most)[-most])
                ids, probs = ids[enough], probs[enough]
            order = np.argsort(-probs, kind="stable")[:most]
            self._ids, self._probs = ids[order].tolist(), probs[order].tolist()
        self._at = 0
        self.expected = self.reach = self._probs[0] if self._probs[0] > 0 else 0.0

    @property
    def rest(self) -> float:
        """Sum of the probabilities of the remaining candidates."""
        return reduce(add, self._probs[self._at :], 0.0)

    def outlook(self, count: int) -> list[float]:
        """Return the draft's probability of each of the next ``count`` children, if those before it are wrong."""
        left, result = 1.0, []
        for prob in self._probs[self._at : self._at + count]:
            result.append(min(1.0, prob / left) if left > 0 else 0.0)
            left -= prob
        return result

    def take(self) -> tuple[int, float]:
        """Remove the next child and return its token and probability. ``expected`` must be positive."""
        at = self._at
        self._at = after = at + 1
        self.expected = self.reach = max(0.0, self._probs[after]) if after < len(self._probs) else 0.0
        return self._ids[at], self._probs[at]


class DrawnChildren:
    """Candidates drawn without replacement: each from the distribution without the ones before it, renormalized.

    A generator of the class ``Independent`` draws them with replacement, and there is always another one.

    They are drawn one at a time, so that the decision whether a node gets another child cannot depend on that child's
    token; otherwise the children would not be a sample of ``guess``. Drawing all of them at once by Gumbel top-k
    (1903.06059) has the same distribution.

    Parameters:
        guess: the draft's distribution. It is normalized, so its probabilities need not sum to 1.

    Members:
        expected: the expected probability of the next child, sum(left^2) / sum(left); 0 if there is none.
        reach, rest: the probability that is left, which is the draft's probability that no sibling so far is right.

    Raises:
        EdgedecError: a probability is negative or not a number.
    """

    __slots__ = ("_count", "_ids", "_independent", "_left", "_rng", "reach")

    def __init__(self, guess: Sparse, rng: np.random.Generator) -> None:
        self._independent = _draws_independently(rng)
        self._ids, self._rng = guess.ids, rng
        self._left = guess.probs.astype(np.float64)
        total = float(self._left.sum())
        if not total < math.inf or self._left.min() < 0:
            raise EdgedecError(
                f"the draft's {len(guess.ids)} probabilities are not a distribution (they sum to {total}): "
                "the drafter is faulty; try another --spec-type"
            )
        self._count = int(np.count_nonzero(self._left))
        self.reach = min(1.0, total)

    @property
    def rest(self) -> float:
        """The probability that is left."""
        return self.reach

    @property
    def expected(self) -> float:
        """The expected probability of the next child; 0 if there is none."""
        left = self._left
        return float(left @ left / left.sum()) if self._count else 0.0

    def outlook(self, count: int) -> list[float]:
        """Return the expected probability of the next child. Those of further children depend on it."""
        return [self.expected / self.reach] if self._count and count else []

    def take(self) -> tuple[int, float]:
        """Draw the next child and return its token and probability. ``expected`` must be positive."""
        left = self._left
        sums = left.cumsum()
        at = min(int(sums.searchsorted(self._rng.random() * sums[-1], side="right")), len(left) - 1)
        while left[at] == 0:  # the product above was rounded up to the sum, and the last entries are 0
            at -= 1
        prob = float(left[at])
        if self._independent:
            return self._ids.item(at), prob
        left[at] = 0
        self._count -= 1
        self.reach = max(0.0, self.reach - prob) if self._count else 0.0
        return self._ids.item(at), prob


class Growth:
    """A tree that grows node by node.

    Parameters:
        draft: returns the distributions.
        text: ids so far, int32 [n], n >= 1; the last one is node 0.
        nodes: maximum number of nodes.
        rng: generator that draws the children, without replacement unless it is ``Independent``; None chooses the
            likeliest tokens.
        children: maximum number of children of a node; None: no limit.

    Members:
        pending: the remaining candidates of each expanded node that has any.
        expanded: nodes whose distribution is known, including those without a guess.
        parents, depths: parent and depth of each node.
        calls: number of calls of the draft.
    """

    def __init__(
        self, draft: Draft, text: I32, nodes: int, rng: np.random.Generator | None, children: int | None = None
    ) -> None:
        self._draft, self._text, self._rng, self._children = draft, text, rng, nodes if children is None else children
        self._tokens, self._parents = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
        self._tokens[0], self._parents[0] = text[-1], -1
        self._sources: dict[int, Sparse] = {}  # node -> the distribution that its children are drawn from
        self.parents, self.depths = [-1], [0]
        self.pending: dict[int, ChosenChildren | DrawnChildren] = {}
        self.expanded: set[int] = set()
        self.calls = 0

    def __len__(self) -> int:
        return len(self.parents)

    def expand(self, nodes: Sequence[int]) -> Drafting[None]:
        """Call the draft once for the distributions after these nodes."""
        count = len(self.parents)
        tree = TokenTree(tokens=self._tokens[:count], parents=self._parents[:count], draft=self._sources)
        self.calls += 1
        guesses = yield from expanding(self._draft, self._text, tree, np.array(nodes, np.int32))
        for node, guess in zip(nodes, guesses, strict=True):
            self.expanded.add(node)
            ids = len(guess.ids)
            if not ids:
                continue
            if self._rng is None or ids == 1:  # a single token is the same whether drawn or chosen
                children: ChosenChildren | DrawnChildren = ChosenChildren(
                    guess, min(self._children, len(self._tokens) - count)
                )
            else:
                children = DrawnChildren(guess, self._rng)
                self._sources[node] = guess
            if children.reach > 0:
                self.pending[node] = children

    def add(self, node: int) -> float | None:
        """Append the next child of ``node`` and return the draft's probability of it; None if there is no candidate."""
        children = self.pending.get(node)
        if children is None:
            return None
        token, prob = children.take()
        if not children.reach:
            del self.pending[node]
        at = len(self.parents)
        self._tokens[at], self._parents[at] = token, node
        self.parents.append(node)
        self.depths.append(self.depths[node] + 1)
        return prob

    def cut(self, nodes: int) -> None:
        """Keep the first ``nodes`` nodes. This is for chosen children only, because it would bias drawn ones."""
        del self.parents[nodes:], self.depths[nodes:]

    def tree(self) -> TokenTree:
        """Return the tree, with the distribution that each node's children were drawn from, or ones for chosen children."""
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
        return TokenTree(
            tokens=tokens[:count],
            parents=self._parents[:count],
            draft=draft,
            with_replacement=_draws_independently(self._rng),
        )
