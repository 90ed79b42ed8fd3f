"""The steps that describe a pass in the registers, and those that look at how an operation ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.device_steps import Step
from edgedec.hw.isa.registers import COUNTS
from edgedec.runtime.driver.registers import Registers

__all__ = ["PassEnding", "ending_of", "ending_steps", "parameter_steps"]

# The status comes before the events, so that an operation that ends between the two reads is not missed.
_STATE = ("status", "interrupt_status")
_COUNTERS = tuple(f"counter_{name}" for name in COUNTS)


@dataclass(frozen=True, kw_only=True)
class PassEnding:
    """State of the accelerator after a wait.

    Members:
        events: events of ``interrupt_status``.
        idle: nothing runs, and there is no error.
        counts: counters in the order of COUNTS; those of an operation that runs are of no use.
    """

    events: set[str]
    idle: bool
    counts: list[int]


def parameter_steps(
    registers: Registers, *, committed: int, logits: int, positions: Sequence[int], visible: NDArray[np.bool_]
) -> list[Step]:
    """Return the steps that write the parameters of a pass of n slots, of which ``visible``, bool [n, n], is the mask."""
    slots = len(positions)
    steps: list[Step] = [*registers.writes_of("pass_parameters", slots=slots, committed=committed, logits=logits)]
    words = visible.astype(np.int64) @ (1 << np.arange(slots, dtype=np.int64))
    for name, values in (("position", positions), ("mask", words.tolist())):
        for slot, value in enumerate(values):
            steps += registers.writes(name, value, slot)
    return steps


def ending_steps(registers: Registers) -> list[Step]:
    """Return the steps after a wait whose results ``ending_of`` takes."""
    return [
        *registers.reads(*_STATE),
        *registers.writes_of("control", latch_counters=1),
        *registers.reads(*_COUNTERS),
    ]


def ending_of(registers: Registers, found: Sequence[int]) -> PassEnding:
    """Return what the results of ``ending_steps`` say."""
    status, events, *counts = registers.values(found, *_STATE, *_COUNTERS)
    return PassEnding(
        events=registers.set_fields("interrupt_status", events),
        idle=not registers.set_fields("status", status) & {"busy", "error"},
        counts=counts,
    )
