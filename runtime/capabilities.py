"""The abilities of some targets, states, drafts and verifiers beside their protocols; ``isinstance`` finds who has one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from edgedec.runtime.protocols import F32, I32, Draft, Drafter, Limits, Outcome, State, Target, TokenTree, Verifier

if TYPE_CHECKING:
    from edgedec.memory.plan import MemoryUse
    from edgedec.runtime.base.key_counts import KeyCounts
    from edgedec.runtime.base.stream_counts import StreamCounts, StreamTimings
    from edgedec.runtime.driver.counters import Counters
    from edgedec.runtime.driver.facts import DeviceFacts

P = TypeVar("P", covariant=True)

__all__ = [
    "AcceleratorTarget",
    "CertainVerifier",
    "ClosableTarget",
    "CompiledParts",
    "FilingDrafter",
    "ReleasingTarget",
    "SelectingTarget",
    "SlottedTarget",
    "SnapshotState",
    "StreamingTarget",
    "TappedDraft",
    "WeightReads",
    "compiled_part",
]


@runtime_checkable
class SnapshotState(State, Protocol):
    """The cache of a sequence with recurrent states, which cannot go back to rows of which no snapshot was kept."""

    def snapshot(self, instead_of: int | None = None) -> None:
        """Keep the recurrent states after the committed rows, unless there is such a snapshot already.

        The snapshot after ``instead_of`` rows makes room for it. If there is none, and no memory is left, the one that was
        not used longest does.
        """


@runtime_checkable
class ReleasingTarget(Protocol):
    """A target that can give memory which it does not need now back to the system, and takes it again by itself."""

    def held_bytes(self, state: State) -> int:
        """Return the bytes of the rows that a sequence holds; rows that several share count for each of them."""

    @property
    def idle_bytes(self) -> int:
        """Bytes that ``release_idle`` would give back, at most."""

    def release_idle(self) -> None:
        """Give them back."""


@runtime_checkable
class SlottedTarget(Target, Protocol):
    """A target whose sequences may need a slot each, such as for recurrent states, from their first pass to their end."""

    @property
    def free_slots(self) -> int | None:
        """Number of slots that no sequence has; None: sequences need none."""


@runtime_checkable
class ClosableTarget(Target, Protocol):
    """A target that holds a device, or memory of one."""

    def close(self) -> None:
        """Release it. A second call does nothing."""


class WeightReads(Protocol):
    """The reading of weights from the disk during passes."""

    @property
    def counts(self) -> StreamCounts:
        """The counts since the opening."""

    def timings(self, since: StreamCounts) -> StreamTimings:
        """Return the figures from ``since`` until now."""


@runtime_checkable
class StreamingTarget(Target, Protocol):
    """A target that may read a part of its weights from the disk during passes."""

    @property
    def stream(self) -> WeightReads | None:
        """The reading; None: all weights are in memory."""


@runtime_checkable
class SelectingTarget(Target, Protocol):
    """A target whose queries may choose the keys that they attend to."""

    @property
    def key_counts(self) -> KeyCounts | None:
        """The counts of keys since the opening; None: every query attends to all keys that it sees."""


@runtime_checkable
class AcceleratorTarget(Target, Protocol):
    """A target on a device with performance counters. The host is free to draft while the device runs a pass."""

    facts: DeviceFacts  # context of the device's figures: simulated or measured, board, clock frequency

    @property
    def counters(self) -> Counters:
        """Cycles, stalls and passes since the target was opened. Passes that run end first."""

    @property
    def device_bytes(self) -> int:
        """Bytes of the buffers in the device's memory."""

    def close(self) -> None:
        """Release the device. A second call does nothing."""


@runtime_checkable
class FilingDrafter(Drafter, Protocol):
    """A drafter that may keep values in a file beside its memory."""

    def memories(self, limits: Limits) -> tuple[MemoryUse, ...]:
        """Return the use of disks by its files, for plans."""


@runtime_checkable
class TappedDraft(Draft, Protocol):
    """A draft that needs the target's values, ``Drafter.taps``, for the rows of the prompt, too.

    A text begins with ``keep_taps``. ``take_taps`` then has the values of the prompt's other rows, in order, and
    ``Outcome.taps`` those of the text's rows. Where the cache has rows whose values the draft lacks, because another text
    wrote them, these rows run again. A draft that has not got the values of all rows of a text, such as one that is assumed
    while a pass runs, makes no guess.
    """

    def tapped(self, ids: I32) -> int:
        """Return for how many of the first rows of ``ids`` [t] the draft has the values; t if it needs none."""

    def keep_taps(self, ids: I32) -> None:
        """Keep the values of the rows of ``ids`` [t], which the cache has now, and forget all others."""

    def take_taps(self, ids: I32, taps: Mapping[str, F32]) -> None:
        """Take the values of the last n rows of ``ids`` [t], which a pass over the prompt has computed.

        ``taps`` has a value [n, width] for each name of ``Drafter.taps``. The arrays are the target's memory, which its
        next pass overwrites.
        """


@runtime_checkable
class CertainVerifier(Verifier, Protocol):
    """A verifier for temperature 0 that needs no distributions, which take long to make for a large vocabulary."""

    def follow(self, tree: TokenTree, likeliest: Callable[[int], int]) -> Outcome:
        """Return the same as ``accept``; ``likeliest(i)`` returns the token that has probability 1 after node i."""


class CompiledParts(ABC, Generic[P]):
    """A draft, policy, verifier or target that the compiled loop knows: its class inherits from this one.

    So a wrapper that passes attributes on is none. The type P is ``DraftHandle`` for drafts, ``GrowthRule`` for policies,
    ``bool`` for verifiers and ``Lender`` for targets (``runtime/loop``).
    """

    @property
    @abstractmethod
    def compiled(self) -> P | None:
        """The object that the loop takes in its place; None: rounds with it run in Python now."""


def compiled_part(part: object) -> Any:
    """Return what the compiled loop takes in the place of a part of a round; None if it knows none."""
    return part.compiled if isinstance(part, CompiledParts) else None
