"""The longest common prefix of two texts."""

from __future__ import annotations

__all__ = ["common_prefix"]


def common_prefix(ids: list[int], others: list[int]) -> int:
    """Return the length of the longest common prefix of two lists of ids."""
    most = min(len(ids), len(others))
    if ids[:most] == others[:most]:
        return most
    return next(at for at in range(most) if ids[at] != others[at])
