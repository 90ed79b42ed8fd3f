"""The drafter that never guesses: every tree is a root without children."""

from __future__ import annotations

import numpy as np

from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.loop.drafts import NO_DRAFT, DraftHandle
from edgedec.runtime.protocols import I32, Bytes, CostModel, Limits, Outcome, Sparse, TargetInfo, TokenTree

__all__ = ["create"]


class _NoDraft(CompiledParts[DraftHandle]):
    compiled = NO_DRAFT

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        return [Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32)) for _ in nodes]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        return None


class _NoDrafter:
    taps: tuple[str, ...] = ()

    def footprint(self, limits: Limits) -> Bytes:
        return {}

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _NoDraft:
        return _NoDraft()


def create() -> _NoDrafter:
    """Return the drafter (entry point of the plug-in)."""
    return _NoDrafter()
