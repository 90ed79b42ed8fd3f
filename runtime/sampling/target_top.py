"""The target's likeliest tokens as taps, for drafters that learn from them. The decoder computes them, not the graph.

A drafter whose ``taps`` contain ``TOP_TAPS`` gets both in ``Outcome.taps``, with a row for each node of the outcome's path.
They are not values of the graph, so a decoder leaves them out of ``Pass.taps``::

    if set(TOP_TAPS) <= set(drafter.taps):
        outcome = replace(outcome, taps={**outcome.taps, **top_taps(rows, logits=greedy)})

``rows[i]`` belongs to node ``outcome.path[i]``. Where tokens are drawn, it is the processed distribution that the verifier
used, because a draft is accepted if it is close to that distribution. At temperature 0 this distribution has a single token
and does not show how certain the target was; there, ``rows[i]`` is the node's logits, cut to the tokenizer's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from edgedec.runtime.protocols import F32, I32
from edgedec.runtime.sampling import portable_math
from edgedec.runtime.sampling.likeliest import Likeliest

__all__ = ["TOP_IDS", "TOP_K", "TOP_PROBS", "TOP_TAPS", "graph_taps", "likeliest_taps", "top_taps"]

TOP_IDS, TOP_PROBS = TOP_TAPS = ("top_ids", "top_probs")
TOP_K = 10  # tokens of a row
_FAR = 9.0  # difference of logits that corresponds to a ratio of probabilities of more than 8000


def graph_taps(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of a drafter's ``taps`` that are values of the target's graph."""
    return tuple(name for name in names if name not in TOP_TAPS)


def top_taps(rows: Sequence[F32], *, logits: bool, k: int = TOP_K) -> Mapping[str, F32]:
    """Return the ``k`` likeliest tokens of each row.

    Parameters:
        rows: float32 [V] each, probabilities or logits. A row with NaN has no tokens in the result.
        logits: True if the rows are logits; their softmax is then taken over the tokens that are kept.
        k: maximum number of tokens of a row.

    Returns:
        ``TOP_IDS``: float32 [rows, k], whole numbers, in descending order of probability; of equally likely tokens, the one
        with the lower id comes first. ``TOP_PROBS``: float32 [rows, k]; unused places have probability 0.
    """
    ids, probs = np.zeros((2, len(rows), k), np.float32)
    for at, row in enumerate(rows):
        top = row.max()
        keep = np.flatnonzero(row > top - _FAR) if logits else np.flatnonzero(row > 0)
        values = row[keep]
        if len(keep) > k:
            # argpartition could return any of several equal values. So take the k-th value, then the lowest ids down to it.
            bound = np.partition(values, len(values) - k)[len(values) - k]
            keep, values = keep[values >= bound], values[values >= bound]
        order = np.argsort(-values, kind="stable")[:k]
        values = _shares(values[order]) if logits and len(order) else values[order]
        ids[at, : len(order)], probs[at, : len(order)] = keep[order], values
    return {TOP_IDS: ids, TOP_PROBS: probs}


def likeliest_taps(top: Likeliest, rows: I32) -> Mapping[str, F32]:
    """Return what ``top_taps`` returns of rows of logits, from the likeliest tokens of a pass.

    Parameters:
        top: the likeliest tokens of rows, ``TOP_K`` or more of each, or all that there are.
        rows: numbers of the rows, [n].
    """
    ids, probs = np.zeros((2, len(rows), TOP_K), np.float32)
    for at, row in enumerate(rows.tolist()):
        values = top.logits[row, :TOP_K]
        count = int(np.count_nonzero(values > values[0] - _FAR))
        if count:
            ids[at, :count], probs[at, :count] = top.ids[row, :count], _shares(values[:count])
    return {TOP_IDS: ids, TOP_PROBS: probs}


def _shares(values: F32) -> F32:
    """Return the softmax of logits in descending order."""
    weights = portable_math.exp((values - values[0]).astype(np.float64))
    shares: F32 = (weights / portable_math.total(weights)).astype(np.float32)
    return shares
