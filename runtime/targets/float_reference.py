"""The reference model as a target. It is slow, but defines the results, and is batch-invariant."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.graph.capacity import Capacity
from edgedec.graph.graph import Graph
from edgedec.reference.float_profile.cache import FloatCache
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.model_graph import bundle_graph, embedding_name
from edgedec.runtime.protocols import I32, Bytes, CostModel, Limits, Pass, PassResult, State, TargetInfo, Ticket
from edgedec.runtime.run_sizes import recurrent_bytes, reserved_rows
from edgedec.runtime.sampling.likeliest import find_likeliest
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import Bounds
from edgedec.runtime.targets._footprint import features_bytes, tap_items
from edgedec.runtime.targets._results import FinishedTicket, check_pass, check_positions
from edgedec.runtime.targets._unlimited import memories
from edgedec.runtime.visibility import unpack
from edgedec.schemes import Int4Scheme, TernaryScheme

__all__ = ["bounds", "create", "footprint", "kv_choices", "memories"]


class _ReferenceState:
    commit_seconds: float | None = None

    def __init__(self, cache: FloatCache) -> None:
        self.cache = cache
        self.length = cache.length

    def commit(self, nodes: I32) -> None:
        self.cache.commit(nodes)
        self.length = self.cache.length

    def truncate(self, length: int) -> int:
        self.length = self.cache.truncate(length)
        return self.length

    def reach(self, length: int) -> int:
        return self.cache.reach(min(length, self.length))

    def fork(self) -> State:
        return _ReferenceState(self.cache.fork())

    def close(self) -> None:
        self.cache = FloatCache({})


class _ReferenceTarget:
    cost_model: CostModel | None = None
    free_rows: int | None = None

    def __init__(
        self, bundle: Bundle, limits: Limits, taps: tuple[str, ...], kv_bits: int | None, *, rings: bool = True
    ) -> None:
        graph = bundle_graph(bundle, kv_bits, rings=rings)
        weights = {name: bundle.weight(name) for name in graph.weights}
        self.model = ReferenceModel(graph, weights.__getitem__)
        self.bundle, self.limits = bundle, limits
        self.info = TargetInfo(
            vocab=graph.weights[embedding_name(graph)].shape[0],
            tokenizer_hash=bundle.tokenizer_hash,
            positions=limits.positions,
            taps=taps,
            masks="any",
            batch_invariant=True,
            features=graph.features,
        )

    def footprint(self, limits: Limits) -> Bytes:
        return footprint(self.bundle, TargetRequest(limits=limits, taps=self.info.taps))

    def open(self, limits: Limits) -> State:
        return _ReferenceState(self.model.new_cache(slack=self.limits.nodes))

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        return FinishedTicket([self._run(state, item) for state, item in work])

    def _run(self, state: State, work: Pass) -> PassResult:
        assert isinstance(state, _ReferenceState)
        check_pass(work, state.length, self.limits, self.info)
        check_positions(work, state.cache.least_position)
        began, n = time.perf_counter(), len(work.ids)
        logits, taps = self.model.forward(
            work.ids,
            state.cache,
            positions=work.positions,
            visible=None if work.visible is None else unpack(work.visible, n),
            rows=np.array([n - 1], np.int32) if work.logits is None else work.logits,
            embeds=work.embeds,
            features=work.features,
            taps=work.taps,
        )
        top = find_likeliest(logits, work.top_k, self.bundle.tokens.size, log_sum=work.log_sum)
        return PassResult(logits=logits, top=top, taps=taps, seconds=time.perf_counter() - began)


def create(bundle: Bundle, request: TargetRequest) -> _ReferenceTarget:
    """Return the target (entry point of the plug-in). The threads are ignored: NumPy chooses its threads."""
    return _ReferenceTarget(bundle, request.limits, request.taps, request.kv_bits)


def bounds(bundle: Bundle, device: str, positions: int = 1, sequences: int = 1) -> Bounds:
    """Return no limits. Rows outside of windows are dropped."""
    return Bounds(rings=True)


def kv_choices(device: str, bundle: Bundle | None = None) -> tuple[int, ...]:
    """Return the numbers of bits to which keys and values are rounded. They are stored as float32 in every case."""
    return (32, 16, 8, 4)


def footprint(bundle: Bundle, request: TargetRequest) -> Bytes:
    """Return the bytes by item. A trit or int4 code is unpacked to one byte, and products are computed in float64."""
    graph, limits = bundle_graph(bundle, rings=True), request.limits
    unpacked = sum(
        tensor.scheme.opened_bytes(tensor.shape) if isinstance(tensor.scheme, TernaryScheme) else tensor.count
        for tensor in bundle.tensors.values()
        if isinstance(tensor.scheme, TernaryScheme | Int4Scheme)
    )
    borrowed = sum(bundle.tensors[name].nbytes for name in bundle.borrowed)
    largest = max(tensor.count for tensor in bundle.tensors.values())
    vocab = graph.weights[embedding_name(graph)].shape[0]
    return {
        "weights": bundle.file_bytes["weights.bin"] + borrowed + unpacked,
        **_kv_bytes(graph, limits),
        **recurrent_bytes(graph, limits),
        "workspace": 16 * largest,
        **features_bytes(graph, limits.nodes),
        "logits": 4 * vocab * limits.nodes,
        **tap_items(bundle, limits, request.taps),
    }


def _kv_bytes(graph: Graph, limits: Limits) -> Bytes:
    """Return the bytes of keys and values, twice, because they grow by copies: of all rows, and of the rows of rings."""
    items = {"kv": 0, "kv_ring": 0}
    for state in graph.states.values():
        ring = Capacity(window=state.window, sinks=state.sinks, slack=limits.nodes)
        name = "kv_ring" if ring.rows(limits.positions) < limits.positions else "kv"
        items[name] += 2 * reserved_rows(limits) // limits.positions * ring.rows(limits.positions) * state.row_bytes()
    return items if items["kv_ring"] else {"kv": items["kv"]}
