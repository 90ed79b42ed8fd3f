"""The cost model of an accelerator: estimates by the compiler's cycle model."""

from __future__ import annotations

from functools import lru_cache

from edgedec.errors import UsageError
from edgedec.hw.compiler.cycles import cycles
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
        """Return the seconds of a pass of ``nodes`` rows over ``past`` cached rows, with or without ``logits``.

        Raises:
            UsageError: ``nodes`` is not between 1 and the accelerator's number of slots.
        """
        config = self._program.config
        if not 1 <= nodes <= config.slots:
            raise UsageError(f"a pass has 1 to {config.slots} rows, not {nodes}")
        last = max(0, config.context - nodes)
        low = min(past, last) // _STEP * _STEP
        high = min(low + _STEP, last)
        share = (min(past, last) - low) / (high - low) if high > low else 0.0
        return (1 - share) * self._cached(nodes, low, logits) + share * self._cached(nodes, high, logits)

    def _compute(self, nodes: int, past: int, logits: bool) -> float:
        estimate = cycles(self._program, slots=nodes, committed=past, logits=logits, bandwidth=self._bandwidth)
        return estimate.seconds(self._program.config)
