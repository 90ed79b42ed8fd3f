"""What the rounds of an answer did, and how long they took in the target's time.

A simulated device shares the host with its simulator, and a second of it may be a millisecond of the device. So of a round
the host's time counts only where the host is at work itself; for the time in which it waits for the target counts what the
target says that the pass took. Where the target is this machine both are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgedec.runtime.protocols import Outcome, State, TokenTree

__all__ = ["RoundSeconds", "Rounds", "Watch", "commit_seconds"]


class Watch:
    """Laps of a clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()

    def lap(self) -> float:
        """Seconds since the last lap ended."""
        now = self._clock()
        seconds, self._began = now - self._began, now
        return seconds


def commit_seconds(state: State, host_seconds: float) -> float:
    """Of the last commit, which took so many seconds of the host.

    A state whose commits are a device's work has ``commit_seconds``: what the last one took in the device's time.
    """
    found: float = getattr(state, "commit_seconds", host_seconds)  # isinstance with a protocol takes 10 microseconds
    return found


@dataclass(kw_only=True)
class RoundSeconds:
    """Of one round. ``device``: of the pass, as the target says; the others are the host's.

    ``draft``: growing the tree; ``ahead``: growing the next one, during the pass; ``verify``: after the pass; ``commit``.
    """

    draft: float = 0.0
    device: float = 0.0
    ahead: float = 0.0
    verify: float = 0.0
    commit: float = 0.0

    @property
    def overrun(self) -> float:
        """For how long the device had ended and the next tree had not."""
        return max(0.0, self.ahead - self.device)

    @property
    def drafting(self) -> float:
        """What nothing hid."""
        return self.draft + self.overrun

    @property
    def total(self) -> float:
        return self.drafting + self.device + self.verify + self.commit


@dataclass(kw_only=True)
class Rounds:
    """What the rounds of one answer did. Seconds add up; ``accepted[d]``: how many paths accepted a guess at depth d + 1.

    ``draft_seconds``, ``verify_seconds`` (with the passes) and ``commit_seconds`` together are the rounds' seconds. What was
    drafted while a pass was under way is in none of them, but for what came later than the pass's end.
    """

    count: int = 0
    drafted: int = 0  # nodes beyond the root
    accepted: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0  # of the target's passes over the prompt
    read_seconds: float = 0.0  # of the draft, with the prompt
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    ahead: int = 0  # trees that were grown while a pass was under way
    ahead_used: int = 0  # and that were the next round's
    ahead_seconds: float = 0.0  # that growing ahead took
    hidden_seconds: float = (
        0.0  # of these, that growing the used ones took: rounds that found their tree were spared it
    )
    overrun_seconds: float = 0.0  # of these, that came after the pass's end

    @property
    def seconds(self) -> float:
        """Of all rounds, the prompt's passes left out."""
        return self.draft_seconds + self.verify_seconds + self.commit_seconds

    @property
    def saved_seconds(self) -> float:
        """How much longer the same rounds would have taken one thing after another; negative: shorter."""
        return self.hidden_seconds - self.overrun_seconds

    def observe(self, tree: TokenTree, outcome: Outcome, seconds: RoundSeconds) -> None:
        self.count += 1
        self.drafted += len(tree.tokens) - 1
        for depth in range(len(outcome.path) - 1):
            if depth == len(self.accepted):
                self.accepted.append(0)
            self.accepted[depth] += 1
        self.draft_seconds += seconds.drafting
        self.verify_seconds += seconds.device + seconds.verify
        self.commit_seconds += seconds.commit
        self.ahead_seconds += seconds.ahead
        self.overrun_seconds += seconds.overrun
