"""Whether to speculate, and how deep: from what acceptance and time turned out to be in this run.

Two measurements decide: the seconds of a round without guesses, and tokens per second over the last rounds with some; both
from medians, for one round on a busy machine, or one in which a draft model reads a new prompt, takes as long as thirty.
Speculation that is slower stops at once after four rounds; then it is tried again, three rounds at a time, after 16 tokens,
and after each trial that fails a longer while, so that trials cost about one percent where nothing can be gained.
Source: derived here; the depth is the argmax of (1 + E[accepted]) / seconds, as in 2211.17192 section 3.
"""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np

from edgedec.runtime.protocols import CostModel, Outcome, TokenTree

__all__ = ["Adaptive"]

_PLAIN_FIRST = 3  # rounds without guesses before the first with some: the median of three bears a cold first one
_ROUNDS = 4  # with guesses, before speculation may be found too slow
_TRIAL = 3  # with guesses, when it is tried again
_WINDOW = 8  # rounds that count
_WAIT, _LONGEST_WAIT = 16, 128  # tokens between trials
_LEARN = 1 / 12  # weight of a new observation of acceptance
_HOPE = 0.8  # acceptance at depths that were never reached
_FORGET = 1 / 50  # how fast a depth that is not reached goes back to that


class Adaptive:
    """Members:
    accept: float32 [depth], the share of paths at each depth that went on, of those that had a child to go on to.
    on: whether guesses are asked for.
    """

    def __init__(self, depth: int) -> None:
        self.accept = np.full(depth, _HOPE, np.float32)
        self.on = True
        self._plain: deque[float] = deque(maxlen=_WINDOW)  # seconds of rounds without guesses
        self._rounds: deque[tuple[int, float]] = deque(maxlen=_WINDOW)  # tokens and seconds of rounds with some
        self._draft_seconds = 0.0  # per guessed token
        self._wait, self._left = (
            _WAIT,
            0,
        )  # tokens without speculation: of the next pause, and still to come of this one

    def depth(self, cost: CostModel, past: int) -> int:
        """How deep to guess in the next round; 0: not at all."""
        if not len(self.accept) or len(self._plain) < _PLAIN_FIRST or not self.on:
            return 0
        best, found, reach, expected = 1 / self._seconds(cost, 0, past), 0, 1.0, 1.0
        for depth, rate in enumerate(self.accept.tolist(), start=1):
            reach *= rate
            expected += reach
            gain = expected / self._seconds(cost, depth, past)
            if gain > best:
                best, found = gain, depth
        return max(found, 1)  # that nothing pays is for the clock to say: estimates of unseen sizes may be wrong

    def _seconds(self, cost: CostModel, depth: int, past: int) -> float:
        return max(1e-9, cost.seconds(1 + depth, past) + depth * self._draft_seconds)

    def observe(self, tree: TokenTree, outcome: Outcome, *, seconds: float, draft_seconds: float) -> None:
        """Take a round in. ``seconds``: of all of it; ``draft_seconds``: of growing the tree."""
        came, guesses = len(outcome.path), len(tree.tokens) - 1
        if not guesses:
            self._plain.append(seconds)
            self._pause(came)
            return
        for depth in range(len(self.accept)):
            went_on = depth < came - 1
            if depth < came and (went_on or outcome.path[depth] in tree.parents):
                self.accept[depth] += _LEARN * (went_on - self.accept[depth])
            else:  # what is not tried any more would never be found to have changed
                self.accept[depth] += _FORGET * (_HOPE - self.accept[depth])
        self._draft_seconds += _LEARN * (draft_seconds / guesses - self._draft_seconds)
        self._rounds.append((came, seconds))
        if len(self._rounds) >= (_ROUNDS if self._wait == _WAIT else _TRIAL):
            self._judge()

    def _pause(self, came: int) -> None:
        if self.on:
            return
        self._left -= came
        if self._left <= 0:
            self.on = True
            self._rounds.clear()

    def _judge(self) -> None:
        tokens, seconds = zip(*self._rounds, strict=True)
        if sum(tokens) * median(self._plain) >= len(seconds) * median(seconds):
            self._wait = _WAIT
            return
        self.on, self._left = False, self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
