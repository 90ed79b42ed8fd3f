"""An index of the earlier places of a text where its last pair of tokens occurs, as hash chains.

Source: the hash chains of RFC 1951 section 4 (deflate); derived here for tokens, and extended by removal of tokens.
"""

from __future__ import annotations

import sys

import numpy as np

from edgedec.runtime.drafters._text import TrackedText

__all__ = ["Places"]


class Places(TrackedText):
    """A tracked text in which each pair of neighbouring tokens is linked to the previous pair with the same hash.

    Members:
        indexed: number of tokens at the beginning of the text that ``longest`` may return as places. It may change only
            while the text is empty.
    """

    def __init__(self, capacity: int, depth: int) -> None:
        super().__init__(capacity, depth)
        self.indexed = sys.maxsize
        self._mask = _slots(self.capacity) - 1
        self._head = np.full(self._mask + 1, -1, np.int32).data  # hash -> the last place
        self._before = np.full(len(self._tokens), -1, np.int32).data  # place -> the previous place with its hash

    @staticmethod
    def index_bytes(capacity: int, depth: int) -> int:
        """Return the bytes of the index, without the tokens."""
        capacity = max(2, capacity)
        return 4 * _slots(capacity) + 4 * (capacity + depth)

    def longest(self, *, least: int, most: int, tries: int, near: int = sys.maxsize) -> tuple[int, int]:
        """Return the earlier place at which the longest suffix of the text occurs.

        Parameters:
            least: minimum number of tokens that must match, at least 2.
            most: maximum number of tokens to compare.
            tries: maximum number of places to examine, from the last one backwards; it bounds the time on any text.
            near: index that selects among equally long matches: the first match at ``near`` or after it, or else the last
                one before it. By default this is the last match.

        Returns:
            (index of the last token of the match, number of tokens that match); (-1, 0) if there is none.
        """
        ids, before, end = self.ids, self._before, self.length - 1
        best, best_length = -1, least - 1
        place = before[end] if end > 0 else -1
        while place > 0 and tries:
            tries -= 1
            # Most places are rejected by one token: the one that this place needs to be better than the best so far.
            reach = best_length - (best >= 0 and place >= near)
            if place >= reach and ids[place - reach] == ids[end - reach]:
                length = 0
                while length < most and length <= place and ids[place - length] == ids[end - length]:
                    length += 1
                if length > reach:
                    best, best_length = place, length
                    if length == most and place <= near:
                        break
            place = before[place]
        return (best, best_length) if best >= 0 else (-1, 0)

    def _push(self, at: int) -> None:
        if at:
            slot = self._slot(at)
            self._before[at] = self._head[slot]
            if at + self.start < self.indexed:
                self._head[slot] = at

    def _pop(self, at: int) -> None:
        if at and at + self.start < self.indexed:
            self._head[self._slot(at)] = self._before[at]

    def _slot(self, at: int) -> int:
        return (self.ids[at - 1] * 0x9E3779B1 + self.ids[at] * 0x85EBCA6B >> 7) & self._mask


def _slots(capacity: int) -> int:
    return 1 << (capacity - 1).bit_length()
