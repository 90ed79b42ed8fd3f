"""Where in a text the pair of tokens at its end stood before: hash chains, as compressors have them.

Source: the chains of RFC 1951 section 4 (deflate); derived here for tokens, with taking back.
"""

from __future__ import annotations

import sys

import numpy as np

from edgedec.runtime.drafters._text import TrackedText

__all__ = ["Places"]


class Places(TrackedText):
    """A tracked text whose pairs of neighbouring tokens are chained, each to the place before it with the same hash.

    Members:
        indexed: so many tokens at the text's beginning are places that may be found; those after them only look. To be
            changed while nothing is held.
    """

    def __init__(self, capacity: int, depth: int) -> None:
        super().__init__(capacity, depth)
        self.indexed = sys.maxsize
        self._mask = _slots(self.capacity) - 1
        self._head = np.full(self._mask + 1, -1, np.int32).data  # hash -> the last place
        self._before = np.full(len(self._tokens), -1, np.int32).data  # place -> the place before it

    @staticmethod
    def index_bytes(capacity: int, depth: int) -> int:
        capacity = max(2, capacity)
        return 4 * _slots(capacity) + 4 * (capacity + depth)

    def longest(self, *, least: int, most: int, tries: int, near: int = sys.maxsize) -> tuple[int, int]:
        """The earlier place where the longest suffix of the text stands.

        Parameters:
            least, most: tokens that must agree, at least 2, and that are compared.
            tries: places that are looked at, from the last one back; it bounds the time on any text.
            near: of equally good places the first one at ``near`` or after it is taken, else the last one before it;
                by default the last of all.

        Returns:
            (index of the last token of that place, tokens that agree); (-1, 0) if there is none.
        """
        ids, before, end = self.ids, self._before, self.length - 1
        found, best = -1, least - 1
        place = before[end] if end > 0 else -1
        while place > 0 and tries:
            tries -= 1
            # One token decides for most places: the one that would make this place as good as the best so far.
            reach = best - (found >= 0 and place >= near)
            if place >= reach and ids[place - reach] == ids[end - reach]:
                agree = 0
                while agree < most and agree <= place and ids[place - agree] == ids[end - agree]:
                    agree += 1
                if agree > reach:
                    found, best = place, agree
                    if agree == most and place <= near:
                        break
            place = before[place]
        return (found, best) if found >= 0 else (-1, 0)

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
