"""What text-only drafters share: paths through a tree, which text is certain, and a text that can be taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgedec.runtime.protocols import I32, Limits, Outcome, Sparse, TargetInfo, TokenTree

__all__ = ["NOTHING", "OBJECT_BYTES", "Confirmed", "TextDraft", "TrackedText", "paths"]

NOTHING = Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32))
OBJECT_BYTES = 16 << 10  # Python objects of one draft and of one call: lists of a tree's tokens, views, chunks
_CHUNK = 256  # tokens that are Python integers at a time


def paths(tree: TokenTree, nodes: I32) -> Iterator[list[int]]:
    """For each node the tokens that lead to it from the root; none for the root itself."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    for node in nodes.tolist():
        path = []
        while node > 0:
            path.append(tokens[node])
            node = parents[node]
        path.reverse()
        yield path


class TextDraft:
    """A draft that reads tokens and nothing else. Derive from it and write ``_after``.

    It guesses after the first ``limits.depth`` tokens of a path, the text's last one included, and only ids that the
    target has.
    """

    def __init__(self, target: TargetInfo, limits: Limits) -> None:
        self.vocab, self.limits = target.vocab, limits

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        """The distribution after each node; it sums to 1, or is empty where there is no guess."""
        self._meet(text)
        depth = self.limits.depth
        return [self._after(text, path) if len(path) < depth else NOTHING for path in paths(tree, nodes)]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        return None

    def _meet(self, text: I32) -> None:
        """Called once for each ``expand``, before anything is asked about ``text``."""

    def _after(self, text: I32, path: list[int]) -> Sparse:
        raise NotImplementedError

    def _certain(self, token: int) -> Sparse:
        """A deterministic guess."""
        if not 0 <= token < self.vocab:
            return NOTHING
        return Sparse(ids=np.array([token], np.int32), probs=np.ones(1, np.float32))


class Confirmed:
    """How much of the text is certain: what was shown first, and every outcome since.

    A text that goes on for at most a round's tokens beyond what is certain is an assumption: one may propose after it, but
    must not learn from it. Any other text is a new one (another conversation, the next question), and certain. Only length
    and last tokens are compared: a new text that agrees in both is taken for the old one, which costs a few good guesses.

    Parameters:
        window: tokens at the end that are remembered.
        slack: tokens that an assumption may be long.
    """

    def __init__(self, window: int, slack: int) -> None:
        self.window, self.slack = window, slack
        self.length = 0  # 0: nothing is certain yet
        self.tail: list[int] = []  # the last tokens of what is certain

    def meet(self, text: I32) -> int:
        """How many tokens at the end of ``text`` are certain now and were not before."""
        length, extra = self.length, len(text) - self.length
        known = extra >= 0 and text[max(0, length - self.window) : length].tolist() == self.tail
        if known and length and extra <= self.slack:
            return 0
        self.length, self.tail = len(text), text[-self.window :].tolist()
        return extra if known else len(text)

    def advance(self, tree: TokenTree, outcome: Outcome) -> list[int]:
        """Take an outcome in. Returns the tail as it was, which ends with the tree's root, and the tokens that came."""
        accepted: list[int] = tree.tokens[outcome.path].tolist()
        root, came = accepted[0], [*accepted[1:], outcome.next_token]
        if not self.tail or self.tail[-1] != root:  # no expand came before: the root is all that is known
            self.length, self.tail = 0, [root]
        history = [*self.tail, *came]
        self.length += len(came) if self.length else 0
        self.tail = history[-self.window :]
        return history


class TrackedText:
    """The text, and on top of it the path to the node that is asked about: token by token on, token by token off.

    What rejected guesses left is taken off by the next ``follow``, so that its state depends on text and path alone, never
    on what was asked before. A text longer than ``capacity`` loses its beginning, half the capacity at a time.

    Parameters:
        capacity: tokens of the text that are kept.
        depth: tokens of a path.

    Members:
        ids: the tokens, int32 [capacity + depth], the first ``length`` of which count.
        start: tokens of the text before ``ids[0]``, forgotten.
    """

    def __init__(self, capacity: int, depth: int) -> None:
        self.capacity = max(2, capacity)
        self._tokens = np.zeros(self.capacity + depth, np.int32)
        self.ids = self._tokens.data  # its items are Python integers: twice as fast as NumPy's
        self.length = self.start = 0

    @staticmethod
    def text_bytes(capacity: int, depth: int) -> int:
        """Bytes of the tokens, and of comparing them."""
        return 4 * (max(2, capacity) + depth) + max(2, capacity)

    def follow(self, text: I32, path: Sequence[int]) -> None:
        """Hold ``text`` int32 [n] and ``path``, at most ``depth`` tokens."""
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
        """``ids[at]`` has come; ``length`` counts it."""

    def _pop(self, at: int) -> None:
        """``ids[at]`` goes; it was the last one to come."""
