"""The answers of targets without limits and memories of their own."""

from __future__ import annotations

from edgedec.bundle.bundle import Bundle
from edgedec.memory.plan import MemoryUse
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import Bounds

__all__ = ["bounds", "memories"]


def bounds(bundle: Bundle, device: str, positions: int = 1, sequences: int = 1) -> Bounds:
    """Return no limits."""
    return Bounds()


def memories(bundle: Bundle, request: TargetRequest) -> tuple[MemoryUse, ...]:
    """Return nothing: the target uses the host's memory, or that of a GPU, whose size is not known."""
    return ()
