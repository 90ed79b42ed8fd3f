"""The report of a pass: its cycles and the reasons for stalls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgedec.hw.compiler.program import Program

__all__ = ["PassReport", "issued"]


@dataclass(frozen=True, kw_only=True)
class PassReport:
    """The counters of a pass or of a commit.

    Members:
        cycles: cycles from the response to the doorbell until the response to the last write; 0 on a device without a clock.
        beats: beats of the read stream that were consumed.
        starved: cycles in which the next beat had not arrived.
        blocked: cycles in which a result waited for the write port.
        dependency: cycles in which a beat waited for an earlier result.
        descriptors: instructions issued to the units; reads are not counted.
    """

    cycles: int
    beats: int
    starved: int
    blocked: int
    dependency: int
    descriptors: int


def issued(program: Program, *, commits: bool, logits: bool) -> list[int]:
    """Return the numbers of the instructions that ``PassReport.descriptors`` counts in a commit or a pass, in order."""
    from edgedec.hw.isa.instructions import (  # a run without an accelerator has reports, but no instructions
        Opcode,
        When,
    )

    if commits:
        return [n for n, item in enumerate(program.instructions) if n >= program.commit and item.opcode == Opcode.COPY]
    skipped, numbers = When.WITHOUT_LOGITS if logits else When.WITH_LOGITS, list[int]()
    for number, item in enumerate(program.instructions):
        if item.opcode == Opcode.STOP:
            break
        if item["when"] != skipped and item.opcode not in (Opcode.READ, Opcode.CACHE):
            numbers.append(number)
    return numbers
