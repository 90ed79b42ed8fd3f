"""Interpret a graph, one operation after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import FEATURES_INPUT, Graph
from edgedec.plugins import load, names
from edgedec.reference.float_profile.cache import FloatCache
from edgedec.schemes import Weight

__all__ = ["FloatPassContext", "ReferenceModel"]

Array = NDArray[Any]
Weights = Callable[[str], Weight]


@dataclass(frozen=True, kw_only=True)
class FloatPassContext:
    """Everything that an operation may use besides its inputs."""

    weights: Weights
    cache: FloatCache
    visible: NDArray[np.bool_]  # [n, n]; row i sees row j of the pass
    positions: NDArray[np.int32]  # [n]
    embeds: NDArray[np.float32] | None  # row k - 1 stands for id -k


class ReferenceModel:
    """A graph with its weights.

    The result of a row depends on this row and on the ordered keys that it sees, and not on other rows of the pass: each
    row-wise product is computed for its row alone, so that the reference is batch-invariant.
    """

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.graph = graph
        self.weights = weights
        known = names("edgedec.reference.float_profile.ops")
        for operation in graph.operations:
            if operation.kind not in known:
                raise UnsupportedError(
                    f"the reference does not define {operation.kind!r} ({operation.name}); known: {', '.join(known)}"
                )
        kinds = {operation.kind for operation in graph.operations}
        self._run = {kind: load("edgedec.reference.float_profile.ops", kind).run for kind in kinds}

    def new_cache(self, *, slack: int = 0) -> FloatCache:
        """Return an empty cache; ``slack`` is the number of rows of the largest pass, which rings need."""
        return FloatCache(self.graph.states, self.graph.recurrent, slack=slack)

    def forward(
        self,
        ids: NDArray[np.int32],
        cache: FloatCache,
        *,
        positions: NDArray[np.int32] | None = None,
        visible: NDArray[np.bool_] | None = None,
        rows: NDArray[np.int32] | None = None,
        embeds: NDArray[np.float32] | None = None,
        features: NDArray[np.float32] | None = None,
        taps: Sequence[str] = (),
    ) -> tuple[NDArray[np.float32], Mapping[str, Array]]:
        """Run a pass of n rows after the cache's committed rows. Its own rows wait in the cache for ``commit``.

        Args:
            ids: int32 [n]; id -k is row k - 1 of ``embeds`` [m, hidden].
            positions: int32 [n]; None continues the cache.
            visible: bool [n, n], row i sees row j of this pass; None is causal.
            rows: int32 [r], the rows whose logits are requested; None is all.
            features: float32 [n, width], the input beside the ids, if the graph has one.
            taps: names of graph values to return.

        Returns:
            logits float32 [r, vocab], and the tapped values.

        Raises:
            UnsupportedError: the graph has no value of a tap, or no input for features, or one of another shape.
        """
        n = len(ids)
        if positions is None:
            positions = np.arange(cache.length, cache.length + n, dtype=np.int32)
        if visible is None:
            visible = np.tri(n, dtype=np.bool_)
        if rows is None:
            rows = np.arange(n, dtype=np.int32)
        unknown = [name for name in taps if name not in self.graph.values]
        if unknown:
            raise UnsupportedError(f"the graph has no value {unknown[0]!r} to tap")
        wanted = (n, self.graph.features) if self.graph.features else None
        given = None if features is None else features.shape
        if given != wanted:
            raise UnsupportedError(f"features must have the shape {wanted}, which the graph reads, not {given}")
        context = FloatPassContext(
            weights=self.weights, cache=cache, visible=visible, positions=positions, embeds=embeds
        )
        cache.begin(positions, visible)
        values: dict[str, Array] = {"ids": ids, "positions": positions, "rows": rows}
        if features is not None:
            values[FEATURES_INPUT] = features
        for operation in self.graph.operations:
            inputs = [values[name] for name in operation.inputs]
            outputs = self._run[operation.kind](operation, inputs, context)
            values.update(zip(operation.outputs, outputs, strict=True))
        return values[self.graph.outputs[0]], {name: values[name] for name in taps}
