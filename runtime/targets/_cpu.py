"""The CPU with our own operators (runtime/kernels): one run of one session per pass, over buffers made beforehand.

Weights are mapped: ternary matrices from the layout cache, int8 ones from the bundle itself. Keys and values of a sequence
lie in one buffer, which the operators write in place. What a pass needs is bound once per number of rows; after that a
pass allocates nothing here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import DeviceError, UnsupportedError
from edgedec.graph import Graph
from edgedec.manifest import Tensor
from edgedec.onnx.emitter import packed_names
from edgedec.onnx.kv_cache import CacheLayout, cache_layout
from edgedec.onnx.lowering import lower
from edgedec.ops import Linear
from edgedec.ort import onnxruntime as ort
from edgedec.runtime import visibility
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.attention import move_rows
from edgedec.runtime.kernels.layout_cache import LOAD_BYTES, layout_bytes, open_layout
from edgedec.runtime.kernels.operator import register
from edgedec.runtime.protocols import F32, I32, Bytes, CostModel, Limits, Pass, PassResult, State, TargetInfo, Ticket
from edgedec.runtime.targets._footprint import (
    OPERATION_BYTES,
    RUNTIME,
    RUNTIME_BYTES,
    SELF_TEST,
    SELF_TEST_BYTES,
    read_weights,
    rotary_bytes,
    usual_result_rows,
    widest_value,
)
from edgedec.runtime.targets._graphs import bundle_graph, embedding_name
from edgedec.runtime.targets._providers import open_session
from edgedec.runtime.targets._results import Done, check_pass, top_k
from edgedec.schemes import FloatScheme, Int8Scheme, TernaryScheme

__all__ = ["KV_CHOICES", "CpuTarget", "cpu_footprint"]

KV_CHOICES = (16, 8, 32)
_ACTIVATION_COPIES = 6  # values alive at once, in units of the widest; blocks of ONNX Runtime's arena are rounded up
_BLOCK_ROWS = 8  # kRows in attention.hpp
_BINDINGS = 96  # shapes of passes that stay bound, 5 KiB each


def _ternary_names(graph: Graph, bundle: Bundle) -> list[str]:
    """The matrices that go through the layout cache."""
    return [name for name in graph.weights if isinstance(bundle.tensors[name].scheme, TernaryScheme)]


class _CpuState:
    """``cache`` uint8 [bytes]: every state's keys and values, as ``CacheLayout`` says."""

    commit_seconds: float | None = None

    def __init__(self, kernels: Kernels, layout: CacheLayout) -> None:
        self._kernels, self._layout = kernels, layout
        self.length = 0
        self.cache = np.zeros(layout.nbytes, np.uint8)
        self.value = ort.OrtValue.ortvalue_from_numpy(self.cache)  # works in the array's own memory

    def commit(self, nodes: I32) -> None:
        if len(nodes) and nodes[-1] != len(nodes) - 1:  # ascending: else every row is in its place already
            self._move(nodes)
        self.length += len(nodes)

    def _move(self, nodes: I32) -> None:
        layout = self._layout
        ends = [*list(layout.offsets.values())[1:], layout.nbytes]
        for (name, start), end in zip(layout.offsets.items(), ends, strict=True):
            part = self.cache[start:end]
            move_rows(self._kernels, part, layout.states[name], layout.positions, self.length, nodes)

    def truncate(self, length: int) -> None:
        self.length = length

    def fork(self) -> _CpuState:
        other = _CpuState(self._kernels, self._layout)
        other.length = self.length
        other.cache[...] = self.cache
        return other

    def close(self) -> None:
        self.cache = np.zeros(0, np.uint8)
        self.value = None


@dataclass(frozen=True, kw_only=True)
class _Bound:
    """What a pass of n rows with r rows of logits is written into and read from; views of the target's buffers."""

    binding: Any
    embed: F32  # [n, width]
    positions: NDArray[np.int64]  # [n]
    rows: NDArray[np.int64]  # [r]
    visible: NDArray[np.uint64]  # [n, words]
    causal: NDArray[np.uint64]  # [n, words]
    logits: F32  # [r, vocab]
    taps: Mapping[str, F32]


