"""The growth of trees as the library does it."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, c_double, c_void_p, cast
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edgedec.runtime import loop
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.protocols import F32, Limits

__all__ = [
    *("BEST_FIRST", "CHAIN", "DELAYED", "HARDWARE", "LEVELS", "PROCESSED", "RANDOM", "UNCOUPLED"),
    *("CompiledGrowth", "GrowthRule", "Measurements", "MeasuredGrowth", "TreeMemory", "always"),
]


CHAIN, LEVELS, BEST_FIRST, DELAYED, HARDWARE = range(5)  # values of ``Policy`` of trees.hpp
UNCOUPLED, PROCESSED, RANDOM = range(3)  # values of ``Coupling``
_CLOCK = CFUNCTYPE(c_double)  # type of ``ClockFunction`` of policies.hpp


class TreeMemory:
    """The values that a policy keeps in the library from round to round, as long as this object lives.

    Parameters:
        library: the library.
        clock: returns seconds, to measure drafting; None: the steady clock.

    Members:
        address: the address in the library.
    """

    def __init__(self, library: loop.Loop, clock: Callable[[], float] | None) -> None:
        self._clock = _CLOCK() if clock is None else _CLOCK(clock)  # kept alive for the library
        address: int | None = library.function("edgedec_loop_memory_open")(cast(self._clock, c_void_p))
        if address is None:
            library.check(-1)
            raise AssertionError("the library has a reason for each failure")
        self.address = address
        library.close_with(self, "edgedec_loop_memory_close", address)


@dataclass(frozen=True, eq=False)
class Measurements:
    """The measurements that ``DELAYED`` and ``HARDWARE`` follow.

    Members:
        accept: the acceptance as in ``TreePolicy``, contiguous. It may change while the library runs
            rounds, of which trees depend on it, and texts do not.
        memory: the policy's; None: ``DELAYED`` has no selector.
    """

    accept: F32
    memory: TreeMemory | None


class CompiledGrowth(NamedTuple):
    """The rule by which the library grows a tree.

    Members:
        policy: ``CHAIN``, ``LEVELS``, ``BEST_FIRST``, ``DELAYED`` or ``HARDWARE``.
        levels: for ``LEVELS``, for each level below the root the parents of its nodes, as places in the level above.
        prices: True if the growth makes use of the seconds of passes.
        coupling: ``UNCOUPLED``, ``PROCESSED`` or ``RANDOM``, see ``Coupled``.
        measured: measurements, for ``DELAYED`` and ``HARDWARE``.
        rounds: rounds that have this growth before the rule is asked again, if the limits stay; 0: those of a call.
    """

    policy: int
    levels: tuple[tuple[int, ...], ...] = ()
    prices: bool = False
    coupling: int = UNCOUPLED
    measured: Measurements | None = None
    rounds: int = 0


# (draft, limits of the tree, acceptance as in ``TreePolicy``) -> the growth; None: the library does not grow such a tree.
GrowthRule = Callable[[DraftHandle, Limits, F32], CompiledGrowth | None]


def always(growth: CompiledGrowth) -> GrowthRule:
    """Return the rule of a policy that grows every tree alike."""
    return lambda draft, limits, accept: growth


class MeasuredGrowth:
    """The rule of a policy that follows the measured acceptance and earlier rounds, a ``GrowthRule``.

    What the policy learns in the library is not known to its rounds in Python, nor the other way round: both learn in a few
    rounds, and a text seldom changes between them.

    Parameters:
        policy: ``DELAYED`` or ``HARDWARE``.
        remembers: False: the growth has no memory.
        prices: member of ``CompiledGrowth``.
        clock: parameter of ``TreeMemory``.
    """

    def __init__(
        self, policy: int, *, remembers: bool = True, prices: bool = False, clock: Callable[[], float] | None = None
    ) -> None:
        self._growth, self._remembers, self._clock = CompiledGrowth(policy, prices=prices), remembers, clock
        self._memory: TreeMemory | None = None

    def __call__(self, draft: DraftHandle, limits: Limits, accept: F32) -> CompiledGrowth | None:
        """Return the growth; None without the library. It is the same object for the same array ``accept``."""
        if self._remembers and self._memory is None:
            library = loop.load()
            if library is None:
                return None
            self._memory = TreeMemory(library, self._clock)
        measured = self._growth.measured
        if measured is None or accept is not measured.accept:
            measured = Measurements(np.ascontiguousarray(accept, np.float32), self._memory)
            self._growth = self._growth._replace(measured=measured)
        return self._growth
