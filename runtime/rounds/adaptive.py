"""Adaptive speculation: decide from the acceptance and the times of this run whether to speculate, and in which size.

The decision compares two speeds: a round without guesses, computed from the cost model and the last rounds, and the last
rounds with guesses. Medians are used because on a busy machine a single round may take as long as thirty others. If
speculation is slower, it stops after six rounds. It is tried again after 16 tokens, and after each failed trial the wait
doubles, up to 128 tokens, so that trials cost about one percent of the time where speculation does not help.

Several texts that are written together share the passes, and the time of each is that of all. So what counts is the speed of
all texts: the tokens of the others, which do not depend on the decision, are added to those of this text. Of the time for
drafting, in passes that the texts share as well, each text decides on its own part; the others' parts, and the work of the
host for their rounds, are added to all alternatives. The rows of the others change from round to round, and the time of a
pass with them. Therefore each round is compared with a pass beside the rows that the others had in that round, and the
tokens of the others are those that they got in it.

Where many texts draft, one that stops saves little. Therefore the rounds are also compared with rounds in which no text has
guesses. Guesses stop if both this text and all texts together have fewer tokens per second with them.

Source: derived here; the size is the argmax of (1 + E[accepted]) / seconds, as in 2211.17192 section 3.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import ref

from edgedec.host.rate_limit import RateLimitedLog
from edgedec.runtime.base.median import median
from edgedec.runtime.protocols import F32, CostModel, Limits, Outcome, TokenTree, TreePolicy, TreeSize
from edgedec.runtime.rounds.acceptance import RankAcceptance

__all__ = ["Adaptive"]

_LOG = logging.getLogger(__name__)

_ROUNDS = 6  # rounds with guesses before speculation may be judged too slow
_TRIAL = 3  # rounds with guesses of a later trial
_WINDOW = 8  # rounds that the decision is based on
_MOST = 1.5  # largest duration of a round that counts, relative to the median of the last rounds
_WAIT, _LONGEST_WAIT = 16, 128  # tokens without guesses before the next trial: the first wait, and the longest
_MEMORY = 12  # passes that the average of the other texts' tokens from a row covers
_RESIZE = 4  # rounds between two decisions about the size, because comparing many sizes takes time, too


@dataclass(slots=True)
class _Round:
    """A round with guesses.

    Members:
        tokens: number of tokens that this text got.
        seconds: duration.
        draft_seconds: seconds of drafting.
        nodes: rows of this text.
        pass_seconds: duration of the pass.
        plain: seconds that the pass would have taken without the guesses of this text.
        bare: seconds that it would have taken without the guesses of any text.
        shared: tokens that the other texts got from the pass.
    """

    tokens: int
    seconds: float
    draft_seconds: float
    nodes: int
    pass_seconds: float
    plain: float = 0.0
    bare: float = 0.0
    shared: float = 0.0


class Adaptive:
    """The decision whether to guess in the next round, and the size of its tree.

    Parameters:
        depth: maximum depth of a path.
        cost: duration of a pass.

    Members:
        acceptance: the measured acceptance by depth and rank.
        on: whether speculation is on.
        texts: number of texts that are written together.
    """

    def __init__(self, depth: int, cost: CostModel) -> None:
        self.on, self.texts = True, 1
        self._cost = cost
        self._rounds: deque[_Round] = deque(maxlen=_WINDOW)  # rounds with guesses
        self._open: _Round | None = None  # the last round, until the rows and tokens of the others in it are known
        self._plain_other: deque[float] = deque(maxlen=_WINDOW)  # ``_other`` of rounds without guesses
        self._plain_seconds = 0.0  # seconds of a pass in which no text has guesses
        self._shared = 0.0  # expected tokens that the other texts get from the next pass
        self._tokens_per_row = 0.0  # mean of the tokens that the other texts get from one of their rows
        self._other: deque[float] = deque(maxlen=_WINDOW)  # seconds of a round that are neither pass nor draft
        self._calls: deque[float] = deque(maxlen=_WINDOW)  # seconds per level of a tree, which is a call of the draft
        self._without = 0  # tokens since the last guess
        self._wait = _WAIT
        self._enough = _ROUNDS
        self._past = 0  # cached rows in the last round
        self.acceptance = RankAcceptance(depth)
        # The last decision: for which limits, size; and for which policy, which is not kept alive, because it may hold the
        # grammar of an answer.
        self._size: tuple[Limits, Limits] | None = None
        self._sized: ref[TreePolicy] | None = None
        self._age = 0  # rounds since the last decision about the size
        self._log = RateLimitedLog(_LOG)
        self._logged_nodes = 0

    @property
    def accept(self) -> F32:
        """The measured acceptance, float32 [depth, ranks], as policies take it."""
        return self.acceptance.table

    def begin(self) -> None:
        """Start a new answer. If speculation is off it is tried again at once, because the new text may be different."""
        if not self.on:
            self._wait = _WAIT
            self._start_trial()

    def share(self, others: int, rows: int, tokens: int, plain_seconds: float) -> None:
        """Expect ``others`` other texts in the next pass, with the rows and tokens that they had in the last one.

        Parameters:
            others: number of the other texts.
            rows, tokens: number of their rows, and of the tokens that they get from these.
            plain_seconds: duration of a pass in which no text has guesses.
        """
        self._plain_seconds = plain_seconds
        if self._open is not None:
            self._compare(self._open, float(tokens))
            self._open = None
        if others + 1 != self.texts:
            self.texts, self._tokens_per_row = others + 1, tokens / max(1, rows)
        elif others:
            self._tokens_per_row += (tokens / max(1, rows) - self._tokens_per_row) / _MEMORY
        # The rows change faster than what they are worth, and a pass is priced with as many rows as there are now.
        self._shared = max(float(others), self._tokens_per_row * rows)

    def _compare(self, done: _Round, shared: float) -> None:
        """Set the tokens that the others got in a round, and what its pass would have taken without guesses.

        Beside other texts these seconds are longer if the pass was longer than expected, because what is expected follows
        a slower machine, or longer texts, after some passes only.
        """
        done.plain, done.bare, done.shared = self._cost.seconds(1, self._past), self._plain_seconds, shared
        if self.texts > 1:
            slower = max(1.0, done.pass_seconds / max(1e-9, self._cost.seconds(done.nodes, self._past)))
            done.plain, done.bare = done.plain * slower, done.bare * slower

    def _others_seconds(self) -> float:
        """Return the part of a round's seconds that the other texts decide on, without the pass."""
        others = self.texts - 1
        if not others or not self._other:
            return 0.0
        drafting = median([done.draft_seconds for done in self._rounds]) if self._rounds else 0.0
        return others * (median(self._other) + drafting / self.texts)

    def size(self, policy: TreePolicy, limits: Limits, past: int) -> Limits:
        """Return the limits of the next round's tree; its depth is 0 if there shall be no guesses.

        Parameters:
            policy: grows the tree. If it has no sizes to choose from, it chooses the size itself, within ``limits``.
            limits: bounds of the tree.
            past: cached rows.
        """
        if limits.nodes == 1 and not limits.depth:
            return limits
        if not self.on or limits.nodes <= 1:
            return replace(limits, nodes=1, depth=0)
        self._age += 1
        known = (
            self._size is not None and self._sized is not None and self._sized() == policy and self._size[0] == limits
        )
        if self._size is None or not known or self._age >= _RESIZE:
            self._size, self._age = (limits, self._fastest(policy, limits, past)), 0
            self._sized = ref(policy)
        return self._size[1]

    def _fastest(self, policy: TreePolicy, limits: Limits, past: int) -> Limits:
        """Return the size with the most tokens per second. It has at least one guess.

        Estimates for sizes that were never run may be wrong, so only measured rounds turn speculation off (``_judge``).
        """
        sizes = policy.sizes(limits, self.accept)
        if not sizes:
            return limits
        cost, call = self._cost, median(self._calls) / self.texts if self._calls else 0.0
        shared, others = self._shared, self._others_seconds()
        passes = {nodes: cost.seconds(nodes, past) + others for nodes in {size.nodes for size in sizes}}

        def speed(size: TreeSize) -> float:
            return (size.tokens + shared) / max(1e-9, passes[size.nodes] + size.depth * call)

        best = max(sizes, key=speed)
        if best.nodes != self._logged_nodes and self._log.on:
            self._logged_nodes = best.nodes
            self._log.info(
                "depth",
                "%d guesses a round: %.0f %% of the first are accepted; a pass of 1 takes %.2f ms, of %d %.2f ms",
                *(best.nodes - 1, 100 * self.accept[0, 0], 1e3 * cost.seconds(1, past)),
                *(best.nodes, 1e3 * cost.seconds(best.nodes, past)),
            )
        return replace(limits, nodes=best.nodes, depth=best.depth)

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
        self._open = None
        if not guesses:
            self._without += tokens
            self._plain_other.append(self._other[-1])
            if self._without >= self._wait:
                self._start_trial()
            return
        self._without = 0
        self.acceptance.observe(tree, outcome)
        self._calls.append(draft_seconds / _levels(tree))
        self._open = _Round(tokens, seconds, draft_seconds, 1 + guesses, pass_seconds)
        self._compare(self._open, self._shared)  # until ``share`` knows more
        self._rounds.append(self._open)
        if len(self._rounds) >= self._enough:
            self._judge()

    def _start_trial(self) -> None:
        """Turn speculation on for a few rounds and expect acceptance to have changed."""
        if not self.on:
            self._log.info("on", "speculation is tried again, after %d tokens without guesses", self._without)
        self.on, self._without, self._enough = True, 0, _TRIAL
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._rounds.clear()
        self.acceptance.doubt()
        self._size = None

    def _judge(self) -> None:
        """Turn speculation off if the last rounds with guesses were slower than plain decoding."""
        rounds, other = self._rounds, median(self._other)
        work = other + self._others_seconds()
        plain = [done.plain + work for done in rounds]
        host = (self.texts - 1) * other  # ``seconds`` has the drafting of all texts, but not this
        tokens, shared = sum([done.tokens for done in rounds]), sum([done.shared for done in rounds])
        # Each round is compared with one beside the same rows of the others, because their number changes.
        ratios = [(done.seconds + host) / max(1e-9, alone) for done, alone in zip(rounds, plain, strict=True)]
        if self.texts == 1:
            pays = tokens >= len(rounds) * median(ratios)
        else:
            pays = tokens + shared >= _total([1 + done.shared for done in rounds], ratios)
        if self.texts > 1 and pays:  # it must pay against rounds in which no text has guesses, too
            work = self.texts * (median(self._plain_other) if self._plain_other else other)
            needed = _total(
                [1.0] * len(rounds), [(done.seconds + host) / max(1e-9, done.bare + work) for done in rounds]
            )
            # A text whose few guesses are right goes on if the guesses of all pay, although it has little of their time.
            pays = max(tokens, (tokens + shared) / self.texts) >= needed
        if pays:
            self._wait, self._enough = _WAIT, _ROUNDS
        else:
            self.on = False
            self._log.info(
                "off",
                "speculation is off: %d rounds of %.2f ms gave %d tokens, and plain decoding takes %.2f ms per token",
                *(len(rounds), 1e3 * median([done.seconds for done in rounds]), tokens, 1e3 * median(plain)),
            )


def _total(tokens: Sequence[float], ratios: Sequence[float]) -> float:
    """Return the sum of ``tokens`` times ``ratios``, in which a ratio far above the median is taken as a disturbance."""
    most = _MOST * median(ratios)
    return sum([count * min(ratio, most) for count, ratio in zip(tokens, ratios, strict=True)])


def _levels(tree: TokenTree) -> int:
    """Return the number of levels below the root of a tree that has guesses."""
    depths = [0]
    for parent in tree.parents[1:].tolist():
        depths.append(depths[parent] + 1)
    return max(depths)
