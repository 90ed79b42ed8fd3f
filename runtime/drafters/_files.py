"""Files that a drafter keeps beside its memory, for plans."""

from __future__ import annotations

from edgedec.memory.plan import MemoryUse
from edgedec.runtime.capabilities import FilingDrafter
from edgedec.runtime.protocols import Drafter, Limits

__all__ = ["file_uses"]


def file_uses(drafter: Drafter, limits: Limits) -> tuple[MemoryUse, ...]:
    """Return the use of disks by a drafter's files; nothing if it has none."""
    return drafter.memories(limits) if isinstance(drafter, FilingDrafter) else ()
