"""Whether to speculate, and how deep: from what acceptance and time turned out to be in this run.

Two things decide: the seconds of a round without guesses, as the cost model and the last rounds tell, and tokens per second
over the last rounds with some, from medians, for one round on a busy machine takes as long as thirty. Speculation that is
slower stops after six rounds; then it is tried again after 16 tokens, and after each trial that fails a longer while, so
that trials cost about one percent where nothing can be gained.
Source: derived here; the depth is the argmax of (1 + E[accepted]) / seconds, as in 2211.17192 section 3.
"""

from __future__ import annotations

import logging
from collections import deque
from statistics import median

import numpy as np

from edgedec.rate_limit import RateLimitedLog
from edgedec.runtime.protocols import CostModel, Outcome, TokenTree

__all__ = ["Adaptive"]

_LOG = logging.getLogger(__name__)

_ROUNDS = 6  # with guesses, before speculation may be found too slow
_TRIAL = 3  # with guesses, when it is tried again
_WINDOW = 8  # rounds that count
_WAIT, _LONGEST_WAIT = 16, 128  # tokens without a guess, until one is hoped for again
_HOPE = 0.6  # acceptance before anything was seen: a guess too few costs less than many wrong ones
_TRUST, _MEMORY = 2, 12  # observations that the hope counts for, and that are remembered


class Adaptive:
    """Parameters:
        depth: of a path at most.
        cost: of a pass.

    Members:
        accept: float32 [depth], the share of paths at each depth that went on, of those that had a child to go on to. A
            depth that was never reached is presumed to be like the one above it.
        on: whether guesses are asked for.
    """

    def __init__(self, depth: int, cost: CostModel) -> None:
        self.on = True
        self._cost = cost
        self._rounds: deque[tuple[int, float]] = deque(maxlen=_WINDOW)  # tokens and seconds of rounds with guesses
        self._other: deque[float] = deque(maxlen=_WINDOW)  # seconds of a round that are neither pass nor draft
        self._draft_seconds = 0.0  # per guessed token
        self._without = 0  # tokens since the last guess
        self._wait = _WAIT
        self._enough = _ROUNDS
        self._past = 0  # rows, in the last round
        self.accept = np.full(depth, _HOPE, np.float32)
        self._counts = [0] * depth
        self._log = RateLimitedLog(_LOG)
        self._logged_depth = 0

    def begin(self) -> None:
        """A new answer begins. It may be of another kind, so what did not pay in the last one is tried again at once."""
        if not self.on:
            self._wait = _WAIT
            self._hope_again()

    def depth(self, past: int) -> int:
        """How deep to guess in the next round; 0: not at all."""
        if not self.on or not len(self.accept):
            return 0
        cost, draft = self._cost, self._draft_seconds
        best, found, reach, expected = 1 / max(1e-9, cost.seconds(1, past)), 0, 1.0, 1.0
        for depth, rate in enumerate(self.accept.tolist(), start=1):
            reach *= rate
            expected += reach
            gain = expected / max(1e-9, cost.seconds(1 + depth, past) + depth * draft)
            if gain > best:
                best, found = gain, depth
        found = max(found, 1)  # that nothing pays is for the clock to say: estimates of unseen sizes may be wrong
        if found != self._logged_depth and self._log.on:
            self._logged_depth = found
            self._log.info(
                "depth",
                "%d guesses a round: %.0f %% of the first are accepted; a pass of 1 takes %.2f ms, of %d %.2f ms",
                *(found, 100 * self.accept[0], 1e3 * cost.seconds(1, past)),
                *(1 + found, 1e3 * cost.seconds(1 + found, past)),
            )
        return found

    def observe(
        self,
        tree: TokenTree,
        outcome: Outcome,
        *,
        seconds: float,
        draft_seconds: float,
        pass_seconds: float,
        past: int = 0,
    ) -> None:
        """Take a round in, over ``past`` rows. ``seconds``: of all of it; in ``draft_seconds`` of these guesses were made.

        Guesses made while a pass was under way took no seconds of the round, as long as the pass lasted.
        """
        came, guesses, self._past = len(outcome.path), len(tree.tokens) - 1, past
        self._other.append(seconds - draft_seconds - pass_seconds)
        if not guesses:
            self._without += came
            if self._without >= self._wait:
                self._hope_again()
            return
        self._without = 0
        self._learn(tree, outcome)
        self._draft_seconds += (draft_seconds / guesses - self._draft_seconds) / _MEMORY
        self._rounds.append((came, seconds))
        if len(self._rounds) >= self._enough:
            self._judge()

    def _learn(self, tree: TokenTree, outcome: Outcome) -> None:
        accept, counts, came = self.accept, self._counts, len(outcome.path)
        parents = set(tree.parents.tolist())
        for depth in range(min(came, len(accept))):
            went_on = depth < came - 1
            if went_on or int(outcome.path[depth]) in parents:
                counts[depth] = min(counts[depth] + 1, _MEMORY)
                accept[depth] += (went_on - accept[depth]) / (_TRUST + counts[depth])
        for depth in range(1, len(accept)):
            if not counts[depth]:
                accept[depth] = accept[depth - 1]

    def _hope_again(self) -> None:
        """What is not tried would never be found to have changed."""
        if not self.on:
            self._log.info("on", "speculation is tried again, after %d tokens without guesses", self._without)
        self.on, self._without, self._enough = True, 0, _TRIAL
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._rounds.clear()
        self.accept[:] = np.maximum(self.accept, _HOPE)
        self._counts = [0] * len(self._counts)

    def _judge(self) -> None:
        tokens, seconds = zip(*self._rounds, strict=True)
        plain = self._cost.seconds(1, self._past) + median(self._other)
        if sum(tokens) * plain >= len(seconds) * median(seconds):
            self._wait, self._enough = _WAIT, _ROUNDS
        else:
            self.on = False
            self._log.info(
                "off",
                "speculation is off: %d rounds brought %d tokens in %.2f ms each, and plain decoding takes %.2f ms a token",
                *(len(seconds), sum(tokens), 1e3 * median(seconds), 1e3 * plain),
            )
