"""The rows of a sequence on an accelerator, whether they are on the device or run again when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgedec.errors import UsageError
from edgedec.runtime.accelerator.rows import Row
from edgedec.runtime.protocols import I32, State

__all__ = ["ProgramState", "StateOwner"]


@dataclass(frozen=True, kw_only=True)
class StateOwner:
    """The functions of a target that the states of its sequences need.

    Members:
        commit: commits rows of the last pass.
        truncated: notes that a state has lost rows.
        lend: makes the device hold a state's rows, for passes of the compiled loop, and returns their first group there.
        returned: notes that the compiled loop has committed further rows.
        goes_back: whether a state can go back to every row.
    """

    commit: Callable[[ProgramState, I32], None]
    truncated: Callable[[ProgramState], None]
    lend: Callable[[ProgramState], int]
    returned: Callable[[ProgramState, list[Row]], None]
    goes_back: bool


class ProgramState:
    """A ``LendingState`` of an accelerator.

    Parameters:
        owner: the target.
        rows: the committed rows.

    Members:
        owner, rows: the parameters of these names.
        last: rows of the last pass, until the next commit.
        length: number of committed rows.
    """

    def __init__(self, owner: StateOwner, rows: list[Row]) -> None:
        self.owner, self.rows = owner, rows
        self.last: list[Row] = []
        self.length = len(rows)
        self.commit_seconds: float | None = 0.0
        self.slot: int | None = None
        self.land: Callable[[], None] | None = None
        self._blocks = np.zeros((1, 1), np.int32)

    def commit(self, nodes: I32) -> None:
        self._land()
        self.owner.commit(self, nodes)
        self.length = len(self.rows)

    def truncate(self, length: int) -> int:
        self._land()
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot go back to {length} rows, there are {self.length}")
        if length < self.length:
            del self.rows[length:]
            self.length = length
            self.owner.truncated(self)
        return length

    def reach(self, length: int) -> int:
        return min(length, self.length)

    def fork(self) -> State:
        self._land()
        return ProgramState(self.owner, list(self.rows))

    def close(self) -> None:
        self.truncate(0)

    @property
    def goes_back(self) -> bool:
        """True if ``truncate`` can go back to every committed row."""
        return self.owner.goes_back

    def reserve(self, rows: int) -> tuple[I32, int]:
        """Make the device hold the rows. Return the table of blocks, int32 [1, 1], and the number of blocks in it.

        A sequence has its part of the cache as its one block, whose number is that of the part's first group.

        Raises:
            DeviceError: the rows had to run again, and failed.
        """
        self._land()
        self.last = []
        self._blocks[0, 0] = self.owner.lend(self)
        return self._blocks, 1

    def advance(self, length: int, text: I32, *, held: bool = False) -> None:
        """Note that the compiled loop has committed all rows up to ``length``, which are the first tokens of ``text``."""
        first = len(self.rows)
        new = [Row(token, first + at) for at, token in enumerate(text[first:length].tolist())]
        self.rows += new
        self.length = length
        self.owner.returned(self, new)

    def _land(self) -> None:
        if self.land is not None:
            self.land()
