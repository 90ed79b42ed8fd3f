"""The growth of trees as the library does it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BEST_FIRST", "CHAIN", "LEVELS", "CompiledGrowth"]

CHAIN, LEVELS, BEST_FIRST = range(3)  # values of ``Policy`` of trees.hpp


class CompiledGrowth(NamedTuple):
    """The rule by which the library grows a tree.

    Members:
        policy: ``CHAIN``, ``LEVELS`` or ``BEST_FIRST``.
        levels: for ``LEVELS``, for each level below the root the parents of its nodes, as places in the level above.
    """

    policy: int
    levels: tuple[tuple[int, ...], ...] = ()
