"""Call the compiled loop's functions with arrays."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof

import numpy as np

from edgedec.runtime.loop import Loop
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.loop.sampling import CompiledSampling
from edgedec.runtime.loop.trees import CompiledGrowth
from edgedec.runtime.protocols import I32, Limits, TokenTree

__all__ = ["grown_tree"]


def grown_tree(
    library: Loop,
    draft: DraftHandle,
    growth: CompiledGrowth,
    text: I32,
    limits: Limits,
    *,
    options: CompiledSampling | None = None,
    dropped: int = 0,
    costs: Sequence[float] = (),
) -> TokenTree:
    """Return the tree that the library grows by itself.

    Args:
        library, draft, growth, text: the draft, the rule, and the text before the tree.
        limits: limits of the tree.
        options, dropped: with ``options`` its guesses may be coupled.
        costs: seconds of passes by number of nodes; none: they are not known.
    """
    sizes = np.array([len(level) for level in growth.levels], np.int32)
    places = np.array([place for level in growth.levels for place in level], np.int32)
    seconds = np.array([0.0, *costs])
    measured: tuple[int | None, ...] = (None, 0, 0, None)
    if growth.measured is not None:
        accept, memory = growth.measured.accept, growth.measured.memory
        measured = (accept.ctypes.data, *accept.shape, None if memory is None else memory.address)
    tokens, parents = np.empty(limits.nodes, np.int32), np.empty(limits.nodes, np.int32)
    count = library.call(
        "edgedec_loop_grow",
        *(draft.address, text.ctypes.data, len(text), growth.policy, limits.nodes, limits.depth),
        *(sizes.ctypes.data, len(sizes), places.ctypes.data, growth.coupling),
        *(None if options is None else addressof(options), dropped, *measured, seconds.ctypes.data if costs else None),
        *(tokens.ctypes.data, parents.ctypes.data),
    )
    return TokenTree(tokens=tokens[:count], parents=parents[:count], draft={})
