"""Statistics of the rounds of an answer, and their duration in the target's time.

The simulator of a simulated device runs on the host, and one second of the host may be a millisecond of the device.
Therefore the host's clock counts only while the host itself works; while it waits for the target, the seconds that the
target reports for the pass count instead. If the target is the host's own CPU, the two are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from edgedec.runtime.protocols import Outcome, State, TokenTree

__all__ = ["Phase", "RoundClock", "RoundSeconds", "Rounds"]


@dataclass(kw_only=True, slots=True)
class RoundSeconds:
    """The seconds of one round. ``device`` is reported by the target; the others are measured on the host.

    Members:
        draft: growing the tree.
        device: running the pass.
        ahead: growing the next tree during the pass.
        verify: preparing the pass, and accepting a path after it.
        commit: committing the path's rows (device time if the target reports it), and updating the draft.
    """

    draft: float = 0.0
    device: float = 0.0
    ahead: float = 0.0
    verify: float = 0.0
    commit: float = 0.0

    @property
    def overrun(self) -> float:
        """Time the host kept drafting after the pass had finished."""
        return self.ahead - self.device if self.ahead > self.device else 0.0

    @property
    def drafting(self) -> float:
        """Drafting time that did not overlap with a pass."""
        return self.draft + self.overrun

    @property
    def total(self) -> float:
        """Seconds from the beginning of the round to its end."""
        return self.drafting + self.device + self.verify + self.commit


class Phase:
    """A stopwatch for one kind of work: ``with phase:`` adds the seconds of its body to ``seconds``."""

    __slots__ = ("_began", "_clock", "seconds")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += self._clock() - self._began

    def take(self) -> float:
        """Return the seconds and reset them to zero."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class RoundClock:
    """The phases of a round. Time outside of them, such as waiting for a pass, is not counted."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.reading, self.drafting, self.ahead = Phase(clock), Phase(clock), Phase(clock)
        self.verifying, self.committing, self.observing = Phase(clock), Phase(clock), Phase(clock)

    def take(self, pass_seconds: float, state: State) -> RoundSeconds:
        """Return the seconds of the round that ends now and start the next round."""
        committing = self.committing.take()
        device_commit = state.commit_seconds  # None if the host commits
        return RoundSeconds(
            draft=self.drafting.take(),
            device=pass_seconds,
            ahead=self.ahead.take(),
            verify=self.verifying.take(),
            commit=(committing if device_commit is None else device_commit) + self.observing.take(),
        )


@dataclass(kw_only=True)
class Rounds:
    """Statistics of the rounds of one answer. Seconds are sums over all rounds.

    ``draft_seconds``, ``verify_seconds`` and ``commit_seconds`` add up to the duration of the rounds. Drafting while a pass
    was running is in none of them, except for the part after the end of the pass, which is in ``draft_seconds``.

    Members:
        accepted: accepted[d] is the number of rounds that accepted a guess at depth d + 1.
    """

    count: int = 0  # rounds
    drafted: int = 0  # nodes of all trees, without their roots
    accepted: list[int] = field(default_factory=list)
    read_seconds: float = 0.0  # the draft's reading of the prompt
    draft_seconds: float = 0.0  # growing trees
    verify_seconds: float = 0.0  # running passes and accepting paths
    commit_seconds: float = 0.0  # committing paths and updating the draft
    ahead: int = 0  # trees grown while a pass was running
    ahead_used: int = 0  # trees among them that the next round used
    ahead_seconds: float = 0.0  # growing all of them
    hidden_seconds: float = 0.0  # growing those that were used: drafting time that their rounds saved
    overrun_seconds: float = 0.0  # the part of ``ahead_seconds`` after the end of a pass

    @property
    def seconds(self) -> float:
        """Seconds of all rounds, without the passes over the prompt."""
        return self.draft_seconds + self.verify_seconds + self.commit_seconds

    @property
    def saved_seconds(self) -> float:
        """Time that drafting during passes saved over drafting between them; negative if it cost time."""
        return self.hidden_seconds - self.overrun_seconds

    def add(self, seconds: RoundSeconds) -> None:
        """Add a round without guesses."""
        self.count += 1
        self.draft_seconds += seconds.drafting
        self.verify_seconds += seconds.device + seconds.verify
        self.commit_seconds += seconds.commit
        if seconds.ahead:
            self.ahead_seconds += seconds.ahead
            self.overrun_seconds += seconds.overrun

    def observe(self, tree: TokenTree, outcome: Outcome, seconds: RoundSeconds) -> None:
        """Add the statistics of one round."""
        self.add(seconds)
        if (guesses := len(tree.tokens) - 1) == 0:
            return
        self.drafted += guesses
        for depth in range(len(outcome.path) - 1):
            if depth == len(self.accepted):
                self.accepted.append(0)
            self.accepted[depth] += 1
