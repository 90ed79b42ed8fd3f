"""Where a pass's cycles went."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.instructions import Opcode, When

__all__ = ["PassReport", "issued"]


@dataclass(frozen=True, kw_only=True)
class PassReport:
    """What the counters say of a pass, or of a commit.

    Members:
        cycles: from the doorbell's answer to the last write's; 0 on a device that has no clock.
        beats: of the read stream that were taken.
        starved: cycles in which the next beat had not come.
        blocked: in which a result waited for the write port.
        dependency: in which a beat waited for an earlier result.
        descriptors: instructions that were issued to the units; reads are not counted.
    """

    cycles: int
    beats: int
    starved: int
    blocked: int
    dependency: int
    descriptors: int


def issued(program: Program, *, commits: bool, logits: bool) -> list[int]:
    """Numbers of the instructions that ``PassReport.descriptors`` counts, in their order, of a commit or a pass."""
    if commits:
        return [n for n, one in enumerate(program.instructions) if n >= program.commit and one.opcode == Opcode.COPY]
    skipped, found = When.WITHOUT_LOGITS if logits else When.WITH_LOGITS, list[int]()
    for number, one in enumerate(program.instructions):
        if one.opcode == Opcode.STOP:
            break
        if one["when"] != skipped and one.opcode not in (Opcode.READ, Opcode.CACHE):
            found.append(number)
    return found
