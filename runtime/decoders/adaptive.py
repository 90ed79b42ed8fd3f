"""Adaptive speculation: decide from the acceptance and the times of this run whether to speculate, and how deep.

The decision compares two speeds: a round without guesses, computed from the cost model and the last rounds, and the last
rounds with guesses. Medians are used because on a busy machine a single round may take as long as thirty others. If
speculation is slower, it stops after six rounds. It is tried again after 16 tokens, and after each failed trial the wait
doubles, up to 128 tokens, so that trials cost about one percent of the time where speculation does not help.

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

_ROUNDS = 6  # rounds with guesses before speculation may be judged too slow
_TRIAL = 3  # rounds with guesses of a later trial
_WINDOW = 8  # rounds that the decision is based on
_WAIT, _LONGEST_WAIT = 16, 128  # tokens without guesses before the next trial: the first wait, and the longest
_PRIOR = 0.6  # assumed acceptance before any observation; low, because many wrong guesses cost more than a missing one
_PRIOR_WEIGHT, _MEMORY = 2, 12  # number of observations that the prior counts as; number that the average covers


class Adaptive:
    """The decision whether to guess in the next round, and how deep.

    Parameters:
        depth: maximum depth of a path.
        cost: duration of a pass.

    Members:
        accept: float32 [depth]; accept[d] is the share of accepted paths of d guesses that one more guess extended, among
            those for which the tree had one. A depth that was never reached has the value of the depth above it.
        on: whether speculation is on.
    """

    def __init__(self, depth: int, cost: CostModel) -> None:
        self.on = True
        self._cost = cost
        self._rounds: deque[tuple[int, float]] = deque(maxlen=_WINDOW)  # tokens and seconds of rounds with guesses
        self._other: deque[float] = deque(maxlen=_WINDOW)  # seconds of a round that are neither pass nor draft
        self._draft_seconds = 0.0  # seconds per guessed token
        self._without = 0  # tokens since the last guess
        self._wait = _WAIT
        self._enough = _ROUNDS
        self._past = 0  # cached rows in the last round
        self.accept = np.full(depth, _PRIOR, np.float32)
        self._counts = [0] * depth
        self._log = RateLimitedLog(_LOG)
        self._logged_depth = 0

    def begin(self) -> None:
        """Start a new answer. If speculation is off it is tried again at once, because the new text may be different."""
        if not self.on:
            self._wait = _WAIT
            self._start_trial()

    def depth(self, past: int) -> int:
        """Return the number of guesses on a path that the next round should have; 0: no guesses."""
        if not self.on or not len(self.accept):
            return 0
        cost, draft = self._cost, self._draft_seconds
        best_speed, best_depth, reach, expected = 1 / max(1e-9, cost.seconds(1, past)), 0, 1.0, 1.0
        for depth, rate in enumerate(self.accept.tolist(), start=1):
            reach *= rate
            expected += reach
            speed = expected / max(1e-9, cost.seconds(1 + depth, past) + depth * draft)
            if speed > best_speed:
                best_speed, best_depth = speed, depth
        # Estimates for sizes that were never run may be wrong, so only measured rounds turn speculation off (``_judge``).
        best_depth = max(best_depth, 1)
        if best_depth != self._logged_depth and self._log.on:
            self._logged_depth = best_depth
            self._log.info(
                "depth",
                "%d guesses a round: %.0f %% of the first are accepted; a pass of 1 takes %.2f ms, of %d %.2f ms",
                *(best_depth, 100 * self.accept[0], 1e3 * cost.seconds(1, past)),
                *(1 + best_depth, 1e3 * cost.seconds(1 + best_depth, past)),
            )
        return best_depth

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
        """Learn from a round.

        Parameters:
            tree, outcome: the guesses, and the accepted path.
            seconds: duration of the round.
            draft_seconds: drafting time in it, without drafting that happened while a pass was running.
            pass_seconds: duration of its pass.
            past: cached rows.
        """
        tokens, guesses, self._past = len(outcome.path), len(tree.tokens) - 1, past
        self._other.append(seconds - draft_seconds - pass_seconds)
        if not guesses:
            self._without += tokens
            if self._without >= self._wait:
                self._start_trial()
            return
        self._without = 0
        self._learn(tree, outcome)
        self._draft_seconds += (draft_seconds / guesses - self._draft_seconds) / _MEMORY
        self._rounds.append((tokens, seconds))
        if len(self._rounds) >= self._enough:
            self._judge()

    def _learn(self, tree: TokenTree, outcome: Outcome) -> None:
        accept, counts, length = self.accept, self._counts, len(outcome.path)
        parents = set(tree.parents.tolist())
        for depth in range(min(length, len(accept))):
            extended = depth < length - 1
            if extended or int(outcome.path[depth]) in parents:
                counts[depth] = min(counts[depth] + 1, _MEMORY)
                accept[depth] += (extended - accept[depth]) / (_PRIOR_WEIGHT + counts[depth])
        for depth in range(1, len(accept)):
            if not counts[depth]:
                accept[depth] = accept[depth - 1]

    def _start_trial(self) -> None:
        """Turn speculation on for a few rounds and forget the observations, because acceptance may have changed."""
        if not self.on:
            self._log.info("on", "speculation is tried again, after %d tokens without guesses", self._without)
        self.on, self._without, self._enough = True, 0, _TRIAL
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._rounds.clear()
        self.accept[:] = np.maximum(self.accept, _PRIOR)
        self._counts = [0] * len(self._counts)

    def _judge(self) -> None:
        """Turn speculation off if the last rounds with guesses were slower than plain decoding."""
        tokens, seconds = zip(*self._rounds, strict=True)
        plain = self._cost.seconds(1, self._past) + median(self._other)
        if sum(tokens) * plain >= len(seconds) * median(seconds):
            self._wait, self._enough = _WAIT, _ROUNDS
        else:
            self.on = False
            self._log.info(
                "off",
                "speculation is off: %d rounds of %.2f ms gave %d tokens, and plain decoding takes %.2f ms per token",
                *(len(seconds), 1e3 * median(seconds), sum(tokens), 1e3 * plain),
            )
