"""Rounds of a text that go on in the compiled loop while Python reads the tokens of the rounds before.

A pass of a large model takes longer than a reader likes to wait, so each round is read as soon as it has ended. Without a
flight the target would stand still until Python has handed the tokens on and asks for the next round. In a flight the loop
begins the next round by itself. It is at most one round ahead of its reader.

For everything else the rounds that were not read do not exist: the text and its cache have the rows of those that were. Who
is about to use the target, or the cache of the text, ends the flight first (``land``), and the rounds that were not read are
written again by whoever needs them. The tokens are the same, because a token is a function of the text before it.
"""

from __future__ import annotations

from edgedec.runtime.loop.inputs import Lender, LendingState
from edgedec.runtime.loop.rounds import RoundsCall

__all__ = ["Flight"]


class Flight:
    """A call of the library that runs in a thread of its own. Its text has no guesses.

    Parameters:
        call: the call, whose arguments are set.
        lender: lends the target.
        state: the cache of the text.
        length: tokens of the text.

    Members:
        call: the parameter of this name.
        length: tokens of the text, with those of the rounds that were read.
    """

    def __init__(self, call: RoundsCall, lender: Lender, state: LendingState, length: int) -> None:
        self.call, self._lender, self._state, self.length = call, lender, state, length
        self._read = 0
        lender.flight, state.land = self, self.land

    def read(self) -> tuple[int, int]:
        """Wait for rounds that were not read. Return the numbers of the first one and of the one after the last."""
        begin = self._read
        self._read = self.call.follow(begin)
        self.length += self._read - begin
        self._state.advance(self.length - 1, held=True)
        return begin, self._read

    def land(self) -> None:
        """End the flight after the pass that is running. What was not read is forgotten."""
        self._lender.flight = self._state.land = None
        self.call.halt()
        self._state.advance(self.length - 1)
