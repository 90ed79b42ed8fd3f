"""The steps that describe a pass in the registers, that look at how an operation ended, and that reset the accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.device_steps import Step
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.isa.registers import COUNTS
from edgedec.runtime.driver.registers import Registers

__all__ = ["POLL_CYCLES", "PassEnding", "check_pass", "ending_of", "ending_steps", "parameter_steps", "soft_reset"]

POLL_CYCLES = 64  # cycles between two reads of the status during a reset

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


def check_pass(positions: NDArray[np.int32], visible: NDArray[np.bool_], committed: int, *, rings: bool) -> None:
    """Check a pass after ``committed`` positions: positions int32 [n], the mask bool [n, n], and whether layers have rings.

    Raises:
        UsageError: see ``Driver.forward``.
    """
    n = len(positions)
    if visible.shape != (n, n):
        raise UsageError(f"visible must be {n}x{n}, not {'x'.join(map(str, visible.shape))}")
    if not visible.diagonal().all():
        raise UsageError(f"slot {int(np.argmin(visible.diagonal()))} must see itself")
    if rings and int(positions.min(initial=committed)) < committed:
        raise UsageError(
            f"position {positions.min()} lies before the {committed} committed ones, of which rings keep only those "
            "that later positions see; go back first"
        )


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


def soft_reset(device: Device, registers: Registers, max_cycles: int) -> None:
    """Reset the accelerator softly, and clear its events.

    Raises:
        DeviceError: the buses are still busy after ``max_cycles``.
    """
    registers.write_fields("control", soft_reset=1)
    registers.write_fields("interrupt_status", done=1, error=1, committed=1)
    cycles = 0
    while "resetting" in registers.set_fields("status"):
        if cycles >= max_cycles:
            raise DeviceError(
                f"the buses are not at rest {cycles} cycles after a soft reset; power the board off and on"
            )
        device.wait(POLL_CYCLES / device.clock_hz)
        cycles += POLL_CYCLES
    registers.write_fields("interrupt_status", done=1, error=1, committed=1)


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
