"""Rounds of a text that go on in the compiled loop while Python reads the tokens of the rounds before.

A pass of a large model takes longer than a reader likes to wait, so each round is read as soon as it has ended. Without a
flight the target would stand still until Python has handed the tokens on and asks for the next round. In a flight the loop
begins the next round by itself. It is at most one round ahead of its reader.

For everything else the rounds that were not read do not exist: the text and its cache have the rows of those that were. Who
is about to use the target, or the cache of the text, ends the flight first (``land``), and the rounds that were not read are
written again by whoever needs them. The tokens are the same, because a token is a function of the text before it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence

from edgedec.runtime.base.pause import Pause
from edgedec.runtime.loop.inputs import Lender, LendingState
from edgedec.runtime.loop.rounds import RoundsCall
from edgedec.runtime.protocols import I32

__all__ = ["Flight"]

_LOG = logging.getLogger(__name__)


def _nothing() -> None:
    """Finish nothing."""


class Flight:
    """A call of the library that runs in a thread of its own.

    The text owns it. Targets and caches know it by weak references, and it lands when the text is dropped.

    Parameters:
        call: the call, whose arguments are set.
        lent: the target's lender and the cache of the text, and those of the draft models.
        length: tokens of the text.
        text: int32 [positions + 1], the array of the text.
        finish: called when it has landed.

    Members:
        call: the parameter of this name.
        length: tokens of the text, with those of the rounds that were read.
    """

    def __init__(
        self,
        call: RoundsCall,
        lent: Sequence[tuple[Lender, LendingState]],
        length: int,
        text: I32,
        finish: Callable[[], None] = _nothing,
    ) -> None:
        self.call, self._lent, self.length, self._text, self._finish = call, lent, length, text, finish
        self._state = lent[0][1]
        self._read, self._rounds, self._landed = 0, 0, False
        own = weakref.ref(self)

        def land() -> None:
            if (flight := own()) is not None:
                flight.land()

        for lender, state in lent:
            lender.flight, state.land = own, land

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
        self._read, self.length = end, self.length + int(self.call.texts[0].path_sizes[begin:end].sum())
        self._state.advance(self.length - 1, self._text, held=True)
        return begin, self._read

    def land(self) -> None:
        """End the flight after the pass that is running. What was not read is forgotten. A second call does nothing."""
        if self._landed:
            return
        if not self.call.halt(self):  # before anything else, because an interruption may come after each statement
            return
        for lender, state in self._lent:
            lender.flight = state.land = None
        self._state.advance(self.length - 1, self._text)
        self._finish()
        self._landed = True
        self._lent, self._finish = (), _nothing  # a drafter that is released takes its model along

    def __del__(self) -> None:
        self.land()
