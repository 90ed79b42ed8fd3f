"""Embeddings of texts: the outputs of a model's last layer for the tokens of a text, pooled into one vector.

The outputs are those before the final norm. Rows are added in float64 in the order of the text, so that the vector does not
depend on the passes in which it was read.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from edgedec.errors import UsageError
from edgedec.runtime.protocols import F32

__all__ = ["POOLINGS", "PooledRows", "Pooling"]

Pooling = Literal["mean", "last"]
POOLINGS: tuple[Pooling, ...] = ("mean", "last")


class PooledRows:
    """The rows of a text, of which one vector is made.

    Parameters:
        pooling: ``mean`` of all rows, or the ``last`` row.

    Raises:
        UsageError: there is no such pooling.

    Example:
        >>> rows = PooledRows("mean")
        >>> rows.add(np.array([[6.0, 0.0]], np.float32))
        >>> rows.add(np.array([[0.0, 8.0]], np.float32))
        >>> rows.vector(normalize=False).tolist(), rows.vector().tolist()
        ([3.0, 4.0], [0.6000000238418579, 0.800000011920929])
    """

    def __init__(self, pooling: Pooling) -> None:
        if pooling not in POOLINGS:
            raise UsageError(f"the pooling must be {' or '.join(POOLINGS)}, not {pooling!r}")
        self._mean, self._count = pooling == "mean", 0
        self._total = np.zeros(0)

    def add(self, rows: F32) -> None:
        """Add the next rows of the text, [n, width]; they are copied."""
        if not self._count:
            self._total = np.zeros(rows.shape[1])
        for row in rows if self._mean else rows[-1:]:
            self._total = self._total + row if self._mean else row.astype(np.float64)
        self._count += len(rows)

    def vector(self, *, normalize: bool = True) -> F32:
        """Return the vector, float32 [width], of length 1 if it is to be normalized and not zero.

        Raises:
            UsageError: no row was added.
        """
        if not self._count:
            raise UsageError("no row was added, so there is nothing to pool")
        pooled = self._total / self._count if self._mean else self._total
        length = float(np.sqrt(np.sum(pooled * pooled))) if normalize else 1.0
        return (pooled / length if length else pooled).astype(np.float32)
