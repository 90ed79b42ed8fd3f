"""Files that a drafter keeps beside its memory, for plans."""

from __future__ import annotations

from edgedec.memory.plan import MemoryUse
from edgedec.runtime.protocols import Drafter, Limits

__all__ = ["file_uses"]


def file_uses(drafter: Drafter, limits: Limits) -> tuple[MemoryUse, ...]:
    """Return the use of disks by a drafter's files. Drafters without files do not have the method ``memories``."""
    memories = getattr(drafter, "memories", None)
    return tuple(memories(limits)) if memories else ()
