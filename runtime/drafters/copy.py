"""A drafter that copies from the input, for answers that edit, summarise or quote the prompt; it survives small changes.

Source: input-guided aggressive decoding, 2205.10350 (copy until the text deviates, then find the place again by its
suffix); LLMA, 2304.04487. Continuing after a change and the growing reach are derived here.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

from edgedec.runtime.drafters._places import Places
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES, Confirmed, TextDraft
from edgedec.runtime.loop.drafts import compiled_draft
from edgedec.runtime.protocols import I32, Bytes, CostModel, Draft, Limits, Outcome, Sparse, TargetInfo, TokenTree

__all__ = ["create"]

LEAST, MOST = 2, 8  # minimum and maximum number of tokens of a suffix that is searched for in the input
TRIES = 64  # places to compare, from the last one backwards; it bounds the time on any text
SURE = 3  # matching tokens after which a run counts as copying
NEAR = 8  # maximum distance after a change at which copying may continue, in tokens of the input
REACH = 4  # maximum length of a guess, relative to the length of the run
RECOVERY = 8  # number of tokens of the text after a change during which copying may continue near by


class _State(NamedTuple):
    """The state of copying after a token."""

    cursor: int  # index of the input's token that is expected next; -1: nothing is being copied
    run: int  # tokens before the cursor that match the text
    initial_run: int  # value of ``run`` when the cursor was set
    broken_at: int  # index at which the last sure run ended; -1: there was none
    since_break: int  # tokens of the text since then
    need: int  # minimum number of tokens of a suffix to set a cursor


_SIZE = len(_State._fields)


class _Copy(TextDraft):
    """A draft with one guess of probability 1: the input's token at the cursor.

    The input is the text as it was first given. The cursor is set to the token after the place where the longest suffix of
    the text occurs in the input; of equally long matches, the nearest one after the last run is taken. It advances with
    every token that matches. When a run of at least ``SURE`` tokens meets a different token, the cursor moves after the
    next occurrence of that token near by (the text left something out), or else after the expected token (the text replaced
    it). If that proves wrong, the next tokens of the text are searched for near by (the text inserted something).

    A guess may be ``REACH`` times as long as the run, so that a long span is copied in long runs and a match by chance
    costs little. Each cursor whose first guess is wrong makes the next cursor need a longer suffix, up to ``MOST``; a sure
    run resets this to ``LEAST``.
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
    """The input and the text after it, with the state of copying after each token."""

    def __init__(self, capacity: int, depth: int) -> None:
        super().__init__(capacity, depth)
        self._states = np.zeros(_SIZE * len(self.ids), np.int32).data

    @staticmethod
    def state_bytes(capacity: int, depth: int) -> int:
        """Return the bytes of the states."""
        return 4 * _SIZE * (max(2, capacity) + depth)

    def read(self, length: int) -> None:
        """Remove all tokens. The first ``length`` tokens of the next text are the input."""
        self._shrink(0)
        self.indexed = length - 1  # the last token is no place to copy from, because no token of the input follows it

    def state(self, at: int) -> _State:
        """Return the state after ``ids[at]``."""
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
        cursor, run, initial_run, broken_at, since_break, need = state
        if cursor >= 0:
            if self.ids[cursor] == token:
                need = LEAST if run + 1 - initial_run >= SURE else need
                cursor = cursor + 1 if cursor + self.start < self.indexed else -1
                return _State(cursor, run + 1, initial_run, broken_at, since_break + 1, need)
            if run == initial_run >= LEAST:
                need = min(need + 1, MOST)
            if run >= SURE:
                broken_at, since_break = cursor, -1
        return self._seek(broken_at, since_break + 1, need)

    def _seek(self, broken_at: int, since_break: int, need: int) -> _State:
        """Return the state after the last token with a new cursor, if there is a place for it."""
        place, length = self.longest(least=need, most=MOST, tries=TRIES, near=max(0, broken_at))
        if length:
            return _State(place + 1, length, length, broken_at, since_break, need)
        if broken_at >= 0 and since_break < RECOVERY:
            end = self.indexed - self.start  # index of the input's last token
            ahead = self.ids[broken_at : min(broken_at + NEAR, end)].tolist()
            token = self.ids[self.length - 1]
            if token in ahead:
                return _State(broken_at + ahead.index(token) + 1, 1, 1, broken_at, since_break, need)
            if since_break == 0 and broken_at < end:
                return _State(broken_at + 1, 0, 0, broken_at, since_break, need)
        return _State(-1, 0, 0, broken_at, since_break, need)


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

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> Draft:
        return compiled_draft("copy", target, limits, limits.positions) or _Copy(target, limits)


def create() -> _CopyDrafter:
    """Return the drafter (entry point of the plug-in)."""
    return _CopyDrafter()
