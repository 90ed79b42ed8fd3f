"""The steps that describe a pass in the registers, that look at how an operation ended, and that reset the accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.device_steps import Step
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.isa.registers import COUNTS
from edgedec.runtime.driver.parts import CachePart, PartRows, PlaceRegisters
from edgedec.runtime.driver.registers import Registers

__all__ = ["POLL_CYCLES", "PassEnding", "PassInput", "ending_of", "ending_steps", "prepared_pass", "soft_reset"]

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


@dataclass(frozen=True, kw_only=True)
class PassInput:
    """The input and the parameters that the host gives a pass.

    Members:
        image: the content of the input buffer, uint8 in logical order.
        steps: steps that write its parameters, after which ``PlaceRegisters.sent`` is called.
    """

    image: NDArray[np.uint8]
    steps: list[Step]


def prepared_pass(
    host: ProgramHost, registers: Registers, places: PlaceRegisters, work: Sequence[PartRows], logits: int
) -> PassInput:
    """Check a pass over the rows of one sequence or several, and return its input.

    Raises:
        UsageError: see ``Driver.forward`` and ``Driver.submit_parts``.
    """
    config, rings = host.program.config, host.program.ring is not None
    if not 1 <= len(work) <= config.sequences or len({id(rows.part) for rows in work}) < len(work):
        raise UsageError(f"a pass has rows of 1 to {config.sequences} sequences, each once, not of {len(work)}")
    total = sum(len(rows.ids) for rows in work)
    ids: list[NDArray[np.int32]] = []
    positions: list[NDArray[np.int32]] = []
    embeds: list[NDArray[np.float32]] = []
    mask, first, embedded = np.zeros((total, total), np.bool_), 0, 0
    for rows in work:
        n = len(rows.ids)
        places_of = np.arange(rows.part.length, rows.part.length + n, dtype=np.int32)
        positions.append(places_of if rows.positions is None else rows.positions)
        visible = np.tri(n, dtype=np.bool_) if rows.visible is None else rows.visible
        _check_rows(positions[-1], visible, rows.part, rings=rings, whole=rows.part.rows == config.context)
        mask[first : first + n, first : first + n] = visible
        ids.append(np.where(rows.ids < 0, rows.ids - np.int32(embedded), rows.ids) if embedded else rows.ids)
        if rows.embeds is not None:
            embeds.append(rows.embeds)
            embedded += len(rows.embeds)
        first += n
    every = np.concatenate(positions)
    image = host.input(np.concatenate(ids), every, np.concatenate(embeds) if embeds else None)
    sequences = [rows.sequence for rows in work]
    steps: list[Step] = [
        *registers.writes_of("pass_parameters", slots=total, committed=sequences[0].committed, logits=logits),
        *places.of_pass(sequences),
    ]
    words = mask.astype(np.int64) @ (1 << np.arange(total, dtype=np.int64))
    for name, values in (("position", every.tolist()), ("mask", words.tolist())):
        for slot, value in enumerate(values):
            steps += registers.writes(name, value, slot)
    return PassInput(image=image, steps=steps)


def _check_rows(
    positions: NDArray[np.int32], visible: NDArray[np.bool_], part: CachePart, *, rings: bool, whole: bool
) -> None:
    """Check n rows of a sequence.

    Args:
        positions: int32 [n].
        visible: the mask, bool [n, n].
        part: its part of the cache.
        rings: whether layers have rings.
        whole: whether the part is the whole cache, whose end the accelerator knows.

    Raises:
        UsageError: see ``Driver.forward``.
    """
    n = len(positions)
    if visible.shape != (n, n):
        raise UsageError(f"visible must be {n}x{n}, not {'x'.join(map(str, visible.shape))}")
    if not visible.diagonal().all():
        raise UsageError(f"slot {int(np.argmin(visible.diagonal()))} must see itself")
    if rings and int(positions.min(initial=part.length)) < part.length:
        raise UsageError(
            f"position {positions.min()} lies before the {part.length} committed ones, of which rings keep only those "
            "that later positions see; go back first"
        )
    if not whole and part.length + n > part.rows:
        raise UsageError(
            f"{part.length} committed positions and {n} new ones pass the {part.rows} that a sequence has in the cache: go "
            "back first, or divide the cache into fewer parts"
        )


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