class CpuTarget:
    """A bundle in one session with our own operators.

    ``logits`` and ``taps`` of a result are the target's own memory: they hold until its next pass.
    """

    cost_model: CostModel | None = None

    def __init__(
        self,
        bundle: Bundle,
        kernels: Kernels,
        *,
        limits: Limits,
        threads: int,
        taps: tuple[str, ...],
        kv_bits: int | None = None,
    ) -> None:
        self.bundle, self.limits, self._kernels, self._taps = bundle, limits, kernels, taps
        self._threads, self._kv_bits = threads, kv_bits
        self.graph: Graph = bundle_graph(bundle, kv_bits or KV_CHOICES[0])
        self._layout = cache_layout(self.graph.states, limits.positions)
        self._embedding = bundle.row_reader(embedding_name(self.graph))
        vocab, self._width = self.graph.weights[embedding_name(self.graph)].shape
        self._session = self._open(threads)
        self.info = TargetInfo(
            vocab=vocab,
            tokenizer_hash=bundle.tokenizer_hash,
            positions=limits.positions,
            taps=taps,
            masks="tree",
            batch_invariant=_all_quantized(self.graph),
            kernel=kernels.code_path,
        )
        self._past = np.zeros(1, np.int64)
        self._floats: dict[str, F32] = {}
        self._bound: dict[tuple[int, int], _Bound] = {}

    def _open(self, threads: int) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        # What lives for one pass has blocks of its own: on the C heap, whose small blocks outlive passes, passes of ever
        # other widths left holes without end (60 MiB after 40 MiB of activations). Weights stay out of them.
        options.enable_cpu_mem_arena = True
        options.enable_mem_pattern = False  # a block for all of a pass, of a size of its own for each width
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(self.bundle.path.resolve())
        )
        register(options, self._kernels)
        model = lower(
            self.graph,
            self.bundle.tensors,
            positions=self.limits.positions,
            taps=self._taps,
            packed=self._give_packed(options),
            kernels=True,
        )
        try:
            return open_session(model, options, "cpu")
        except Exception as error:  # ONNX Runtime raises classes of its own that share no base
            raise DeviceError(f"ONNX Runtime cannot load {self.bundle.path} on cpu: {error}") from error

    def _give_packed(self, options: ort.SessionOptions) -> dict[str, tuple[int, int]]:
        """Hand the ternary matrices over in the kernels' layout, mapped; their sizes."""
        self._given: list[ort.OrtValue] = []  # ONNX Runtime works in their memory
        packed: dict[str, tuple[int, int]] = {}
        names = _ternary_names(self.graph, self.bundle)
        if not names:
            return packed
        for name, arrays in open_layout(self.bundle, self._kernels, names).arrays().items():
            for label, array in zip(packed_names(name), arrays, strict=True):
                self._given.append(ort.OrtValue.ortvalue_from_numpy(array))
                options.add_initializer(label, self._given[-1])
            packed[name] = (arrays[0].size, arrays[1].size)
        return packed

    def footprint(self, limits: Limits) -> Bytes:
        return cpu_footprint(self.bundle, limits, threads=self._threads, kv_bits=self._kv_bits)

    def open(self, limits: Limits) -> State:
        return _CpuState(self._kernels, self._layout)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        """Runs at once: drafting meanwhile would only take the verifier's cores."""
        results = []
        for number, (state, item) in enumerate(work):
            assert isinstance(state, _CpuState)
            result = self._run(state, item)
            results.append(result if number == len(work) - 1 else _kept(result))
        return Done(results)

    def _run(self, state: _CpuState, work: Pass) -> PassResult:
        began = time.perf_counter()
        check_pass(work, state.length, self.limits, self.info.vocab)
        for name in work.taps:
            if name not in self._taps:
                raise UnsupportedError(f"the session was opened without the tap {name!r}; open it with taps=")
        n = len(work.ids)
        bound = self._bind(n, 1 if work.logits is None else len(work.logits))
        self._embed(work, bound.embed)
        bound.positions[...] = work.positions
        bound.rows[...] = n - 1 if work.logits is None else work.logits
        bound.visible[...] = bound.causal if work.visible is None else work.visible
        self._past[0] = state.length
        bound.binding.bind_ortvalue_input("cache", state.value)
        try:
            self._session.run_with_iobinding(bound.binding)
        except Exception as error:  # ONNX Runtime raises classes of its own that share no base
            raise DeviceError(
                f"ONNX Runtime failed in a pass of {n} rows over {state.length} on cpu: {error}"
            ) from error
        taps = {name: bound.taps[name] for name in work.taps}
        top = top_k(bound.logits, work.top_k, self.bundle.tokens.size)
        return PassResult(logits=bound.logits, top=top, taps=taps, seconds=time.perf_counter() - began)

    def _embed(self, work: Pass, out: F32) -> None:
        if work.embeds is None:
            self._embedding.rows(work.ids, out)
            return
        given = work.ids < 0
        self._embedding.rows(np.maximum(work.ids, 0), out)
        out[given] = work.embeds[-work.ids[given] - 1]

    def _buffer(self, name: str, rows: int, width: int) -> F32:
        """float32 [rows, width], a view of one buffer per name that grows to the most rows asked for."""
        if name not in self._floats or len(self._floats[name]) < rows:
            self._floats[name] = np.empty((rows, width), np.float32)
            self._bound.clear()  # they are bound to the old one
        return self._floats[name][:rows]

    def _bind(self, n: int, r: int) -> _Bound:
        if (n, r) in self._bound:
            return self._bound[n, r]
        logits = self._buffer("logits", r, self.info.vocab)
        taps = {}
        for name in self._taps:
            rows, width = self.graph.values[name].shape
            assert isinstance(width, int)
            taps[name] = self._buffer(name, n if rows == "n" else r, width)
        causal = visibility.pack(np.tri(n, dtype=np.bool_))
        bound = _Bound(
            binding=self._session.io_binding(),
            embed=self._buffer("embed", n, self._width),
            positions=np.zeros(n, np.int64),
            rows=np.zeros(r, np.int64),
            visible=np.zeros_like(causal),
            causal=causal,
            logits=logits,
            taps=taps,
        )
        inputs = {
            "embed": bound.embed[None],
            "positions": bound.positions[None],
            "rows": bound.rows,
            "visible": bound.visible.view(np.int64),
            "past": self._past,
        }
        wanted = {item.name for item in self._session.get_inputs()}
        for name, array in inputs.items():
            if name in wanted:
                bound.binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in {self.graph.outputs[0]: logits, **taps}.items():
            bound.binding.bind_ortvalue_output(f"out.{name}", ort.OrtValue.ortvalue_from_numpy(array[None]))
        if len(self._bound) == _BINDINGS:
            del self._bound[next(iter(self._bound))]
        self._bound[n, r] = bound
        return bound


