"""Copying the input: text that is being edited, summarised or quoted is followed along the prompt, over small changes too.

Source: input-guided aggressive decoding, 2205.10350 (copy until the text departs, find the place again by its suffix);
LLMA, 2304.04487. Short cuts after a change and the growing reach are derived here.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

from edgedec.runtime.drafters._places import Places
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES, Confirmed, TextDraft
from edgedec.runtime.protocols import I32, Bytes, CostModel, Limits, Outcome, Sparse, TargetInfo, TokenTree

__all__ = ["create"]

LEAST, MOST = 2, 8  # tokens of a suffix that is looked for in the input
TRIES = 64  # places that are compared, the last ones first: it bounds the time on any text
SURE = 3  # tokens in a row after which a run counts as copying
NEAR = 8  # how far behind a change the copying may go on, tokens of the input
REACH = 4  # a guess reaches so many times as far as the run is long
LOST = 8  # how long after a change that is tried, tokens of the text


class _State(NamedTuple):
    """Where the copying stands after a token."""

    cursor: int  # the input's token that is expected next; -1: nothing is being copied
    run: int  # tokens before the cursor that the text agrees with
    grip: int  # what ``run`` was when the cursor was set
    home: int  # where the last sure run broke off; -1: there was none
    lost: int  # tokens since then
    need: int  # tokens of a suffix that set a cursor


_SIZE = len(_State._fields)


class _Copy(TextDraft):
    """One certain guess: the input's token at the cursor.

    The input is the text as it was first shown. The cursor is set where the longest suffix of the text stands in the input,
    of equally long places the nearest one behind the last run. It moves on with every token that agrees. When a run of at
    least ``SURE`` tokens meets another token, it goes on behind that token's next place near by (the text left something
    out), else behind the token that should have come (the text replaced it); if that is wrong, the next tokens of the text
    are looked for near by (it put something in).

    A guess reaches ``REACH`` times as far as the run is long, so that a long span is copied in long runs and a chance match
    costs little. Each cursor whose first guess is wrong makes the next one need a longer suffix, up to ``MOST``; a sure run
    makes that ``LEAST`` again.
    """

    def __init__(self, target: TargetInfo, limits: Limits) -> None:
        super().__init__(target, limits)
        self._copied = _Copied(limits.positions, limits.depth)
        self._confirmed = Confirmed(window=16, slack=limits.depth + 1)

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        self._confirmed.advance(tree, outcome)

    def _meet(self, text: I32) -> None:
        if self._confirmed.meet(text):
            self._copied.read(len(text))

    def _after(self, text: I32, path: list[int]) -> Sparse:
        copied = self._copied
        copied.follow(text, path)
        if len(path) >= max(REACH, REACH * copied.state(copied.length - len(path) - 1).run):
            return NOTHING
        cursor = copied.state(copied.length - 1).cursor
        return self._certain(copied.ids[cursor]) if cursor >= 0 else NOTHING


class _Copied(Places):
    """The input, and after it the text with the state of the copying after each token."""

    def __init__(self, capacity: int, depth: int) -> None:
        super().__init__(capacity, depth)
        self._states = np.zeros(_SIZE * len(self.ids), np.int32).data

    @staticmethod
    def state_bytes(capacity: int, depth: int) -> int:
        return 4 * _SIZE * (max(2, capacity) + depth)

    def read(self, length: int) -> None:
        """Forget everything; the next text's first ``length`` tokens are the input."""
        self._shrink(0)
        self.indexed = length - 1  # nothing of the input comes after its last token

    def state(self, at: int) -> _State:
        return _State(*self._states[_SIZE * at : _SIZE * (at + 1)])

    def _push(self, at: int) -> None:
        super()._push(at)
        position = at + self.start
        if position < self.indexed:
            return
        first = at == 0 or position == self.indexed
        state = self._seek(-1, 0, LEAST) if first else self._step(self.state(at - 1), self.ids[at])
        self._states[_SIZE * at : _SIZE * (at + 1)] = array("i", state)

    def _step(self, state: _State, token: int) -> _State:
        cursor, run, grip, home, lost, need = state
        if cursor >= 0:
            if self.ids[cursor] == token:
                need = LEAST if run + 1 - grip >= SURE else need
                cursor = cursor + 1 if cursor + self.start < self.indexed else -1
                return _State(cursor, run + 1, grip, home, lost + 1, need)
            if run == grip >= LEAST:
                need = min(need + 1, MOST)
            if run >= SURE:
                home, lost = cursor, -1
        return self._seek(home, lost + 1, need)

    def _seek(self, home: int, lost: int, need: int) -> _State:
        """Set the cursor, if there is a place for it."""
        place, agree = self.longest(least=need, most=MOST, tries=TRIES, near=max(0, home))
        if agree:
            return _State(place + 1, agree, agree, home, lost, need)
        if home >= 0 and lost < LOST:
            end = self.indexed - self.start  # index of the input's last token
            behind = self.ids[home : min(home + NEAR, end)].tolist()
            token = self.ids[self.length - 1]
            if token in behind:
                return _State(home + behind.index(token) + 1, 1, 1, home, lost, need)
            if lost == 0 and home < end:
                return _State(home + 1, 0, 0, home, lost, need)
        return _State(-1, 0, 0, home, lost, need)


class _CopyDrafter:
    taps: tuple[str, ...] = ()

    def footprint(self, limits: Limits) -> Bytes:
        size = (limits.positions, limits.depth)
        return {
            "draft_text": Places.text_bytes(*size),
            "draft_index": Places.index_bytes(*size),
            "draft_states": _Copied.state_bytes(*size),
            "draft_objects": OBJECT_BYTES,
        }

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _Copy:
        return _Copy(target, limits)


def create() -> _CopyDrafter:
    """Plug-in entry."""
    return _CopyDrafter()
