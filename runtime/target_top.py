"""What the target thought likeliest, for drafters that learn from it: two taps that a decoder makes, not the graph.

A drafter whose ``taps`` name ``TOP_TAPS`` gets both in ``Outcome.taps``, with a row for each node of the outcome's path.
They are no graph values, so a decoder leaves them out of ``Pass.taps``::

    if set(TOP_TAPS) <= set(drafter.taps):
        outcome = replace(outcome, taps={**outcome.taps, **top_taps(rows, logits=greedy)})

``rows[i]`` belongs to node ``outcome.path[i]``, cut to the tokenizer's size. Where tokens are drawn, it is the processed
distribution that the verifier used: what a draft has to be like to be accepted. At temperature 0 that is one certain token
and says nothing about how sure the target was: hand over the node's logits instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgedec.runtime.protocols import F32

__all__ = ["TOP_IDS", "TOP_K", "TOP_PROBS", "TOP_TAPS", "top_taps"]

TOP_IDS, TOP_PROBS = TOP_TAPS = ("top_ids", "top_probs")
TOP_K = 10
_FAR = 9.0  # logits so far below the largest weigh less than 1/8000 of it


def top_taps(rows: Sequence[F32], *, logits: bool, k: int = TOP_K) -> Mapping[str, F32]:
    """The ``k`` likeliest tokens of each row.

    Parameters:
        rows: float32 [V] each, probabilities or logits. A row with NaN gives nothing.
        logits: which; probabilities are then the shares among the tokens that are kept.

    Returns:
        ``TOP_IDS``: float32 [rows, k], whole numbers, the likeliest first, of equally likely ones the lower id.
        ``TOP_PROBS``: float32 [rows, k]; places that are not used have probability 0.
    """
    ids, probs = np.zeros((2, len(rows), k), np.float32)
    for at, row in enumerate(rows):
        top = row.max()
        keep = np.flatnonzero(row > top - _FAR) if logits else np.flatnonzero(row > 0)
        values = row[keep]
        if len(keep) > k:
            # Two steps, for argpartition is free to choose among equals: the k-th value, then the lowest ids down to it.
            bound = np.partition(values, len(values) - k)[len(values) - k]
            keep, values = keep[values >= bound], values[values >= bound]
        order = np.argsort(-values, kind="stable")[:k]
        values = values[order]
        if logits and len(values):
            values = np.exp(values - top)
            values /= values.sum()
        ids[at, : len(order)], probs[at, : len(order)] = keep[order], values
    return {TOP_IDS: ids, TOP_PROBS: probs}