def _all_quantized(graph: Graph) -> bool:
    """Whether every product is ours: ONNX Runtime's float MatMul is not told to keep its order for all sizes."""
    linears = (operation for operation in graph.operations if isinstance(operation, Linear))
    return not any(isinstance(scheme, FloatScheme) for linear in linears for scheme in linear.schemes)


def _kept(result: PassResult) -> PassResult:
    """A result that outlives the next pass."""
    taps = {name: values.copy() for name, values in result.taps.items()}
    return PassResult(logits=result.logits.copy(), top=result.top, taps=taps, seconds=result.seconds)


def cpu_footprint(
    bundle: Bundle,
    limits: Limits,
    *,
    threads: int = 0,
    kv_bits: int | None = None,
    result_rows: int | None = None,
) -> Bytes:
    """Charged bytes by item. Shapes give most of it; the constants were measured (ONNX Runtime 1.31)."""
    graph = bundle_graph(bundle, kv_bits or KV_CHOICES[0])
    vocab, width = graph.weights[embedding_name(graph)].shape
    tensors = {name: bundle.tensors[name] for name in sorted(read_weights(graph))}
    widest = widest_value(graph)
    states = graph.states.values()
    # Of each thread: the codes of a pass with their sums, and the scores of a block of rows, twice.
    head_dim = max((state.head_dim for state in states), default=0)
    thread_bytes = 2 * limits.nodes * widest + 4 * _BLOCK_ROWS * 2 * (head_dim + limits.positions + 16)
    loaded = {
        "weights": sum(map(_resident_bytes, tensors.values())) + 4 * vocab,  # rows of the embedding have a scale each
        "rotary_tables": rotary_bytes(graph, limits.positions),
        "session": OPERATION_BYTES * len(graph.operations),
    }
    # Both are over before the session begins: what they take beyond what comes in their place.
    ternary = any(isinstance(tensor.scheme, TernaryScheme) for tensor in tensors.values())
    converting = max(0, LOAD_BYTES * ternary - sum(loaded.values()))
    testing = max(0, SELF_TEST_BYTES - RUNTIME_BYTES - sum(loaded.values()) - converting)
    return {
        **loaded,
        RUNTIME: RUNTIME_BYTES,
        "kv": cache_layout(graph.states, limits.positions).nbytes,
        "logits": 4 * vocab * (result_rows or usual_result_rows(limits)),
        "activations": 4 * limits.nodes * (_ACTIVATION_COPIES * widest + width),
        "workspace": (threads or os.cpu_count() or 1) * thread_bytes,
        "load_transient": converting,
        SELF_TEST: testing,
    }


def _resident_bytes(tensor: Tensor) -> int:
    """What of a weight is resident: trits in the kernels' layout, int8 codes as they are stored, float as float32."""
    if isinstance(tensor.scheme, TernaryScheme):
        return layout_bytes(tensor)
    if isinstance(tensor.scheme, Int8Scheme):
        return tensor.nbytes
    return 4 * tensor.count
