"""The draft ``auto`` in the library, and what it knows of its candidates, which it shares with Python's."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, c_double, c_int64, c_void_p

from edgedec.errors import CacheFullError
from edgedec.runtime.base.median import median
from edgedec.runtime.loop import Loop
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.loop.inputs import Lender, LendingState, check_size, members

__all__ = ["CLOCK", "AutoArguments", "AutoCandidate", "AutoHandle"]

CLOCK = CFUNCTYPE(c_double)  # type of ``clock`` of auto.hpp
_MEASURED = 9  # kMeasured


class AutoCandidate(ctypes.Structure):
    """``AutoCandidate`` of auto.hpp: the observations of a candidate."""

    draft: int | None
    right: float
    judged: int
    calls: int
    unseen: int
    read: int
    guess: int

    _fields_ = (
        *(("draft", c_void_p), ("right", c_double), ("judged", c_int64), ("seconds", c_double * _MEASURED)),
        *members(c_int64, "calls", "unseen", "read", "guess"),
    )

    def measure(self, seconds: float) -> None:
        """Record the duration of a call."""
        self.seconds[self.calls % _MEASURED] = seconds
        self.calls += 1

    @property
    def cost(self) -> float:
        """Seconds of a call, the median of the last ones; 0.0 before the first."""
        return median(self.seconds[: min(self.calls, _MEASURED)]) if self.calls else 0.0


class AutoArguments(ctypes.Structure):
    """``AutoArguments`` of auto.hpp: the candidates and the last choice among them.

    Parameters:
        count: number of candidates.
        right: share of right guesses before any observation.
        unseen: rounds since the last guess before any.

    Members:
        observed: the candidates' observations.
    """

    drafting: int
    outcomes: int
    chosen: int

    _fields_ = (
        *(("candidates", c_void_p), *members(c_int64, "count", "drafting", "outcomes", "chosen")),
        ("clock", CLOCK),
    )

    def __init__(self, count: int, *, right: float, unseen: int) -> None:
        self._array = (AutoCandidate * count)(
            *(AutoCandidate(right=right, unseen=unseen, guess=-1) for _ in range(count))
        )
        self.observed: tuple[AutoCandidate, ...] = tuple(self._array)
        super().__init__(candidates=ctypes.addressof(self._array), count=count, drafting=-1, chosen=-1)


class AutoHandle(DraftHandle):
    """The address of the draft ``auto`` over drafts of the library, which live as long as this object.

    Parameters:
        library: the library.
        arguments: the candidates, whose drafts are set here.
        parts: their drafts.
        vocab, depth: see ``TargetInfo`` and ``Limits``.
        finished: called after each call of the library; it does not keep its object alive.

    Members:
        arguments, parts: the parameters of these names.

    Raises:
        DeviceError: the library is not of this version.
        EdgedecError: a candidate has a larger vocabulary, or guesses less deep.
    """

    def __init__(
        self,
        library: Loop,
        arguments: AutoArguments,
        parts: Sequence[DraftHandle],
        *,
        vocab: int,
        depth: int,
        finished: weakref.WeakMethod[Callable[[], None]],
    ) -> None:
        check_size(library, 4, AutoArguments)
        check_size(library, 5, AutoCandidate)
        for candidate, part in zip(arguments.observed, parts, strict=True):
            candidate.draft = part.address
        address = library.function("edgedec_loop_auto_open")(ctypes.addressof(arguments), vocab, depth)
        if address is None:
            library.check(-1)
        prices = max([depth + 1, *(part.prices for part in parts)])
        certain, alone = all(part.certain for part in parts), any(part.alone for part in parts)
        super().__init__(address, certain=certain, prices=prices, alone=alone)
        self.arguments, self.parts, self._finished = arguments, tuple(parts), finished
        library.close_with(self, "edgedec_loop_draft_close", address)

    @property
    def lent(self) -> tuple[tuple[Lender, LendingState], ...]:
        """The lenders and states of the candidates."""
        return tuple(one for part in self.parts for one in part.lent)

    def reserve(self, length: int) -> None:
        """Prepare all candidates.

        Raises:
            CacheFullError: the cache of a draft model has no room. None is prepared then.
        """
        for at, part in enumerate(self.parts):
            try:
                part.reserve(length)
            except CacheFullError:
                for prepared in self.parts[:at]:
                    prepared.finish()
                raise

    def finish(self) -> None:
        """Take over what the library has left of all candidates."""
        for part in self.parts:
            part.finish()
        if (finished := self._finished()) is not None:
            finished()
