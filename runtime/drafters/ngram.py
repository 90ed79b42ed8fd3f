"""Prompt lookup: find an earlier occurrence of the end of the text and guess that the text continues as it did there.

Source: prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding; the longest match instead of one of
fixed length, as in SAM decoding, 2411.10666. The index is derived here.
"""

from __future__ import annotations

from edgedec.runtime.drafters._places import Places
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES, TextDraft
from edgedec.runtime.loop.drafts import compiled_draft
from edgedec.runtime.protocols import I32, Bytes, CostModel, Draft, Limits, Sparse, TargetInfo

__all__ = ["LEAST", "MOST", "TRIES", "create"]

LEAST, MOST = 2, 16  # minimum and maximum number of tokens of a suffix
TRIES = 64  # places to compare, from the last one backwards; it bounds the time on any text


class _Lookup(TextDraft):
    """A draft with one guess of probability 1: the token after the last earlier occurrence of the longest suffix.

    The suffix is one of the text and the path together. An occurrence may overlap with the suffix, so that a text that
    repeats itself is continued without end. The draft stores nothing but the text.
    """

    def __init__(self, target: TargetInfo, limits: Limits) -> None:
        super().__init__(target, limits)
        self._places = Places(limits.positions, limits.depth)

    def _after(self, text: I32, path: list[int]) -> Sparse:
        places = self._places
        places.follow(text, path)
        place, length = places.longest(least=LEAST, most=MOST, tries=TRIES)
        return self._certain(places.ids[place + 1]) if length else NOTHING


class _LookupDrafter:
    taps: tuple[str, ...] = ()

    def footprint(self, limits: Limits) -> Bytes:
        return {
            "draft_text": Places.text_bytes(limits.positions, limits.depth),
            "draft_index": Places.index_bytes(limits.positions, limits.depth),
            "draft_objects": OBJECT_BYTES,
        }

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> Draft:
        return compiled_draft("ngram", target, limits, limits.positions) or _Lookup(target, limits)


def create() -> _LookupDrafter:
    """Return the drafter (entry point of the plug-in)."""
    return _LookupDrafter()
