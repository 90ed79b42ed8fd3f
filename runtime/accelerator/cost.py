"""The cost model of an accelerator: estimates by the compiler's cycle model."""

from __future__ import annotations

from functools import lru_cache

from edgedec.errors import UsageError
from edgedec.hw.compiler.cycles import cycles, most_committed
from edgedec.hw.compiler.program import Program

__all__ = ["CycleCost"]

# Distance in positions of the pasts for which cycles are computed. Between them they are interpolated linearly, because the
# time to read keys and values is proportional to their number.
_STEP = 64


class CycleCost:
    """A ``CostModel`` of an accelerator's passes. docs/reports/accelerator.md states the error of the estimates.

    Args:
        program: the compiled program.
        bandwidth: bytes per second of the memory; None: one beat per cycle.
    """

    def __init__(self, program: Program, bandwidth: float | None) -> None:
        self._program, self._bandwidth = program, bandwidth
        self._cached = lru_cache(maxsize=1024)(self._compute)

    def seconds(self, nodes: int, past: int, *, logits: bool = True) -> float:
        """Return the seconds of ``nodes`` rows over ``past`` cached rows, with or without ``logits``.

        More rows than slots take several passes. Several sequences in a pass read the rows of all of them, each rounded up
        to a group (``positions_read``).

        Raises:
            UsageError: ``nodes`` is less than 1.
        """
        if nodes < 1:
            raise UsageError(f"a pass has 1 row or more, not {nodes}")
        slots = self._program.config.slots
        whole, rest = divmod(nodes, slots)
        seconds = whole * self._of_pass(slots, past, logits) if whole else 0.0
        return seconds + self._of_pass(rest, past, logits) if rest else seconds

    def _of_pass(self, nodes: int, past: int, logits: bool) -> float:
        last = most_committed(self._program.config, nodes)
        low = min(past, last) // _STEP * _STEP
        high = min(low + _STEP, last)
        share = (min(past, last) - low) / (high - low) if high > low else 0.0
        return (1 - share) * self._cached(nodes, low, logits) + share * self._cached(nodes, high, logits)

    def _compute(self, nodes: int, past: int, logits: bool) -> float:
        estimate = cycles(self._program, slots=nodes, committed=past, logits=logits, bandwidth=self._bandwidth)
        return estimate.seconds(self._program.config)
