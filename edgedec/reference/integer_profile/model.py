"""A whole model in integers. It is prepared from a bundle and a calibration, and interpreted operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Embed
from edgedec.graph.passes import assign_schemes, fuse_linears, quantize_activations
from edgedec.kv.policy import check_no_policy
from edgedec.plugins import load
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.calibration import Calibration
from edgedec.reference.integer_profile.context import IntegerPassContext, Trace
from edgedec.reference.integer_profile.defined import OPS, check_accelerated, check_defined
from edgedec.reference.integer_profile.numbers import WidthCheck
from edgedec.reference.integer_profile.site import Site
from edgedec.reference.integer_profile.values import Form, Logits, Value
from edgedec.schemes import Weight

__all__ = ["IntegerModel", "Sequence", "integer_graph", "prepare", "prepare_graph", "profile_graph"]

I32 = NDArray[np.int32]


def integer_graph(bundle: Bundle) -> Graph:
    """Return the graph that the accelerator runs: that of ``profile_graph``, for whose operations it has units.

    Raises:
        BundleError, UnsupportedError: see ``profile_graph``; or the accelerator has no unit for an operation.
    """
    graph = profile_graph(bundle)
    check_accelerated(graph)
    return graph


def profile_graph(bundle: Bundle) -> Graph:
    """Return the graph that both profiles interpret, with schemes, quantize points and fused linears.

    Raises:
        BundleError: the bundle's tensors do not fit its configuration.
        UnsupportedError: the family is unknown, or has a feature that the integer profile does not define, or the bundle was
            calibrated.
    """
    check_no_policy(bundle.path, bundle.config, "the accelerator")
    graph = build_graph(bundle.config)
    check_defined(graph)
    bundle.check(graph)
    return fuse_linears(quantize_activations(assign_schemes(graph, bundle.schemes)))


def prepare(bundle: Bundle, calibration: Calibration) -> IntegerModel:
    """Compute all constants of a bundle's model in float64. This is deterministic.

    Raises:
        BundleError: the calibration belongs to another model, or the bundle is damaged.
        UnsupportedError: an operation cannot be mapped; the message names operation, layer and reason.
    """
    return prepare_graph(profile_graph(bundle), bundle.weight, calibration)


def prepare_graph(graph: Graph, weights: Callable[[str], Weight], calibration: Calibration) -> IntegerModel:
    """Compute all constants of a graph with quantize points, like ``prepare``."""
    check_defined(graph)
    site, constants = Site(graph=graph, weights=weights, calibration=calibration), {}
    for operation in graph.operations:
        constants[operation.name] = load(OPS, operation.kind).prepare(operation, site)
    return IntegerModel(graph, constants, site.forms)


class IntegerModel:
    """The graph with its constants.

    Members:
        constants: result of ``prepare`` by operation name; the accelerator is programmed with these integers.
        forms: width and unit by value name.
    """

    def __init__(self, graph: Graph, constants: Mapping[str, Any], forms: Mapping[str, Form]) -> None:
        self.graph, self.constants, self.forms = graph, constants, forms
        kinds = {operation.kind for operation in graph.operations}
        self._run = {kind: load(OPS, kind).run for kind in kinds}
        self._last_uses = graph.last_uses()
        (embed,) = (operation for operation in graph.operations if isinstance(operation, Embed))
        self.vocab = graph.weights[embed.weight].shape[0]

    def open(self) -> Sequence:
        """Return a new, empty sequence."""
        return Sequence(self, IntegerCache(self.graph.states, self.graph.recurrent))

    def forward(
        self,
        ids: I32,
        cache: IntegerCache,
        *,
        positions: I32 | None = None,
        visible: NDArray[Any] | None = None,
        want_rows: I32 | None = None,
        embeds: NDArray[np.float32] | None = None,
        trace: Trace | None = None,
        check: bool = False,
    ) -> Logits:
        """Run a pass of n rows after the cache's committed rows. Its own rows wait in the cache for ``commit``.

        Args:
            ids: int32 [n], n >= 1; id -k is row k - 1 of ``embeds`` float32 [m, hidden].
            positions: int32 [n]; None continues the cache.
            visible: bool [n, n], or packed uint64 [n, ceil(n / 64)]: row i sees row j of this pass; None is causal.
            want_rows: int32 [r], the rows whose logits are requested; None is all.
            trace: called with the name and the integers of every value, in the order of computation.
            check: check that every value fits its width.

        Raises:
            UsageError: there are no ids, an id has no row, arrays do not fit each other, or a row does not see itself.
        """
        n = len(ids)
        if positions is None:
            positions = np.arange(cache.length, cache.length + n, dtype=np.int32)
        seen = np.tri(n, dtype=np.bool_) if visible is None else _unpacked(visible, n)
        if want_rows is None:
            want_rows = np.arange(n, dtype=np.int32)
        self._accept(ids, positions, seen, want_rows, embeds)
        context = IntegerPassContext(
            cache=cache, visible=seen, positions=positions, embeds=embeds, trace=trace, check=WidthCheck(enabled=check)
        )
        cache.begin(positions, seen)
        inputs = {"ids": ids, "positions": positions, "rows": want_rows}
        values: dict[str, Value] = {name: array.astype(np.int64) for name, array in inputs.items()}
        for index, operation in enumerate(self.graph.operations):
            arguments = [values[name] for name in operation.inputs]
            outputs = self._run[operation.kind](operation, self.constants[operation.name], arguments, context)
            values.update(zip(operation.outputs, outputs, strict=True))
            for name in operation.inputs:
                if self._last_uses[name] == index:
                    values.pop(name, None)
        logits = values[self.graph.outputs[0]]
        assert isinstance(logits, Logits)
        return logits

    def _accept(
        self, ids: I32, positions: I32, seen: NDArray[np.bool_], rows: I32, embeds: NDArray[np.float32] | None
    ) -> None:
        n, embedded = len(ids), 0 if embeds is None else len(embeds)
        if n == 0:
            raise UsageError("a pass needs at least one id")
        if len(positions) != n or (positions < 0).any():
            raise UsageError(f"a pass of {n} rows needs {n} positions, none negative, not {positions.tolist()}")
        if not seen.diagonal().all():
            raise UsageError(f"row {int(np.flatnonzero(~seen.diagonal())[0])} of the pass does not see itself")
        if ((rows < 0) | (rows >= n)).any():
            raise UsageError(f"logits of rows {rows.tolist()} are requested of a pass of {n} rows")
        if int(ids.min()) < -embedded or int(ids.max()) >= self.vocab:
            raise UsageError(f"ids {int(ids.min())}..{int(ids.max())} are not in {-embedded}..{self.vocab - 1}")


def _unpacked(visible: NDArray[Any], n: int) -> NDArray[np.bool_]:
    """Return bool [n, n] from the same, or from bits in uint64 [n, ceil(n / 64)], lowest bit first."""
    words = -(-n // 64)
    if visible.dtype == np.uint64 and visible.shape == (n, words):
        data = np.ascontiguousarray(visible, "<u8").view(np.uint8)
        return np.unpackbits(data, axis=1, count=n, bitorder="little").astype(np.bool_)
    if visible.dtype == np.bool_ and visible.shape == (n, n):
        return visible
    raise UsageError(
        f"a pass of {n} rows needs visible as bool [{n}, {n}] or uint64 [{n}, {words}], "
        f"not {visible.dtype} {list(visible.shape)}"
    )


class Sequence:
    """A sequence of a model with its cache. ``forward`` has the arguments of ``IntegerModel.forward``."""

    def __init__(self, model: IntegerModel, cache: IntegerCache) -> None:
        self.model, self.cache = model, cache

    @property
    def length(self) -> int:
        """Number of committed rows."""
        return self.cache.length

    def forward(self, ids: I32, **options: Any) -> Logits:
        return self.model.forward(ids, self.cache, **options)

    def commit(self, nodes: I32) -> None:
        self.cache.commit(nodes)

    def truncate(self, length: int) -> None:
        self.cache.truncate(length)

    def fork(self) -> Sequence:
        return Sequence(self.model, self.cache.fork())
