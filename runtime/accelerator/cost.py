"""Seconds of a pass before it is run: the cycle model's, an estimate."""

from __future__ import annotations

from functools import lru_cache

from edgedec.errors import UsageError
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.program import Program

__all__ = ["CycleCost"]

_STEP = 64  # positions between two pasts that are counted; keys and values are read evenly, so a line lies between them


class CycleCost:
    """A CostModel of an accelerator's passes. Estimated: docs/accelerator.md has its error.

    Args:
        bandwidth: bytes in a second that the memory gives; None: a beat in each cycle.
    """

    def __init__(self, program: Program, bandwidth: float | None) -> None:
        self._program, self._bandwidth = program, bandwidth
        self._counted = lru_cache(maxsize=1024)(self._count)

    def seconds(self, nodes: int, past: int, *, logits: bool = True) -> float:
        """Return the seconds of a pass of ``nodes`` rows over ``past``; ``logits``: whether it computes logits.

        Raises:
            UsageError: no rows, or more than the accelerator has slots.
        """
        config = self._program.config
        if not 1 <= nodes <= config.slots:
            raise UsageError(f"a pass has 1 to {config.slots} rows, not {nodes}")
        last = max(0, config.context - nodes)
        low = min(past, last) // _STEP * _STEP
        high = min(low + _STEP, last)
        share = (min(past, last) - low) / (high - low) if high > low else 0.0
        return (1 - share) * self._counted(nodes, low, logits) + share * self._counted(nodes, high, logits)

    def _count(self, nodes: int, past: int, logits: bool) -> float:
        found = cycles(self._program, slots=nodes, committed=past, logits=logits, bandwidth=self._bandwidth)
        return found.seconds(self._program.config)
