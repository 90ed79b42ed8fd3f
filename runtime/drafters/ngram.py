"""Prompt lookup: where the end of the text stood before, the text probably goes on as it did there.

Source: prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding; longest match instead of one length
as in SAM decoding, 2411.10666. The index is derived here.
"""

from __future__ import annotations

from edgedec.runtime.drafters._places import Places
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES, TextDraft
from edgedec.runtime.protocols import I32, Bytes, CostModel, Limits, Sparse, TargetInfo

__all__ = ["LEAST", "MOST", "TRIES", "create"]

LEAST, MOST = 2, 16  # tokens of a suffix
TRIES = 64  # places that are compared, the last ones first: it bounds the time on any text


class _Lookup(TextDraft):
    """One certain guess: the token after the last place where the longest suffix of text and path stood.

    The place may reach into what it guesses, so that a text that repeats itself is followed for ever. Along its own
    guesses it stays with the place that it found. It remembers nothing but the text.
    """

    def __init__(self, target: TargetInfo, limits: Limits) -> None:
        super().__init__(target, limits)
        self._places = Places(limits.positions, limits.depth)

    def _after(self, text: I32, path: list[int]) -> Sparse:
        places = self._places
        places.follow(text, path)
        found, agree = places.longest(least=LEAST, most=MOST, tries=TRIES)
        return self._certain(places.ids[found + 1]) if agree else NOTHING


class _LookupDrafter:
    taps: tuple[str, ...] = ()

    def footprint(self, limits: Limits) -> Bytes:
        return {
            "draft_text": Places.text_bytes(limits.positions, limits.depth),
            "draft_index": Places.index_bytes(limits.positions, limits.depth),
            "draft_objects": OBJECT_BYTES,
        }

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _Lookup:
        return _Lookup(target, limits)


def create() -> _LookupDrafter:
    """Plug-in entry."""
    return _LookupDrafter()
