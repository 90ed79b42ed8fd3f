"""The rows of a sequence that a state keeps: all of them, or those of a ring, which a window and its sinks can show.

A ring keeps the first ``sinks`` rows of a sequence, its head, and of ``length`` committed rows those from the floor on,
which is ``length - window + 1 - slack``. The slack is the number of rows of the largest pass. It suffices:

- **Passes.** The rows of a pass, a chunk of a prompt or a tree, have positions from ``length`` on, because parents precede
  their children, so they see no row below ``length - window + 1``. Nothing is dropped before the pass is committed.
  Therefore a ring has at most ``sinks + window - 1 + 2 * slack`` rows at a time: its own, and up to ``slack`` of a pass.
- **Commits.** The accepted rows of a tree move together within the rows of its pass, which are all there. Then the length
  grows, and the floor with it. Rows that were not accepted lie above the length, and the next pass writes over them.
- **Going back.** After the first n rows, a query sees the rows from ``n - window + 1`` on. They are there if n is at most
  ``slack`` less than the greatest length that the sequence had. A longer way back leads into rows that were dropped. Then
  only the head is of use, and the sequence can go back to ``min(n, sinks)`` rows. ``truncate`` returns the length that it
  went back to, and its caller runs the rest again.
- **Forks.** A fork has the same rows and the same floor.

Where rows are held in blocks, the head is rounded up and the floor is rounded down to whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Capacity", "reach"]


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The rows of a sequence that the states of one kind keep.

    Members:
        window: number of last positions that a query sees besides the sinks; None: all rows are kept.
        sinks: number of first rows that every query sees.
        slack: rows of the largest pass.
        unit: rows of a block.
    """

    window: int | None = None
    sinks: int = 0
    slack: int = 0
    unit: int = 1

    @property
    def head(self) -> int:
        """Number of first rows that are never dropped."""
        return _up(self.sinks, self.unit)

    def floor(self, length: int) -> int:
        """Return the first row after the head that a sequence of ``length`` committed rows keeps."""
        if self.window is None:
            return self.head
        return max(self.head, (length - self.window + 1 - self.slack) // self.unit * self.unit)

    def rows(self, positions: int) -> int:
        """Return the most rows of a sequence of up to ``positions`` rows, including those of a pass, in whole blocks.

        A range of rows may begin with the last row of a block, so it may need one block more than its rows fill.
        """
        positions = _up(positions, self.unit)
        if self.window is None:
            return positions
        last = self.window - 1 + 2 * self.slack
        return min(positions, self.head + _up(last + self.unit - 1, self.unit))

    def holds(self, length: int, floor: int) -> bool:
        """Return whether the first ``length`` rows can be continued if those from the head to ``floor`` were dropped."""
        return length <= self.head or length >= self.least_position(floor)

    def least_position(self, floor: int) -> int:
        """Return the least position of a row that sees none of the rows from the head to ``floor``, which were dropped."""
        return 0 if self.window is None or floor <= self.head else floor + self.window - 1


def reach(length: int, kept: Iterable[tuple[Capacity, int]]) -> int:
    """Return the number of first rows, at most ``length``, that all states of a sequence can go back to.

    Args:
        length: number of rows.
        kept: capacity of each kind of state, and its first row after the head that is still there.
    """
    kept = tuple(kept)
    if all(capacity.holds(length, floor) for capacity, floor in kept):
        return length
    return min(length, *(capacity.head for capacity, floor in kept if floor > capacity.head))


def _up(rows: int, unit: int) -> int:
    return -(-rows // unit) * unit
