"""The walk of verifiers that decide at one node after the other, from the root down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedec.runtime.protocols import F32, Outcome, Sparse, TokenTree
from edgedec.runtime.sampling.position_random import Draws, PositionRandom
from edgedec.runtime.verifiers._drawn import F64, children_of, is_chosen

__all__ = ["Select", "TopDown"]

# (tree, children of a node, their draft, the target after the node, draws) -> the accepted child, or None, and then the
# distribution of the next token, float64 [V]
Select = Callable[[TokenTree, list[int], Sparse, F32, Draws], tuple[int | None, F64]]


class TopDown:
    """A verifier that follows the accepted children until a node has none. Nodes with chosen children are matched.

    Parameters:
        select: the rule for drawn children.
    """

    def __init__(self, select: Select) -> None:
        self._select = select

    def accept(self, tree: TokenTree, target: Callable[[int], F32], random: PositionRandom, position: int) -> Outcome:
        """Return the accepted path and the next token.

        Parameters:
            tree: n nodes; siblings are in the order in which they were drawn.
            target: returns the processed distribution after a node, float32 [V]. It is called for nodes of the path only.
            random: the random numbers of the text, which are independent of those that the children were drawn with.
            position: position of the token after node 0.

        Raises:
            EdgedecError: the children of a node cannot have been drawn as the rule requires.
        """
        children, path = children_of(tree), [0]
        while True:
            node, at = path[-1], position + len(path) - 1
            siblings, guess = children.get(node, []), tree.draft.get(node)
            if guess is None or not siblings or is_chosen(guess):
                token = random.token(target(node), at)
                child = next((one for one in siblings if tree.tokens[one] == token), None)
            else:
                child, left = self._select(tree, siblings, guess, target(node), random.draws(at))
                token = random.token(left, at) if child is None else int(tree.tokens[child])
            if child is None:
                return Outcome(path=np.array(path, np.int32), next_token=token)
            path.append(child)
