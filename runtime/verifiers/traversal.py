"""Traversal verification: try the paths of a tree from the leaves to the root.

A node v has a chance p, that of the path to it; the root has the chance 1. The first child y, drawn from the draft's
distribution d, has the chance min(1, p * t(y) / d(y)), where t is the target's distribution after v. First the paths
through y are tried, in the same way. If they are all rejected, the text continues after v with what is left of its target,

    t' = max(p * t - d, 0) / S    and    p' = S / (S + 1 - p)    with S = sum of max(p * t - d, 0),

and the next child is tried against t' and p'. A node without further children is a leaf: it is accepted with its chance,
and then the next token is drawn from its t'; otherwise its parent goes on with its next child.

**Losslessness.** Remove the child that was drawn last, a leaf z below v. Nothing changes before z is tried. Then v has some
chance p and target t. Without z, v would be accepted with p, and x would be the next token with probability p * t(x).
With z, drawn from d, the token x follows v with probability min(d(x), p * t(x)) as the guess z, and otherwise with the
probability max(p * t(x) - d(x), 0): the same sum. So the text has the same distribution without z and, one node after the
other, without the whole tree. The proof allows that the decision to draw a child depends on everything that was drawn
before, so all policies are allowed. It requires that siblings are tried in the order in which they were drawn.

At a chain it is block verification. Compared with ``rejection`` it keeps a path that is unlikely at its beginning and likely
at its end. Chosen children are tried with d = 1 for their token; if all children of a tree are chosen, the rule is that of
``match``, which keeps the text.

Source: traversal verification, 2505.12398; the proof is derived here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from edgedec.runtime.protocols import F32, Outcome, TokenTree, Verifier
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.verifiers._drawn import F64, Trial, as_probs, children_of, is_chosen, trials
from edgedec.runtime.verifiers._traits import Traits
from edgedec.runtime.verifiers.match import Match

__all__ = ["TRAITS", "Leaf", "create", "leaves"]

TRAITS = Traits(lossless="distribution", children="drawn")


class Leaf(NamedTuple):
    """A path that is tried as a whole."""

    path: tuple[int, ...]  # nodes from the root down
    chance: float  # probability that it is accepted if all paths before it were rejected
    left: F64  # distribution of the next token if it is accepted, float64 [V]


class _Place:
    """A node of the path that is being tried."""

    def __init__(self, node: int, chance: float, children: Iterator[Trial], target: Callable[[int], F32]) -> None:
        self.node, self.chance, self._children, self._target = node, chance, children, target
        self._left: F64 | None = None
        self._tried: Trial | None = None

    @property
    def left(self) -> F64:
        """The rest of the target's distribution, float64 [V]."""
        if self._left is None:
            self._left = as_probs(self._target(self.node))
        return self._left

    def next_child(self) -> tuple[int, float] | None:
        """Return the next child and its chance; None if there is no further child."""
        trial = self._tried = next(self._children, None)
        if trial is None:
            return None
        ratio = float(self.left[trial.ids[trial.at]] / trial.proposal[trial.at])
        return trial.node, min(1.0, self.chance * ratio)

    def reject(self) -> None:
        """Remove the child that was tried from the target and from the chance."""
        assert self._tried is not None
        rest = self.chance * self.left
        rest[self._tried.ids] = np.maximum(rest[self._tried.ids] - self._tried.proposal, 0)
        total = float(rest.sum())
        if total > 0:
            self._left, self.chance = rest / total, total / (total + (1 - self.chance))
        elif self.chance < 1:  # with a chance of 1, target and draft are equal, and rounding rejected the child
            self.chance = 0.0


def leaves(tree: TokenTree, target: Callable[[int], F32]) -> Iterator[Leaf]:
    """Yield the paths of a tree in the order in which they are tried. The last one is the root, whose chance is 1.

    Raises:
        EdgedecError: a child has probability 0 in the distribution from which it should have been drawn.
    """
    children = children_of(tree)

    def place(node: int, chance: float) -> _Place:
        return _Place(node, chance, trials(tree, children.get(node, []), tree.draft.get(node)), target)

    path = [place(0, 1.0)]
    while path:
        child = path[-1].next_child()
        if child is not None:
            path.append(place(*child))
            continue
        yield Leaf(tuple(at.node for at in path), path[-1].chance, path[-1].left)
        path.pop()
        if path:
            path[-1].reject()


class _Traversal:
    def accept(self, tree: TokenTree, target: Callable[[int], F32], random: PositionRandom, position: int) -> Outcome:
        """Return the accepted path and the next token.

        Parameters:
            tree: n nodes; siblings are in the order in which they were drawn.
            target: returns the processed distribution after a node, float32 [V]. It is called at most once for a node.
            random: the random numbers of the text, which are independent of those that the children were drawn with.
            position: position of the token after node 0.

        Raises:
            EdgedecError: a child has probability 0 in the distribution from which it should have been drawn.
        """
        if all(is_chosen(guess) for guess in tree.draft.values()):
            return Match().accept(tree, target, random, position)
        draws = random.draws(position)
        leaf = next(leaf for leaf in leaves(tree, target) if draws.random() < leaf.chance)
        token = random.token(leaf.left, position + len(leaf.path) - 1)
        return Outcome(path=np.array(leaf.path, np.int32), next_token=token)


def create() -> Verifier:
    """Return the verifier (entry point of the plug-in)."""
    return _Traversal()
