"""Rounds of texts that go on in the compiled loop while Python reads the tokens of the rounds before.

A pass of a large model takes longer than a reader likes to wait, so each round is read as soon as it has ended. Without a
flight the target would stand still until Python has handed the tokens on and asks for the next round. In a flight the loop
begins the next round by itself. It is at most one round ahead of its reader.

For everything else the rounds that were not read do not exist: texts and caches have the rows of those that were. Who
is about to use the target, or the cache of a text, ends the flight first (``land``), and the rounds that were not read are
written again by whoever needs them. The tokens are the same, because a token is a function of the text before it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgedec.runtime.base.pause import Pause
from edgedec.runtime.loop.inputs import Lender, LendingState
from edgedec.runtime.loop.rounds import RoundsCall, TextRounds
from edgedec.runtime.protocols import I32

__all__ = ["Flight", "FlownText"]

_LOG = logging.getLogger(__name__)


def _nothing() -> None:
    """Finish nothing."""


@dataclass
class FlownText:
    """A text of a flight.

    Members:
        rounds: its rounds in the call.
        state: its cache.
        ids: int32 [positions + 1], the array of the text.
        length: number of its tokens, with those of the rounds that were read.
    """

    rounds: TextRounds
    state: LendingState
    ids: I32
    length: int


class Flight:
    """A call of the library that runs in a thread of its own.

    The texts own it. Targets and caches know it by weak references, and it lands when the texts are dropped.

    Parameters:
        call: the call, whose arguments are set.
        lender: the target's.
        texts: the texts.
        drafts: lenders and caches of the draft models.
        finish: called when it has landed.

    Members:
        call: the parameter of this name.
    """

    def __init__(
        self,
        call: RoundsCall,
        lender: Lender,
        texts: Sequence[FlownText],
        drafts: Sequence[tuple[Lender, LendingState]] = (),
        finish: Callable[[], None] = _nothing,
    ) -> None:
        self.call, self._texts, self._finish = call, tuple(texts), finish
        self._lent = [*((lender, text.state) for text in texts), *drafts]
        self._read, self._rounds, self._landed = 0, 0, False
        own = weakref.ref(self)

        def land() -> None:
            if (flight := own()) is not None:
                flight.land()

        for lent, state in self._lent:
            lent.flight, state.land = own, land

    def is_of(self, texts: Sequence[tuple[TextRounds, int]]) -> bool:
        """Return whether its texts are these, with so many tokens."""
        return [(text.rounds, text.length) for text in self._texts] == list(texts)

    @property
    def flies(self) -> bool:
        """True until all of its rounds were read, or it has landed."""
        return not self._landed and self._read < self._rounds

    def start(self, rounds: int, pause: Pause | None) -> bool:
        """Start the rounds. Return False, without a flight, if the system gives no further thread.

        Args:
            rounds, pause: arguments of ``RoundsCall.run``.
        """
        self._rounds = rounds
        try:
            self.call.start(rounds, pause)
        except RuntimeError as error:
            _LOG.warning("loop: %s, so that the next pass begins after the tokens of the last one are read", error)
            self.land()
            return False
        return True

    def read(self) -> tuple[int, int]:
        """Wait for rounds that were not read. Return the numbers of the first one and of the one after the last."""
        begin = self._read
        end = self.call.follow(begin)
        self._read = end
        for text in self._texts:
            text.length += int(text.rounds.path_sizes[begin:end].sum())
            text.state.advance(text.length - 1, text.ids, held=True)
        return begin, end

    def land(self) -> None:
        """End the flight after the pass that is running. What was not read is forgotten. A second call does nothing."""
        if self._landed:
            return
        if not self.call.halt(self):  # before anything else, because an interruption may come after each statement
            return
        for lender, state in self._lent:
            lender.flight = state.land = None
        for text in self._texts:
            text.state.advance(text.length - 1, text.ids)
        self._finish()
        self._landed = True
        self._lent, self._finish = [], _nothing  # a drafter that is released takes its model along

    def __del__(self) -> None:
        self.land()
