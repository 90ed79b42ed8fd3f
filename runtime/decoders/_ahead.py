"""The next round's tree, grown on the host while the device is at work on this round's: drafting that costs no time.

It is grown on an assumption: that the likeliest path of this round's tree is accepted, and that the draft's likeliest token
comes after it. If the text then goes on just so, the tree is the one that the next round would have grown, and is there
already; else it is dropped. Nothing of an assumption reaches the text: a tree is a proposal, whenever it was made, and
whether it is used depends on the text alone, never on what the tree holds.
Source: PEARL, 2408.11850, its post-verify; the choice of the path is derived here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedec.runtime.decoders.rounds import Phase, Rounds
from edgedec.runtime.protocols import I32, Draft, TokenTree

__all__ = ["Ahead", "likeliest_path", "root_alone"]

_TRIAL = 4  # trees grown ahead before that may be found to lose time
_RETRY = 16  # rounds, of which one tries it again


class Ahead:
    """At most one tree is waiting, for the one text that it was grown for.

    Parameters:
        draft: proposes, on an assumed text as on a certain one.
        grow: the tree of a round, by its text.
        positions: of a text at most.
        rounds: where it counts what it did; whether it goes on depends on that, too.
        clock: seconds, of the host.
    """

    def __init__(
        self,
        draft: Draft,
        grow: Callable[[I32], TokenTree],
        *,
        positions: int,
        rounds: Rounds,
        clock: Callable[[], float],
    ) -> None:
        self._draft, self._grow, self._positions, self._rounds = draft, grow, positions, rounds
        self._growing = Phase(clock)
        self._tree: TokenTree | None = None
        self._text = np.zeros(0, np.int32)
        self._seconds = 0.0  # that growing the tree took

    def pays(self, tree: TokenTree) -> bool:
        """Whether to grow ahead while ``tree`` is verified: where one does not speculate one will not in the next round.

        A slow draft is late more often than it is right; then one round in sixteen looks whether that has changed.
        """
        rounds = self._rounds
        losing = rounds.ahead >= _TRIAL and rounds.saved_seconds < 0
        return len(tree.tokens) > 1 and not (losing and rounds.count % _RETRY)

    def assume(self, text: I32, tree: TokenTree) -> None:
        """Grow the tree of the next round; ``tree`` is the one of this round, after ``text`` int32 [n]."""
        self._tree = None
        path = np.concatenate([text, tree.tokens[likeliest_path(tree)[1:]]])
        if len(path) >= self._positions:
            return
        (guess,) = self._draft.expand(path, root_alone(path), np.zeros(1, np.int32))
        if not len(guess.ids):
            return
        self._text = np.append(path, guess.ids[guess.probs.argmax()])
        with self._growing:
            self._tree = self._grow(self._text)
        self._seconds = self._growing.take()
        self._rounds.ahead += 1

    def take(self, text: I32) -> TokenTree | None:
        """The tree that was grown for just this text; None if there is none. It is given once."""
        tree, self._tree = self._tree, None
        if tree is None or not np.array_equal(text, self._text):
            return None
        self._rounds.ahead_used += 1
        self._rounds.hidden_seconds += self._seconds
        return tree


def likeliest_path(tree: TokenTree) -> list[int]:
    """From the root, always to the child that the draft thinks likeliest; of equal ones to the first."""
    path = [0]
    while (children := np.flatnonzero(tree.parents == path[-1])).size:
        guess = tree.draft[path[-1]]
        prob = dict(zip(guess.ids.tolist(), guess.probs.tolist(), strict=True))
        path.append(max(children.tolist(), key=lambda node: prob[int(tree.tokens[node])]))
    return path


def root_alone(text: I32) -> TokenTree:
    """The tree after ``text`` without guesses."""
    return TokenTree(tokens=text[-1:].astype(np.int32), parents=np.array([-1], np.int32), draft={})
