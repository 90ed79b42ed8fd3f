"""A whole model in integers: prepared once from bundle and calibration, then interpreted one operation after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph import Graph
from edgedec.ops import Embed
from edgedec.passes import assign_schemes, fuse_linears, quantize_activations
from edgedec.plugins import load, names
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.calibration import Calibration
from edgedec.reference.integer_profile.context import PassContext, Trace
from edgedec.reference.integer_profile.defined import check_defined
from edgedec.reference.integer_profile.numbers import Check
from edgedec.reference.integer_profile.site import Site
from edgedec.reference.integer_profile.values import Form, Logits, Value
from edgedec.schemes import Weight

__all__ = ["IntegerModel", "Sequence", "integer_graph", "prepare", "prepare_graph"]

_OPS = "edgedec.reference.integer_profile.ops"

I32 = NDArray[np.int32]


def integer_graph(bundle: Bundle) -> Graph:
    """The graph that both profiles interpret: schemes assigned, quantize points in, neighbours fused.

    Raises:
        BundleError: the bundle's tensors do not fit its configuration.
        UnsupportedError: the family is not known, or has what the integer profile does not define.
    """
    graph = build_graph(bundle.config)
    check_defined(graph)
    bundle.check(graph)
    return fuse_linears(quantize_activations(assign_schemes(graph, bundle.schemes)))


def prepare(bundle: Bundle, calibration: Calibration) -> IntegerModel:
    """All constants of a bundle's model, by float64; deterministic.

    Raises:
        BundleError: the calibration is another model's, or the bundle is damaged.
        UnsupportedError: something does not map; names operation, layer and reason.
    """
    return prepare_graph(integer_graph(bundle), bundle.weight, calibration)


def prepare_graph(graph: Graph, weights: Callable[[str], Weight], calibration: Calibration) -> IntegerModel:
    """As ``prepare``, of a graph that has its quantize points."""
    known = names(_OPS)
    check_defined(graph)
    site, constants = Site(graph=graph, weights=weights, calibration=calibration), {}
    for operation in graph.operations:
        if operation.kind not in known:
            raise UnsupportedError(
                f"the integer profile does not define {operation.kind!r} ({operation.name}); known: {', '.join(known)}"
            )
        constants[operation.name] = load(_OPS, operation.kind).prepare(operation, site)
    return IntegerModel(graph, constants, site.forms)


class IntegerModel:
    """The graph with its constants.

    Members:
        constants: operation name -> what its file's ``prepare`` returned; integers that the accelerator is programmed with.
        forms: value name -> width and unit.
    """

    def __init__(self, graph: Graph, constants: Mapping[str, Any], forms: Mapping[str, Form]) -> None:
        self.graph, self.constants, self.forms = graph, constants, forms
        kinds = {operation.kind for operation in graph.operations}
        self._run = {kind: load(_OPS, kind).run for kind in kinds}
        self._last_uses = graph.last_uses()
        (embed,) = (operation for operation in graph.operations if isinstance(operation, Embed))
        self.vocab = graph.weights[embed.weight].shape[0]

    def open(self) -> Sequence:
        """A new, empty sequence."""
        return Sequence(self, IntegerCache(self.graph.states))

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
        """One pass of n rows over the cache's committed rows; its own rows wait in the cache for ``commit``.

        Args:
            ids: int32 [n], n >= 1; id -k is row k - 1 of ``embeds`` float32 [m, hidden].
            positions: int32 [n]; None continues the cache.
            visible: bool [n, n], or packed uint64 [n, ceil(n / 64)]: row i sees row j of this pass; None is causal.
            want_rows: int32 [r], the rows whose logits are wanted; None is all.
            trace: called with the name and the integers of every value, in the order in which they are made.
            check: prove that no value leaves its width.

        Raises:
            UsageError: no ids, an id without a row, arrays that do not fit each other, or a row that does not see itself.
        """
        n = len(ids)
        if positions is None:
            positions = np.arange(cache.length, cache.length + n, dtype=np.int32)
        seen = np.tri(n, dtype=np.bool_) if visible is None else _unpacked(visible, n)
        if want_rows is None:
            want_rows = np.arange(n, dtype=np.int32)
        self._accept(ids, positions, seen, want_rows, embeds)
        context = PassContext(
            cache=cache, visible=seen, positions=positions, embeds=embeds, trace=trace, check=Check(enabled=check)
        )
        cache.begin(positions)
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
        n, given = len(ids), 0 if embeds is None else len(embeds)
        if n == 0:
            raise UsageError("a pass needs at least one id")
        if len(positions) != n or (positions < 0).any():
            raise UsageError(f"a pass of {n} rows needs {n} positions, none negative, not {positions.tolist()}")
        if not seen.diagonal().all():
            raise UsageError(f"row {int(np.flatnonzero(~seen.diagonal())[0])} of the pass does not see itself")
        if ((rows < 0) | (rows >= n)).any():
            raise UsageError(f"logits of rows {rows.tolist()} are wanted of a pass of {n} rows")
        if int(ids.min()) < -given or int(ids.max()) >= self.vocab:
            raise UsageError(f"ids {int(ids.min())}..{int(ids.max())} are not in {-given}..{self.vocab - 1}")


def _unpacked(visible: NDArray[Any], n: int) -> NDArray[np.bool_]:
    """bool [n, n], or bits in uint64 [n, ceil(n / 64)], the lowest first."""
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
    """One sequence of a model: what a device keeps. ``forward`` takes what ``IntegerModel.forward`` takes."""

    def __init__(self, model: IntegerModel, cache: IntegerCache) -> None:
        self.model, self.cache = model, cache

    @property
    def length(self) -> int:
        """Committed rows."""
        return self.cache.length

    def forward(self, ids: I32, **options: Any) -> Logits:
        return self.model.forward(ids, self.cache, **options)

    def commit(self, nodes: I32) -> None:
        self.cache.commit(nodes)

    def truncate(self, length: int) -> None:
        self.cache.truncate(length)

    def fork(self) -> Sequence:
        return Sequence(self.model, self.cache.fork())
