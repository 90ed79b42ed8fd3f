"""Drafting ahead: the host grows the next round's tree while the device runs the pass of this round.

The tree is grown on the assumption that the likeliest path of this round's tree is accepted and that the draft's likeliest
token follows it. If the text continues that way, the next round uses the tree; otherwise the tree is discarded. An
assumption cannot change the answer: a tree holds guesses only, and whether it is used depends on the text alone, never on
the tree's contents.

Source: PEARL (2408.11850), post-verify; the choice of the path is derived here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from edgedec.runtime.drafting import expanding
from edgedec.runtime.protocols import I32, Draft, Drafting, Sparse, TokenTree
from edgedec.runtime.rounds.statistics import Phase, Rounds

__all__ = ["Ahead", "likeliest_path", "root_alone"]

_TRIAL = 4  # trees to grow ahead before drafting ahead may be judged to lose time
_NO_PARENT = np.array([-1], np.int32)  # ``parents`` and ``draft`` of every tree without guesses
_NO_PARENT.setflags(write=False)
_NO_GUESSES: Mapping[int, Sparse] = MappingProxyType({})
_RETRY = 16  # rounds from one trial to the next once drafting ahead lost time


class Ahead:
    """A tree that was grown ahead, together with the text that it was grown for.

    Parameters:
        draft: makes the guesses.
        positions: maximum length of a text, in tokens.
        rounds: counts the trees; ``pays`` reads these counts.
        clock: returns the host's time in seconds.
    """

    def __init__(
        self,
        draft: Draft,
        *,
        positions: int,
        rounds: Rounds,
        clock: Callable[[], float],
    ) -> None:
        self._draft, self._positions, self._rounds = draft, positions, rounds
        self._growing = Phase(clock)
        self._tree: TokenTree | None = None
        self._text = np.zeros(0, np.int32)
        self._seconds = 0.0  # time spent on growing the tree

    def pays(self, tree: TokenTree) -> bool:
        """Return whether to grow a tree ahead while the target runs ``tree``.

        It does not pay if ``tree`` is a root without guesses, because the next round is then likely not to speculate
        either. It also does not pay if drafting ahead lost time so far, as it does when a slow draft delays more rounds
        than it helps; one round in sixteen tries it again.
        """
        rounds = self._rounds
        losing = rounds.ahead >= _TRIAL and rounds.saved_seconds < 0
        return len(tree.tokens) > 1 and not (losing and rounds.count % _RETRY)

    def assume(self, text: I32, tree: TokenTree, grow: Callable[[I32], Drafting[TokenTree]]) -> Drafting[None]:
        """Grow the tree of the next round.

        Args:
            text: the text, int32 [n].
            tree: the tree of this round, which follows the text.
            grow: returns the tree of a round for its text.
        """
        self._tree = None
        path = np.concatenate([text, tree.tokens[likeliest_path(tree)[1:]]])
        if len(path) >= self._positions:
            return
        (guess,) = yield from expanding(self._draft, path, root_alone(path), np.zeros(1, np.int32))
        if not len(guess.ids):
            return
        self._text = np.append(path, guess.ids[guess.probs.argmax()])
        with self._growing:
            self._tree = yield from grow(self._text)
        self._seconds = self._growing.take()
        self._rounds.ahead += 1

    def take(self, text: I32) -> TokenTree | None:
        """Return the tree that was grown for exactly this text and forget it; None if there is none."""
        tree, self._tree = self._tree, None
        if tree is None or not np.array_equal(text, self._text):
            return None
        self._rounds.ahead_used += 1
        self._rounds.hidden_seconds += self._seconds
        return tree


def likeliest_path(tree: TokenTree) -> list[int]:
    """Return the nodes from the root to a leaf that follow each node's likeliest child; ties go to the first child."""
    path = [0]
    while (children := np.flatnonzero(tree.parents == path[-1])).size:
        guess = tree.draft[path[-1]]
        prob = dict(zip(guess.ids.tolist(), guess.probs.tolist(), strict=True))
        path.append(max(children.tolist(), key=lambda node: prob[int(tree.tokens[node])]))
    return path


def root_alone(text: I32) -> TokenTree:
    """Return a tree without guesses after ``text``."""
    return TokenTree(tokens=text[-1:].astype(np.int32), parents=_NO_PARENT, draft=_NO_GUESSES)
