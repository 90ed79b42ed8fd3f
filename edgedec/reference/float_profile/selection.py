"""The choice of the keys that a query attends to, one query and head at a time. Source: 2408.07092, section 3."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.selection import Selection

__all__ = ["chosen", "importance_codes", "label_codes"]


def label_codes(selection: Selection, head: int, keys: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the codes of the labels of stored keys [n, head_dim] of a key/value head, float32 [n, channels].

    A code is the rounded quotient of the key's element and the step, half to even, within the range of its bits; NaN is 0.
    """
    most = np.float32(127 if selection.bits == 8 else 7)
    steps = np.array(selection.steps[head], np.float32)
    codes = np.clip(np.rint(keys[:, list(selection.channels[head])] / steps), -most, most)
    numbers: NDArray[np.float32] = np.nan_to_num(codes, nan=0.0)
    return numbers


def importance_codes(selection: Selection, head: int, keys: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the importance of stored keys [n, head_dim] of a key/value head as codes, float32 [n]; NaN is 0."""
    offset, *weights = np.array(selection.importance[head], np.float32)
    total = np.full(len(keys), offset, np.float32)
    for weight, elements in zip(weights, keys.T, strict=True):
        total = total + weight * (elements * elements)  # rounded after each product and each sum
    codes: NDArray[np.float32] = np.nan_to_num(np.clip(np.rint(total), -127, 127), nan=0.0)
    return codes


def chosen(selection: Selection, head: int, query: NDArray[np.float32], keys: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the numbers of the keys that a query attends to, ascending.

    Args:
        head: the key/value head.
        query: float32 [head_dim], rotated.
        keys: float32 [n, head_dim], stored keys that the query sees, in order.
    """
    visible = len(keys)
    count = selection.count(visible)
    if visible <= count:
        return np.arange(visible)
    weights = query[list(selection.channels[head])] * np.array(selection.steps[head], np.float32)
    scores = np.zeros(visible, np.float32)
    for weight, codes in zip(weights, label_codes(selection, head, keys).T, strict=True):
        scores = scores + weight * codes  # rounded after each product and each sum
    first, last = selection.sinks, visible - selection.recent
    # The earliest of equal scores comes first, and NaN comes last.
    order = np.argsort(-scores[first:last], kind="stable")
    if selection.kept:
        important = importance_codes(selection, head, keys[first:last])
        kept = np.argsort(-important, kind="stable")[: selection.kept]
        order = np.concatenate([kept, order[~np.isin(order, kept)]])
    best = order[: count - selection.sinks - selection.recent]
    return np.concatenate([np.arange(first), first + np.sort(best), np.arange(last, visible)])
