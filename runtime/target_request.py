"""The request for a target: everything that it is made from, and that its memory is computed from, beside the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from edgedec.runtime.protocols import Limits
from edgedec.runtime.row_recipe import CAUSAL, RowRecipe

if TYPE_CHECKING:
    from typing_extensions import Required

__all__ = ["TargetKeywords", "TargetRequest"]


@dataclass(frozen=True, kw_only=True)
class TargetRequest:
    """The request for a target.

    Members:
        limits: bounds of the passes.
        device: a value of ``--device``.
        threads: number of CPU threads; 0 leaves it to the target.
        kv_bits: bits of keys and values: 32, 16, 8 or 4; None: the target's default.
        taps: names of graph values that passes may return.
        recipe: recipe of the rows, for targets that compute rows again by themselves.
        result_rows: maximum number of rows of logits of a pass, for its memory. None: all rows of a tree, or the last row if
            the limits have no depth.
        sequences: number of texts that are written at a time, for targets with a part of the cache for each.
        lent: the target that lends tensors to the bundle has them in memory, so that they are not loaded and counted again.
    """

    limits: Limits
    device: str = "cpu"
    threads: int = 0
    kv_bits: int | None = None
    taps: tuple[str, ...] = ()
    recipe: RowRecipe = CAUSAL
    result_rows: int | None = None
    sequences: int = 1
    lent: bool = False


class TargetKeywords(TypedDict, total=False):
    """The members of ``TargetRequest`` as keyword arguments."""

    limits: Required[Limits]
    device: str
    threads: int
    kv_bits: int | None
    taps: tuple[str, ...]
    recipe: RowRecipe
    result_rows: int | None
    sequences: int
    lent: bool
