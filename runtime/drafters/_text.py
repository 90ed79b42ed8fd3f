"""Common parts of drafters that read the text only: paths through a tree, confirmed text, and a text that can shrink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgedec.runtime.protocols import I32, Limits, Outcome, Sparse, TargetInfo, TokenTree

__all__ = ["NOTHING", "OBJECT_BYTES", "Confirmed", "TextDraft", "TrackedText", "paths"]

NOTHING = Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32))
OBJECT_BYTES = 16 << 10  # bytes of the Python objects of a draft and of a call: lists of a tree's tokens, views, chunks
_CHUNK = 256  # tokens that are converted to Python integers at a time


def paths(tree: TokenTree, nodes: I32) -> Iterator[list[int]]:
    """Yield, for each node, the tokens on the path from the root to it, without the root's own."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    for node in nodes.tolist():
        path = []
        while node > 0:
            path.append(tokens[node])
            node = parents[node]
        path.reverse()
        yield path


class TextDraft:
    """The base of drafts that read tokens only. Subclasses implement ``_after``.

    Such a draft guesses after the text and after paths of fewer than ``limits.depth`` tokens.
    """

    def __init__(self, target: TargetInfo, limits: Limits) -> None:
        self.vocab, self.limits = target.vocab, limits

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        """Return the distribution after each node; it sums to 1, or is empty where there is no guess."""
        self._meet(text)
        depth = self.limits.depth
        return [self._after(text, path) if len(path) < depth else NOTHING for path in paths(tree, nodes)]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Do nothing, unless overridden."""
        return None

    def _meet(self, text: I32) -> None:
        """Prepare for guesses after ``text``. It is called once for each ``expand``, before ``_after``."""

    def _after(self, text: I32, path: list[int]) -> Sparse:
        """Return the distribution after ``text`` and ``path``."""
        raise NotImplementedError

    def _certain(self, token: int) -> Sparse:
        """Return a guess of probability 1; none if the target does not have ``token``."""
        if not 0 <= token < self.vocab:
            return NOTHING
        return Sparse(ids=np.array([token], np.int32), probs=np.ones(1, np.float32))


class Confirmed:
    """The confirmed part of the text: the text as it was first given, and the tokens of every outcome since then.

    A text that extends the confirmed part by at most ``slack`` tokens is an assumption: a drafter may guess after it, but
    must not learn from it. Any other text is a new, confirmed text, such as another conversation or the next question. Only
    the length and the last tokens are compared; a new text that agrees in both is mistaken for the old one, which costs a
    few good guesses.

    Parameters:
        window: number of tokens at the end that are remembered.
        slack: maximum number of tokens of an assumption.
    """

    def __init__(self, window: int, slack: int) -> None:
        self.window, self.slack = window, slack
        self.length = 0  # tokens of the confirmed text; 0: none yet
        self.tail: list[int] = []  # last tokens of the confirmed text

    def meet(self, text: I32) -> int:
        """Return the number of tokens at the end of ``text`` that this call confirmed."""
        length, extra = self.length, len(text) - self.length
        known = extra >= 0 and text[max(0, length - self.window) : length].tolist() == self.tail
        if known and length and extra <= self.slack:
            return 0
        self.length, self.tail = len(text), text[-self.window :].tolist()
        return extra if known else len(text)

    def advance(self, tree: TokenTree, outcome: Outcome) -> list[int]:
        """Confirm the tokens of an outcome. Return them after the previous tail, which ends with the tree's root."""
        accepted: list[int] = tree.tokens[outcome.path].tolist()
        root, new = accepted[0], [*accepted[1:], outcome.next_token]
        if not self.tail or self.tail[-1] != root:  # ``meet`` was not called before: only the root is known
            self.length, self.tail = 0, [root]
        history = [*self.tail, *new]
        self.length += len(new) if self.length else 0
        self.tail = history[-self.window :]
        return history


class TrackedText:
    """A text followed by the path to a node. Tokens are appended and removed one at a time.

    ``follow`` first removes what earlier paths left, so that the state depends on the text and the path alone and not on
    earlier calls. A text longer than ``capacity`` loses its beginning, half the capacity at a time.

    Parameters:
        capacity: maximum number of tokens of the text that are kept.
        depth: maximum number of tokens of a path.

    Members:
        ids: the tokens, int32 [capacity + depth]; the first ``length`` are valid.
        length: number of valid tokens.
        start: number of tokens of the text that were removed before ``ids[0]``.
    """

    def __init__(self, capacity: int, depth: int) -> None:
        self.capacity = max(2, capacity)
        self._tokens = np.zeros(self.capacity + depth, np.int32)
        self.ids = self._tokens.data  # its items are Python integers: twice as fast as NumPy's
        self.length = self.start = 0

    @staticmethod
    def text_bytes(capacity: int, depth: int) -> int:
        """Return the bytes of the tokens and of the comparison in ``follow``."""
        return 4 * (max(2, capacity) + depth) + max(2, capacity)

    def follow(self, text: I32, path: Sequence[int]) -> None:
        """Make the contents ``text``, int32 [n], followed by ``path``, at most ``depth`` tokens."""
        half = self.capacity // 2
        start = max(0, -(-(len(text) - self.capacity) // half)) * half
        if start != self.start:
            self._shrink(0)
            self.start = start
        text = text[start:]
        keep = min(self.length, len(text))
        same = self._tokens[:keep] == text[:keep]
        if not same.all():
            keep = int(same.argmin())
        elif keep == len(text):
            for token in path:
                if keep == self.length or self.ids[keep] != token:
                    break
                keep += 1
        self._shrink(keep)
        for begin in range(keep, len(text), _CHUNK):
            self._extend(text[begin : begin + _CHUNK].tolist())
        self._extend(path[max(0, keep - len(text)) :])

    def _shrink(self, length: int) -> None:
        while self.length > length:
            self.length -= 1
            self._pop(self.length)

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.ids[self.length] = token
            self.length += 1
            self._push(self.length - 1)

    def _push(self, at: int) -> None:
        """Update the subclass after ``ids[at]``, the new last token, was appended."""

    def _pop(self, at: int) -> None:
        """Update the subclass when ``ids[at]``, the last token, is removed."""
