"""Where a pass's cycles went."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PassReport"]


@dataclass(frozen=True, kw_only=True)
class PassReport:
    """What the counters say of a pass, or of a commit.

    Members:
        cycles: from the doorbell's answer to the last write's; 0 on a device that has no clock.
        beats: of the read stream that were taken.
        starved: cycles in which the next beat had not come.
        blocked: in which a result waited for the write port.
        dependency: in which a beat waited for an earlier result.
        descriptors: instructions that were issued.
    """

    cycles: int
    beats: int
    starved: int
    blocked: int
    dependency: int
    descriptors: int
