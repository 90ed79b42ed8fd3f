"""A drafter that can give its memory back while texts are being written, and have it again later.

Without it, texts are written as with a drafter that never guesses. So it is for verifiers alone with which a text does not
depend on the guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakSet

from edgedec.runtime.capabilities import CompiledParts, TappedDraft, compiled_part
from edgedec.runtime.drafters._text import NOTHING
from edgedec.runtime.drafting import BatchedDraft, expanding, keep_taps, reading, take_taps, tapped
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.protocols import (
    F32,
    I32,
    Bytes,
    CostModel,
    Draft,
    Drafter,
    Drafting,
    Limits,
    Outcome,
    Sparse,
    TargetInfo,
    TokenTree,
)
from edgedec.runtime.sampling.target_top import graph_taps

__all__ = ["ReleasingDrafter"]


class ReleasingDrafter:
    """A drafter that opens another one, and forgets it on request. What that one has learned is lost.

    Its methods must not be called while a draft of it makes guesses.

    Parameters:
        create: returns the other drafter, without a loaded draft model.

    Members:
        released: True from ``release`` to ``restore``.
    """

    def __init__(self, create: Callable[[], Drafter]) -> None:
        self._create = create
        self._drafter: Drafter | None = create()
        self.taps = self._drafter.taps
        self._drafts: WeakSet[_ReleasingDraft] = WeakSet()  # a draft that nobody holds gives its own memory back

    @property
    def released(self) -> bool:
        """True if it holds no memory, and makes no guesses."""
        return self._drafter is None

    def footprint(self, limits: Limits) -> Bytes:
        """Return the bytes that the other drafter takes when it is not released."""
        return (self._drafter or self._create()).footprint(limits)

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> Draft:
        """Return a draft.

        Raises:
            EdgedecError: the other drafter raised it.
        """
        draft = _ReleasingDraft(target, limits, cost)
        if self._drafter is not None:
            draft.open(self._drafter)
        self._drafts.add(draft)
        return draft

    def release(self) -> None:
        """Give the memory back. A second call does nothing."""
        for draft in self._drafts:
            draft.inner = None
        self._drafter = None

    def restore(self) -> None:
        """Load the drafter again. Without a ``release`` before it, this does nothing.

        Raises:
            EdgedecError: it cannot be loaded, and stays released.
        """
        if self._drafter is not None:
            return
        drafter = self._create()
        try:
            for draft in self._drafts:
                draft.open(drafter)
        except BaseException:
            self.release()
            raise
        self._drafter = drafter


class _ReleasingDraft(BatchedDraft, CompiledParts[DraftHandle]):
    """A draft that makes no guesses while ``inner`` is None."""

    def __init__(self, target: TargetInfo, limits: Limits, cost: CostModel) -> None:
        self._target, self._limits, self._cost = target, limits, cost
        self.inner: Draft | None = None
        self._waits = False  # True: the other draft lacks values of rows of this text, and waits for the next one

    def open(self, drafter: Drafter) -> None:
        self.inner = drafter.open(self._target, self._limits, self._cost)
        self._waits = bool(graph_taps(drafter.taps)) and isinstance(self.inner, TappedDraft)

    @property
    def compiled(self) -> DraftHandle | None:
        """The compiled draft; None if it is not compiled, or released."""
        part: DraftHandle | None = compiled_part(self.inner)
        return part

    def expanding(self, text: I32, tree: TokenTree, nodes: I32) -> Drafting[list[Sparse]]:
        if self.inner is None or self._waits:
            return [NOTHING] * len(nodes)
        return (yield from expanding(self.inner, text, tree, nodes))

    def reading(self, text: I32, rows: int) -> Drafting[bool]:
        return self.inner is None or self._waits or (yield from reading(self.inner, text, rows))

    def tapped(self, ids: I32) -> int:
        return len(ids) if self.inner is None else tapped(self.inner, ids)

    def keep_taps(self, ids: I32) -> None:
        self._waits = False
        keep_taps(self.inner, ids)

    def take_taps(self, ids: I32, taps: Mapping[str, F32]) -> None:
        if not self._waits:
            take_taps(self.inner, ids, taps)

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        if self.inner is not None and not self._waits:
            self.inner.observe(tree, outcome)
