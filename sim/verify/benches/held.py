"""Decide which ranges of the read stream the accelerator may hold back, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.hw.config import CONSTANT_BEATS, AcceleratorConfig
from edgedec.hw.isa.instructions import Destination
from edgedec.sim.verify.benches.workloads import ReadRange

__all__ = ["may_be_held", "queued_before_held"]

# The program memory, and the residual with the norm after it, take a beat in each cycle, and nothing that they need can
# come later than their first beat. A beat for them therefore waits for earlier beats only.
_PROMPT = (Destination.PROGRAM, Destination.LOAD)
_CONSTANTS = (
    Destination.GAINS,
    Destination.ROWS,
    Destination.CODING,
    Destination.FACTORS,
    Destination.SCALES,
)


def queued_before_held(config: AcceleratorConfig) -> int:
    """Return how many beats at least wait in the prefetcher's queue when it holds back a beat on R.

    RREADY is a register that falls once the queue has no room for three more beats than it holds: one on R, and two that
    are on their way from there.
    """
    return config.prefetch_beats - 2


def may_be_held(ranges: Sequence[ReadRange], config: AcceleratorConfig) -> list[bool]:
    """Return for each range of a pass or a commit whether the accelerator may hold back one of its beats.

    A beat is held back while the queue before the units is full of earlier beats. Beats wait there only from the first one
    on that a unit may leave: those before it are for units that take a beat in each cycle, or for the queue of
    constants, which has room for ``CONSTANT_BEATS``.

    Args:
        ranges: all ranges, in order.
        config: configuration of the accelerator, of which prefetch_beats matters.
    """
    waiting = constants = 0
    blocked, result = False, []
    for reading in ranges:
        constants += reading.beats if reading.destination in _CONSTANTS else 0
        taken = reading.destination in _PROMPT or (reading.destination in _CONSTANTS and constants <= CONSTANT_BEATS)
        blocked = blocked or not taken
        waiting += reading.beats if blocked else 0
        result.append(waiting > queued_before_held(config))
    return result
