"""What the rounds of an answer did, and how long they took in the target's time.

A simulated device shares the host with its simulator, and a second of the host may be a millisecond of the device. Therefore
the host's time counts only while the host itself is at work; while it waits for the target, the seconds that the target
reports for the pass count instead. Where the target is this machine the two are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from edgedec.runtime.protocols import Outcome, State, TokenTree

__all__ = ["Phase", "RoundClock", "RoundSeconds", "Rounds"]


@dataclass(kw_only=True)
class RoundSeconds:
    """The seconds of one round. ``device`` is what the target reports for the pass; the others are the host's.

    Members:
        draft: growing the tree.
        ahead: growing the next tree, during the pass.
        verify: making the pass, and accepting a path after it.
        commit: keeping the path's rows, and telling the draft.
    """

    draft: float = 0.0
    device: float = 0.0
    ahead: float = 0.0
    verify: float = 0.0
    commit: float = 0.0

    @property
    def overrun(self) -> float:
        """Time the host kept drafting after the pass had finished."""
        return max(0.0, self.ahead - self.device)

    @property
    def drafting(self) -> float:
        """Drafting time that no pass hid."""
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
        """Return the seconds, and begin again at zero."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class RoundClock:
    """The phases of a round. Time that is spent in none of them, as in waiting for a pass, is not counted."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.reading, self.drafting, self.ahead = Phase(clock), Phase(clock), Phase(clock)
        self.verifying, self.committing, self.observing = Phase(clock), Phase(clock), Phase(clock)

    def take(self, pass_seconds: float, state: State) -> RoundSeconds:
        """Return the seconds of the round that ends now; the next one begins."""
        committing = self.committing.take()
        own = state.commit_seconds  # the device's, where committing is its work
        return RoundSeconds(
            draft=self.drafting.take(),
            device=pass_seconds,
            ahead=self.ahead.take(),
            verify=self.verifying.take(),
            commit=(committing if own is None else own) + self.observing.take(),
        )


@dataclass(kw_only=True)
class Rounds:
    """What the rounds of one answer did. Seconds are sums over all rounds.

    ``draft_seconds``, ``verify_seconds`` (with the passes) and ``commit_seconds`` add up to the seconds of the rounds.
    Drafting while a pass was under way is in none of them, except for the part that came after the end of the pass.

    Members:
        accepted: by depth, the number of paths that accepted a guess at depth d + 1.
    """

    count: int = 0
    drafted: int = 0  # nodes beyond the root
    accepted: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0  # the target's passes over the prompt
    read_seconds: float = 0.0  # the draft's reading of the prompt
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    ahead: int = 0  # trees grown while a pass was under way
    ahead_used: int = 0  # of these, trees that the next round used
    ahead_seconds: float = 0.0  # growing all of them
    hidden_seconds: float = 0.0  # growing the used ones, which their rounds were spared
    overrun_seconds: float = 0.0  # the part of ``ahead_seconds`` after the end of a pass

    @property
    def seconds(self) -> float:
        """Seconds of all rounds; the prompt's passes are not among them."""
        return self.draft_seconds + self.verify_seconds + self.commit_seconds

    @property
    def saved_seconds(self) -> float:
        """How much longer the same rounds would have taken one thing after another; negative: shorter."""
        return self.hidden_seconds - self.overrun_seconds

    def observe(self, tree: TokenTree, outcome: Outcome, seconds: RoundSeconds) -> None:
        """Add one round."""
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
