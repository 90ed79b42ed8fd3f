"""The portable graph of ONNX Runtime's standard operators: on the CPU, CUDA, and, through the WebGPU plug-in, mobile GPUs.

Each bundle has one session, with weights mapped from the bundle's file. Each sequence has one set of key/value buffers, in
which past and present share memory. The rows of a tree pass are written after the committed ones; ``commit`` moves the
accepted rows together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import Tensor
from edgedec.errors import DeviceError, UnsupportedError
from edgedec.graph.graph import FEATURES_INPUT, Graph
from edgedec.graph.ops import Attention, Linear
from edgedec.host.ort import onnxruntime as ort
from edgedec.memory.heap import freed_blocks_go_back
from edgedec.onnx.lowering import check_lowered, emit
from edgedec.runtime.kernels import PORTABLE
from edgedec.runtime.model_graph import bundle_graph, embedding_name
from edgedec.runtime.protocols import I32, Bytes, CostModel, Limits, Pass, PassResult, State, TargetInfo, Ticket
from edgedec.runtime.run_sizes import reserved_rows, usual_result_rows, widest_pass
from edgedec.runtime.sampling.likeliest import find_likeliest
from edgedec.runtime.targets._footprint import (
    PACKED_OPERATION_BYTES,
    RUNTIME,
    RUNTIME_BYTES,
    check_one_file,
    features_bytes,
    read_weights,
    rotary_bytes,
    transform_bytes,
    widest_value,
)
from edgedec.runtime.targets._int8_products import signed_int8_is_exact
from edgedec.runtime.targets._providers import KeyValueMemory, key_value_memory, open_session
from edgedec.runtime.targets._results import FinishedTicket, check_pass
from edgedec.runtime.visibility import unpack
from edgedec.schemes import Int4Scheme, Int8Scheme, TernaryScheme

__all__ = ["OnnxTarget", "portable_footprint"]

_MASKED = np.float32(-np.inf)

_ACTIVATION_COPIES = 12  # activations that are alive at once, in units of the widest value
# Bytes for each row and position while the bias of a window is computed, before there are scores: two arrays of floats, and
# two arrays of booleans.
_MASKING = 10
_SCORE_COPIES = 3  # copies of the scores: GroupQueryAttention's own, with the bias, and as probabilities
_LOGITS_COPIES = 3  # copies of the logits: int32 and float32 results of ONNX Runtime, and the target's own


class _OnnxState:
    """The cache of one sequence. Each buffer of ``memory`` is bound to an input ``past`` and to its output ``present``."""

    commit_seconds: float | None = None

    def __init__(self, target: OnnxTarget, limits: Limits) -> None:
        self.target, self.limits = target, limits
        self.length = 0
        self.memory: KeyValueMemory = target.new_memory()

    def commit(self, nodes: I32) -> None:
        if not np.array_equal(nodes, np.arange(len(nodes))):
            self.memory.move(self.length, nodes)
        self.length += len(nodes)

    def truncate(self, length: int) -> int:
        self.length = length
        return length

    def reach(self, length: int) -> int:
        return min(length, self.length)

    def fork(self) -> _OnnxState:
        other = _OnnxState(self.target, self.limits)
        other.length = self.length
        other.memory.copy_from(self.memory, self.length)
        return other

    def close(self) -> None:
        self.memory.clear()


class OnnxTarget:
    """A bundle in an ONNX Runtime session of standard operators.

    ``unsigned_int8`` selects the form of int8 matrices; None selects the fastest form that is exact on this CPU. The CPU
    matters on every device, because neither GPU provider has a kernel for int8 matrices.
    """

    cost_model: CostModel | None = None
    free_rows: int | None = None

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str,
        limits: Limits,
        threads: int,
        taps: tuple[str, ...],
        unsigned_int8: bool | None = None,
    ) -> None:
        self.bundle, self.device, self.limits = bundle, device, limits
        self.graph: Graph = bundle_graph(bundle)
        self._embedding = bundle.row_reader(embedding_name(self.graph))
        self._taps = taps
        if unsigned_int8 is None:
            unsigned_int8 = _multiplies_int8(self.graph) and not signed_int8_is_exact()
        self._unsigned_int8 = unsigned_int8
        # ONNX Runtime copies all int8 matrices before it packs the first one; freed copies must make room for packed ones.
        copies = _copied_bytes(_matrices(bundle, self.graph), unsigned_int8)
        with freed_blocks_go_back() if copies else contextlib.nullcontext():
            self._session = self._open(threads, unsigned_int8)
        vocab = self.graph.weights[embedding_name(self.graph)].shape[0]
        self.info = TargetInfo(
            vocab=vocab,
            tokenizer_hash=bundle.tokenizer_hash,
            positions=limits.positions,
            taps=taps,
            masks="tree",
            batch_invariant=False,  # the sums of GroupQueryAttention depend on the number of rows of the pass
            kernel=PORTABLE if device == "cpu" else None,
            features=self.graph.features,
        )
        # Attention bias that every pass reuses; it is zero except during tree passes.
        self._bias = np.zeros(limits.nodes * limits.positions, np.float32)

    def _open(self, threads: int, unsigned_int8: bool) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        options.enable_cpu_mem_arena = False  # an arena would keep the memory of one wide pass
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(self.bundle.path.resolve())
        )
        model = emit(
            self.graph,
            self.bundle.tensors,
            positions=self.limits.positions,
            taps=self._taps,
            unsigned_int8=unsigned_int8,
        ).model()
        try:
            return open_session(model, options, self.device)
        except DeviceError:
            raise
        except Exception as error:  # ONNX Runtime's exception classes share no base
            raise DeviceError(f"ONNX Runtime cannot load {self.bundle.path} on {self.device}: {error}") from error

    def footprint(self, limits: Limits) -> Bytes:
        """Return the bytes of memory that a run within ``limits`` takes."""
        return portable_footprint(self.bundle, limits, unsigned_int8=self._unsigned_int8)

    def new_memory(self) -> KeyValueMemory:
        """Return the key/value buffers of a new sequence."""
        shapes = {
            f"{state.name}.{part}": (1, state.kv_heads, self.limits.positions, state.head_dim)
            for state in self.graph.states.values()
            for part in ("key", "value")
        }
        return key_value_memory(self._session, self.device, shapes)

    def open(self, limits: Limits) -> State:
        """Return the empty cache of a new sequence."""
        return _OnnxState(self, limits)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        """Run the passes before returning, because on a CPU drafting at the same time would compete for the cores."""
        results = []
        for state, item in work:
            assert isinstance(state, _OnnxState)
            results.append(self._run(state, item))
        return FinishedTicket(results)

    def _embed(self, work: Pass) -> NDArray[np.float32]:
        out = self._embedding.rows(np.maximum(work.ids, 0))
        if work.embeds is not None:
            from_embeds = work.ids < 0
            out[from_embeds] = work.embeds[-work.ids[from_embeds] - 1]
        return out[None]

    def _run(self, state: _OnnxState, work: Pass) -> PassResult:
        check_pass(work, state.length, self.limits, self.info)
        missing = [name for name in work.taps if name not in self._taps]
        if missing:
            raise UnsupportedError(f"the session was opened without the tap {missing[0]!r}; open it with taps=")
        if work.logits is not None and not len(work.logits):  # the session needs at least one row of logits
            result = self._run(state, replace(work, logits=None, top_k=0, log_sum=False))
            taps = {name: tap if self._tap_of_each_row(name) else tap[:0] for name, tap in result.taps.items()}
            top = find_likeliest(result.logits[:0], work.top_k, self.bundle.tokens.size, log_sum=work.log_sum)
            return replace(result, logits=result.logits[:0], top=top, taps=taps)
        n, width = len(work.ids), widest_pass(self.device)
        visible = None if work.visible is None else unpack(work.visible, n)
        if width is None or n <= width:
            return self._run_session(state, work, 0, visible)
        return self._run_in_parts(state, work, width, visible)

    def _run_in_parts(self, state: _OnnxState, work: Pass, width: int, visible: NDArray[np.bool_] | None) -> PassResult:
        """Run a pass in several runs of ``width`` rows. Each run sees the rows of earlier runs as past rows with a mask."""
        began, n = time.perf_counter(), len(work.ids)
        logit_rows = np.array([n - 1], np.int32) if work.logits is None else work.logits
        logits = np.empty((len(logit_rows), self.info.vocab), np.float32)
        taps: dict[str, NDArray[np.float32]] = {}
        for start in range(0, n, width):
            part = slice(start, min(start + width, n))
            here = np.flatnonzero((logit_rows >= part.start) & (logit_rows < part.stop))
            # A run needs at least one row of logits; an additional one is dropped below.
            rows = logit_rows[here] - start if len(here) else np.zeros(1, np.int32)
            result = self._run_session(
                state,
                replace(
                    work,
                    ids=work.ids[part],
                    positions=work.positions[part],
                    features=None if work.features is None else work.features[part],
                    logits=rows,
                    top_k=0,
                    log_sum=False,
                ),
                start,
                None if visible is None else visible[part, : part.stop],
            )
            logits[here] = result.logits[: len(here)]
            for name, values in result.taps.items():
                to, values = (part, values) if self._tap_of_each_row(name) else (here, values[: len(here)])
                size = n if self._tap_of_each_row(name) else len(logit_rows)
                taps.setdefault(name, np.empty((size, values.shape[1]), np.float32))[to] = values
        top = find_likeliest(logits, work.top_k, self.bundle.tokens.size, log_sum=work.log_sum)
        return PassResult(logits=logits, top=top, taps=taps, seconds=time.perf_counter() - began)

    def _tap_of_each_row(self, name: str) -> bool:
        """Return whether a tap has values for all rows of a pass, and not only for those with logits."""
        return self.graph.values[name].shape[0] == "n"

    def _run_session(self, state: _OnnxState, work: Pass, before: int, visible: NDArray[np.bool_] | None) -> PassResult:
        """Run the session once. ``before`` rows of the same pass ran already; ``visible`` is [n, before + n]."""
        began = time.perf_counter()
        n, past = len(work.ids), state.length
        total = past + before + n
        bias = self._bias[: n * total].reshape(1, 1, n, total)
        if visible is not None:
            bias[0, 0, :, past:] = np.where(visible, np.float32(0), _MASKED)
        rows = np.array([n - 1], np.int64) if work.logits is None else work.logits.astype(np.int64)
        logits = np.empty((1, len(rows), self.info.vocab), np.float32)

        binding = self._session.io_binding()
        binding.bind_cpu_input("embed", self._embed(work))
        binding.bind_cpu_input("positions", work.positions.astype(np.int64)[None])
        binding.bind_cpu_input("rows", rows)
        if work.features is not None:
            binding.bind_cpu_input(FEATURES_INPUT, work.features[None])
        binding.bind_cpu_input("attention_bias", bias)
        binding.bind_cpu_input("seqlens_k", np.array([total - 1], np.int32))
        binding.bind_cpu_input("total_length", np.array([total], np.int32))
        for name, value in state.memory.values.items():
            binding.bind_ortvalue_input(f"past.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        # This array becomes the result without a copy.
        binding.bind_ortvalue_output(f"out.{self.graph.outputs[0]}", ort.OrtValue.ortvalue_from_numpy(logits))
        for name in self._taps:
            binding.bind_output(f"out.{name}")
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's exception classes share no base
            raise DeviceError(
                f"ONNX Runtime failed in a pass of {n} rows over {past} on {self.device}: {error}"
            ) from error
        finally:
            if visible is not None:
                bias[...] = 0  # reset it for the next pass
        # Outputs are in the order of binding, the taps last.
        tapped = dict(zip(self._taps, binding.get_outputs()[-len(self._taps) or None :], strict=False))
        taps = {name: tapped[name].numpy()[0] for name in work.taps}
        top = find_likeliest(logits[0], work.top_k, self.bundle.tokens.size, log_sum=work.log_sum)
        return PassResult(logits=logits[0], top=top, taps=taps, seconds=time.perf_counter() - began)


def _multiplies_int8(graph: Graph) -> bool:
    linears = (operation for operation in graph.operations if isinstance(operation, Linear))
    return any(isinstance(scheme, Int8Scheme) for linear in linears for scheme in linear.schemes)


def _matrices(bundle: Bundle, graph: Graph) -> list[Tensor]:
    return [bundle.tensors[name] for name in sorted(read_weights(graph))]


def _copied_bytes(matrices: Sequence[Tensor], unsigned_int8: bool) -> int:
    """Return the bytes of the copies of int8 matrices that the session makes while it folds constants.

    There is one copy of a matrix if it becomes uint8, and one if it is transposed to [in, out]. ONNX Runtime frees no copy
    before it has made all of them.
    """
    int8 = [(item.nbytes, item.scheme) for item in matrices if isinstance(item.scheme, Int8Scheme)]
    return sum(nbytes * (unsigned_int8 + scheme.rows) for nbytes, scheme in int8)


def _packed_bytes(tensor: Tensor) -> int:
    """Return the bytes that ONNX Runtime keeps of a matrix after packing it.

    An int8 matrix has a column sum for each output. A ternary or int4 matrix has its codes, a float32 scale and a sum for
    each block, and also the stored scales, which stay mapped. A float matrix is stored as float32.
    """
    parts = tensor.scheme.parts(tensor.shape)
    if isinstance(tensor.scheme, TernaryScheme):
        codes, scales = parts["codes"].nbytes, parts["scale"].nbytes
        folded = 2 * scales if tensor.scheme.half_scales else 0  # ONNX Runtime converts them to float32
        return codes + 8 * (4 * codes // tensor.scheme.block(tensor.shape[1])) + scales + folded
    if isinstance(tensor.scheme, Int4Scheme):
        groups = tensor.shape[0] * tensor.scheme.groups(tensor.shape[1])
        return tensor.nbytes + (16 if tensor.scheme.offset else 8) * groups
    if isinstance(tensor.scheme, Int8Scheme):
        return parts["codes"].nbytes + 2 * parts["scale"].nbytes
    return 4 * tensor.count


def portable_footprint(
    bundle: Bundle, limits: Limits, *, result_rows: int | None = None, unsigned_int8: bool | None = None
) -> Bytes:
    """Return the charged bytes of the portable graph, from shapes and from constants measured with ONNX Runtime 1.31.

    See ``OnnxTarget`` for ``unsigned_int8``.

    A single copy of the int8 matrices adds nothing, because each copy is freed when it is packed.
    """
    graph = bundle_graph(bundle)
    check_lowered(graph, kernels=False)
    check_one_file(bundle, bundle.tensors)
    vocab = graph.weights[embedding_name(graph)].shape[0]
    matrices = _matrices(bundle, graph)
    weights = sum(map(_packed_bytes, matrices))
    if unsigned_int8 is None:
        unsigned_int8 = _multiplies_int8(graph) and not signed_int8_is_exact()
    excess = max(0, _copied_bytes(matrices, unsigned_int8) - weights)
    rows = result_rows or usual_result_rows(limits)
    windows = {(state.window, state.sinks) for state in graph.states.values() if state.window is not None}
    heads = max((op.heads for op in graph.operations if isinstance(op, Attention)), default=0)
    return {
        "weights": weights + 4 * vocab,  # each row of the embedding has a scale
        "kv": reserved_rows(limits) * sum(state.row_bytes() for state in graph.states.values()),
        "logits": _LOGITS_COPIES * 4 * vocab * rows,
        "attention_bias": 4 * (1 + len(windows)) * limits.nodes * limits.positions,  # one more for each kind of window
        "attention_scores": max(_SCORE_COPIES * 4 * heads, _MASKING if windows else 0)
        * limits.nodes
        * limits.positions,
        "activations": _ACTIVATION_COPIES * 4 * limits.nodes * widest_value(graph),
        **features_bytes(graph, limits.nodes),
        "rotary_tables": 2 * rotary_bytes(graph, limits.positions),  # in the model and in the session
        "session": PACKED_OPERATION_BYTES * len(graph.operations) + transform_bytes(graph),
        RUNTIME: RUNTIME_BYTES,
        # One matrix is mapped at a time while it is copied or packed.
        "load_transient": max(tensor.nbytes for tensor in matrices) + excess,
    }
