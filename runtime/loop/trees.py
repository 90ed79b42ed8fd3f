"""The growth of trees as the library does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.protocols import F32, Limits

__all__ = [
    "BEST_FIRST",
    "CHAIN",
    "LEVELS",
    "PROCESSED",
    "RANDOM",
    "UNCOUPLED",
    "CompiledGrowth",
    "GrowthRule",
    "always",
]

CHAIN, LEVELS, BEST_FIRST = range(3)  # values of ``Policy`` of trees.hpp
UNCOUPLED, PROCESSED, RANDOM = range(3)  # values of ``Coupling``


class CompiledGrowth(NamedTuple):
    """The rule by which the library grows a tree.

    Members:
        policy: ``CHAIN``, ``LEVELS`` or ``BEST_FIRST``.
        levels: for ``LEVELS``, for each level below the root the parents of its nodes, as places in the level above.
        prices: True if the growth makes use of the seconds of passes.
        coupling: ``UNCOUPLED``, ``PROCESSED`` or ``RANDOM``, see ``Coupled``.
    """

    policy: int
    levels: tuple[tuple[int, ...], ...] = ()
    prices: bool = False
    coupling: int = UNCOUPLED


# (draft, limits of the tree, acceptance as in ``TreePolicy``) -> the growth; None: the library does not grow such a tree.
GrowthRule = Callable[[DraftHandle, Limits, F32], CompiledGrowth | None]


def always(growth: CompiledGrowth) -> GrowthRule:
    """Return the rule of a policy that grows every tree alike."""
    return lambda draft, limits, accept: growth
