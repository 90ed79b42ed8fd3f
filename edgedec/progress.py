"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[str, int, int], None]  # (what, done, in all); the unit is the caller's


def silent(what: str, done: int, total: int) -> None:
    """Says nothing."""
