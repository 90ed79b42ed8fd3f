"""The CPU target with the project's own ONNX Runtime operators (runtime/kernels). A pass is one run of one session.

Weights are read into huge pages or memory-mapped (runtime/kernels/huge_pages.py): ternary matrices from the layout cache,
int8 matrices from the bundle itself. Keys and values of a sequence are in one buffer, which the operators update in place.
Inputs and outputs are bound once for each number of rows; after that this module allocates nothing in a pass. The library of
the operators runs the session (runtime/kernels/session.py), so that the compiled loop can run passes without Python.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.environment import FUSED
from edgedec.errors import DeviceError, UnsupportedError, UsageError
from edgedec.graph import Graph
from edgedec.manifest import Tensor
from edgedec.onnx.emitter import packed_names
from edgedec.onnx.kv_cache import BLOCK_ROWS, CacheLayout, blocks_of, cache_layout
from edgedec.onnx.lowering import check_lowered, lower
from edgedec.onnx.recurrent_layout import recurrent_layout
from edgedec.ops import Linear
from edgedec.runtime import visibility
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.huge_pages import LEAST_BYTES, FileReader, huge_page_bytes
from edgedec.runtime.kernels.layout_cache import LOAD_BYTES, layout_bytes, open_layout
from edgedec.runtime.kernels.recurrent import RecurrentBuffer
from edgedec.runtime.kernels.session import RESULTS, ROWS, WORDS, KernelSession, Memory
from edgedec.runtime.loop.inputs import LoopInputs
from edgedec.runtime.model_graph import bundle_graph, embedding_name
from edgedec.runtime.protocols import F32, I32, Bytes, CostModel, Limits, Pass, PassResult, State, TargetInfo, Ticket
from edgedec.runtime.run_sizes import cache_rows, recurrent_slots, run_rows, usual_result_rows
from edgedec.runtime.targets._arena import ArenaState, CacheArena, RecurrentArenaState
from edgedec.runtime.targets._footprint import (
    OPERATION_BYTES,
    RUNTIME,
    RUNTIME_BYTES,
    SELF_TEST,
    SELF_TEST_BYTES,
    read_weights,
    rotary_bytes,
    widest_value,
)
from edgedec.runtime.targets._heap import trim_heap
from edgedec.runtime.targets._lending import Lent, lend
from edgedec.runtime.targets._results import FinishedTicket, check_pass, check_positions, top_k
from edgedec.runtime.targets._slots import RecurrentSlots
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, TernaryScheme

__all__ = ["KV_CHOICES", "CpuTarget", "cpu_footprint", "resident_bytes"]

KV_CHOICES = (16, 8, 32)  # supported bits of keys and values; the first is the default
# Activations that are alive at once, in units of the widest value; blocks of ONNX Runtime's arena are rounded up.
_ACTIVATION_COPIES = 6
_BLOCK_ROWS = 8  # kRows of attention.hpp
_BLOCK_BYTES = 64  # Python objects for each block of the arena: its number, its place among the free ones, its holders
_BINDINGS = 96  # sizes of passes whose arrays are kept, as many as ``kMostBindings`` of ort_session.cpp


def _packed_names(graph: Graph, bundle: Bundle) -> list[str]:
    """Return the names of the matrices that are in the layout cache."""
    return [name for name in graph.weights if isinstance(bundle.tensors[name].scheme, TernaryScheme | Int4Scheme)]


class PassArrays(NamedTuple):
    """The inputs and outputs of n rows with r rows of logits, as views of the target's buffers."""

    embed: F32  # [n, width]
    positions: NDArray[np.int64]  # [n]
    rows: NDArray[np.int64]  # [r]
    visible: NDArray[np.uint64]  # [n, words]
    logits: F32  # [r, vocab]
    row_taps: Mapping[str, F32]  # name -> [n, width]
    taps: Mapping[str, F32]  # name -> [r, width]

    def part(self, row: int, end: int, result: int, stop: int) -> PassArrays:
        """Return the part of a sequence: rows [row, end), and rows [result, stop) of logits."""
        return PassArrays(
            embed=self.embed[row:end],
            positions=self.positions[row:end],
            rows=self.rows[result:stop],
            visible=self.visible[row:end],
            logits=self.logits[result:stop],
            row_taps={name: values[row:end] for name, values in self.row_taps.items()} if self.row_taps else {},
            taps={name: values[result:stop] for name, values in self.taps.items()} if self.taps else {},
        )


class CpuTarget:
    """A bundle in one ONNX Runtime session with the project's own operators.

    Passes that are submitted together run together, as long as their rows fit into one run. ``logits`` and ``taps`` of a
    result are views of the target's own memory, which its next pass overwrites.

    ``rings`` False keeps all rows of layers with a window, too, which changes no result.
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
        rings: bool = True,
    ) -> None:
        self.bundle, self.limits, self._kernels, self._taps = bundle, limits, kernels, taps
        self._threads, self._kv_bits = threads, kv_bits
        self.graph: Graph = bundle_graph(bundle, kv_bits or KV_CHOICES[0], rings=rings)
        self._layout = _layout(self.graph, limits)
        self._recurrent = recurrent_layout(self.graph, limits.nodes)
        slots = None
        if self._recurrent is not None:
            slots = RecurrentSlots(RecurrentBuffer(kernels, self._recurrent, recurrent_slots(limits)))
        self._arena = CacheArena(kernels, self._layout, limits.positions, slots)
        self.embedding = bundle.row_reader(embedding_name(self.graph))
        vocab, self._width = self.graph.weights[embedding_name(self.graph)].shape
        self._files = FileReader()  # no operator reads weights before the first run
        try:
            self._session = self._open(threads)
        finally:
            self._files.finish()
        self._row_taps = {name for name in taps if self.graph.values[name].shape[0] == "n"}  # others: rows with logits
        self.info = TargetInfo(
            vocab=vocab,
            tokenizer_hash=bundle.tokenizer_hash,
            positions=limits.positions,
            taps=taps,
            masks="any" if slots is None else "tree",
            batch_invariant=_all_quantized(self.graph),
            kernel=kernels.code_path,
            block_rows=BLOCK_ROWS,
        )
        self._rows = run_rows(limits)
        self._sequences = np.zeros((self._rows, 2), np.int64)  # rows and committed rows of each sequence of a run
        self._tables = np.zeros((len(self._layout.kinds), self._rows * blocks_of(limits.positions)), np.int32)
        self._slots = np.zeros(self._rows, np.int64)  # slot of each sequence of a run, if states are recurrent
        self._positions = np.zeros(self._rows, np.int64)
        self._result_rows = np.zeros(self._rows, np.int64)
        self._visible = np.zeros(self._rows * _words(self._rows), np.uint64)
        self._causal = visibility.pack(np.tri(limits.nodes, dtype=np.bool_))  # its beginning is that of fewer rows
        self._floats: dict[str, F32] = {}  # the buffers of each name
        self._is_bound = False  # True while the session's inputs and outputs are these buffers
        self._bound: dict[tuple[int, int], PassArrays] = {}
        self._lent: Lent | None = None

    def _open(self, threads: int) -> KernelSession:
        initializers: dict[str, NDArray[Any]] = {}
        self._add_int8(initializers)
        model = lower(
            self.graph,
            self.bundle.tensors,
            positions=self.limits.positions,
            cache=self._layout,
            recurrent=self._recurrent,
            taps=self._taps,
            packed=self._add_packed(initializers),
            kernels=True,
            fused_threads=(threads or os.cpu_count() or 1) if FUSED.value() is None or FUSED.is_on() else 0,
        )
        folder = self.bundle.path.resolve()
        try:
            return KernelSession(self._kernels, model, threads=threads, folder=folder, initializers=initializers)
        except RuntimeError as error:
            raise DeviceError(f"ONNX Runtime cannot load {self.bundle.path} on cpu: {error}") from error

    def _add_packed(self, initializers: dict[str, NDArray[Any]]) -> dict[str, tuple[int, int]]:
        """Add the matrices that are in the kernels' layout to ``initializers``.

        Returns:
            The sizes of the parts of the ternary and int4 matrices.
        """
        packed: dict[str, tuple[int, int]] = {}
        names = _packed_names(self.graph, self.bundle)
        if not names:
            return packed
        for name, arrays in open_layout(self.bundle, self._kernels, names).arrays(self._files.begin).items():
            parts = arrays if arrays[1].size else arrays[:1]  # without scales, they are among the codes
            initializers |= dict(zip(packed_names(name), parts, strict=False))
            packed[name] = (arrays[0].size, arrays[1].size)
        return packed

    def _add_int8(self, initializers: dict[str, NDArray[Any]]) -> None:
        """Add the int8 matrices that are large enough for huge pages. ONNX Runtime itself maps the others."""
        for name in sorted(read_weights(self.graph)):
            tensor = self.bundle.tensors[name]
            if not isinstance(tensor.scheme, Int8Scheme) or tensor.count < LEAST_BYTES or not huge_page_bytes():
                continue
            shape = tensor.scheme.parts(tensor.shape)["codes"].shape
            codes = self._files.begin(self.bundle.weights_file, tensor.offsets["codes"], tensor.count).view(np.int8)
            initializers[f"{name}.codes"] = codes.reshape(shape)

    def footprint(self, limits: Limits) -> Bytes:
        """Return the bytes of memory that a run within ``limits`` takes."""
        return cpu_footprint(self.bundle, limits, threads=self._threads, kv_bits=self._kv_bits)

    @property
    def free_rows(self) -> int:
        """Rows of the cache that no sequence holds."""
        return self._arena.free_rows

    @property
    def free_slots(self) -> int | None:
        """Number of sequences that can get recurrent states; None: the model has none."""
        slots = self._arena.slots
        return None if slots is None else slots.free

    def held_bytes(self, state: State) -> int:
        """Return the bytes of the blocks and the slot that a sequence holds; shared blocks count for each holder."""
        assert isinstance(state, ArenaState)
        return state.nbytes

    @property
    def idle_bytes(self) -> int:
        """Bytes of the cache that no sequence holds and that ``release_idle`` would give back to the system, at most."""
        return self._arena.idle_bytes

    def release_idle(self) -> None:
        """Give the memory of rows that no sequence holds, and of the heap, back to the system until it is needed again."""
        self._arena.release_pages()
        trim_heap()

    def open(self, limits: Limits) -> State:
        """Return the empty cache of a new sequence."""
        return self._arena.open()

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        """Run the passes before returning, because drafting at the same time would compete for the cores.

        Raises:
            CacheFullError: the caches of all sequences together have no room for the passes.
        """
        passes = [(self._checked(state, item), item) for state, item in work]
        if len(passes) > 1 and len({id(state) for state, _ in passes}) < len(passes):
            raise UsageError("a sequence occurs twice in one submit; submit its passes one after another")
        self._arena.reserve([(state, len(item.ids)) for state, item in passes])
        if len(passes) == 1:
            return FinishedTicket([self._run_one(*passes[0])])
        results: dict[int, PassResult] = {}
        runs = self._runs(passes)
        for run in runs:
            for number, result in zip(run, self._run([passes[number] for number in run]), strict=True):
                results[number] = result if run is runs[-1] else _copied(result)
        return FinishedTicket([results[number] for number in range(len(passes))])

    def lend(self, state: State, rows: int) -> LoopInputs | None:
        """Return the inputs and outputs of passes of 1 to ``rows`` rows, for the compiled loop.

        The result is None if the loop cannot use them, because the sequence is not one of this target, or has recurrent
        states, which the loop cannot commit.
        """
        if not isinstance(state, ArenaState) or state.arena is not self._arena or rows > self._rows:
            return None
        if isinstance(state, RecurrentArenaState):
            return None
        if self._lent is None or not self._lent.fits(self, rows):
            self._lent = lend(self, rows)
        return self._lent.inputs

    def run_inputs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], I32]:
        """Return the inputs of a run that the compiled loop writes besides ``PassArrays``.

        They are the rows with results, int64 [rows]; rows and committed rows of each sequence, int64 [rows, 2]; and the
        tables of all sequences, int32 [kinds, entries].
        """
        return self._result_rows, self._sequences, self._tables

    @property
    def session(self) -> KernelSession:
        """The session that runs passes."""
        return self._session

    def move_arguments(self) -> dict[str, Any]:
        """Return the function that moves rows of the cache and its arguments: ``KvBuffer.move_arguments``."""
        return self._arena.buffer.move_arguments()

    @property
    def threads(self) -> int:
        """Number of threads of a pass; 0: ONNX Runtime chooses it."""
        return self._threads

    @property
    def cache(self) -> NDArray[np.uint8]:
        """The keys and values of all sequences."""
        return self._arena.buffer.cache

    def run(self, arrays: PassArrays) -> None:
        """Run a pass whose inputs are set."""
        self._session.run(len(arrays.positions), len(arrays.rows))

    def _checked(self, state: State, work: Pass) -> ArenaState:
        assert isinstance(state, ArenaState)
        state.check_open()
        if state.arena is not self._arena:
            raise UsageError("the sequence belongs to another target; open one with Target.open of this one")
        check_pass(work, state.length, self.limits, self.info)
        check_positions(work, state.least_position)
        for name in work.taps:
            if name not in self._taps:
                raise UnsupportedError(f"the session was opened without the tap {name!r}; open it with taps=")
        return state

    def _runs(self, passes: Sequence[tuple[ArenaState, Pass]]) -> list[list[int]]:
        """Return the numbers of the passes of each run.

        Sequences with common blocks are neighbours, so that attention reads these blocks once.
        """
        runs: list[list[int]] = []
        left = 0
        for number in sorted(range(len(passes)), key=lambda number: passes[number][0].table.tobytes()):
            rows = len(passes[number][1].ids)
            if rows > left:
                runs.append([])
                left = self._rows
            runs[-1].append(number)
            left -= rows
        return runs

    def _run_one(self, state: ArenaState, work: Pass) -> PassResult:
        """Run a pass alone. It is written apart from ``_run`` because its time is a part of each token's."""
        began = time.perf_counter()
        arrays = self.bind(len(work.ids), _result_rows(work))
        self._fill(arrays, state, work)
        self._run_session(arrays, (state,))
        return self._result(arrays, state, work, began)

    def _run(self, passes: Sequence[tuple[ArenaState, Pass]]) -> list[PassResult]:
        """Run passes together and return their results."""
        began = time.perf_counter()
        arrays = self.bind(sum(len(work.ids) for _, work in passes), sum(_result_rows(work) for _, work in passes))
        parts: list[PassArrays] = []
        row = result = block = 0
        for at, (state, work) in enumerate(passes):
            end, stop = row + len(work.ids), result + _result_rows(work)
            parts.append(arrays.part(row, end, result, stop))
            block += self._fill(parts[-1], state, work, at=at, row=row, block=block)
            row, result = end, stop
        self._run_session(arrays, [state for state, _ in passes])
        return [self._result(part, state, work, began) for (state, work), part in zip(passes, parts, strict=True)]

    def _fill(
        self, part: PassArrays, state: ArenaState, work: Pass, *, at: int = 0, row: int = 0, block: int = 0
    ) -> int:
        """Set the inputs of sequence ``at`` of a run, whose first row is ``row``, and its table from entry ``block`` on.

        Returns:
            The number of its blocks.
        """
        n = len(work.ids)
        self._embed(work, part.embed)
        part.positions[...] = work.positions
        if work.logits is None:
            part.rows[0] = row + n - 1
        else:
            np.add(work.logits, row, out=part.rows)
        words = _words(n)
        part.visible[:, :words] = self._causal[:n, :words] if work.visible is None else work.visible
        self._sequences[at, 0], self._sequences[at, 1] = n, state.length
        if isinstance(state, RecurrentArenaState):
            assert state.slot is not None  # ``submit`` has reserved it
            state.visible = work.visible
            self._slots[at] = state.slot
        blocks = blocks_of(state.length + n)  # it may hold more after a wider pass that was not committed
        self._tables[:, block : block + blocks] = state.table[:, :blocks]
        return blocks

    def _run_session(self, arrays: PassArrays, states: Sequence[ArenaState]) -> None:
        try:
            self.run(arrays)
        except RuntimeError as error:
            rows, pasts = len(arrays.embed), ", ".join(str(state.length) for state in states)
            raise DeviceError(f"ONNX Runtime failed in a pass of {rows} rows over {pasts} on cpu: {error}") from error

    def _result(self, part: PassArrays, state: ArenaState, work: Pass, began: float) -> PassResult:
        state.passed(len(work.ids))
        taps = {name: (part.row_taps if name in part.row_taps else part.taps)[name] for name in work.taps}
        top = top_k(part.logits, work.top_k, self.bundle.tokens.size)
        return PassResult(logits=part.logits, top=top, taps=taps, seconds=time.perf_counter() - began)

    def _embed(self, work: Pass, out: F32) -> None:
        if work.embeds is None:
            self.embedding.rows(work.ids, out)
            return
        from_embeds = work.ids < 0
        self.embedding.rows(np.maximum(work.ids, 0), out)
        out[from_embeds] = work.embeds[-work.ids[from_embeds] - 1]

    def _grow(self, n: int, r: int) -> None:
        """Let the float buffers have room for ``n`` rows with ``r`` rows of results, and bind them."""
        rows = {"embed": n, "logits": r} | {name: n if name in self._row_taps else r for name in self._taps}
        if self._is_bound and all(len(self._floats[name]) >= count for name, count in rows.items()):
            return
        self._is_bound = (
            False  # until the end, because a failure in between leaves buffers that the session does not know
        )
        self._bound.clear()  # the arrays are views of the old buffers
        widths = {"embed": self._width, "logits": self.info.vocab}
        for name, count in rows.items():
            if name not in self._floats or len(self._floats[name]) < count:
                width = widths.get(name) or self.graph.values[name].shape[1]
                assert isinstance(width, int)
                self._floats[name] = np.empty((count, width), np.float32)
        cache = self._arena.buffer.cache
        inputs = {
            "embed": Memory(self._floats["embed"], (1, ROWS, self._width)),
            "positions": Memory(self._positions, (1, ROWS)),
            "rows": Memory(self._result_rows, (RESULTS,)),
            "visible": Memory(self._visible.view(np.int64), (ROWS, WORDS)),
            "sequences": Memory(self._sequences, self._sequences.shape),
            "blocks": Memory(self._tables, self._tables.shape),
            "cache": Memory(cache, cache.shape),
        }
        if self._arena.slots is not None:
            states = self._arena.slots.buffer.slots.reshape(-1)
            inputs |= {"slots": Memory(self._slots, self._slots.shape), "states": Memory(states, states.shape)}
        outputs = {f"out.{self.graph.outputs[0]}": Memory(self._floats["logits"], (1, RESULTS, self.info.vocab))}
        for name in self._taps:
            array = self._floats[name]
            outputs[f"out.{name}"] = Memory(array, (1, ROWS if name in self._row_taps else RESULTS, array.shape[1]))
        self._session.bind(inputs, outputs)
        self._is_bound = True

    def bind(self, n: int, r: int) -> PassArrays:
        """Return the inputs and outputs of passes of ``n`` rows with ``r`` rows of logits."""
        if (n, r) in self._bound:
            return self._bound[n, r]
        self._grow(n, r)
        taps = {name: self._floats[name][: n if name in self._row_taps else r] for name in self._taps}
        arrays = PassArrays(
            embed=self._floats["embed"][:n],
            positions=self._positions[:n],
            rows=self._result_rows[:r],
            visible=self._visible[: n * _words(n)].reshape(n, -1),
            logits=self._floats["logits"][:r],
            row_taps={name: values for name, values in taps.items() if name in self._row_taps},
            taps={name: values for name, values in taps.items() if name not in self._row_taps},
        )
        if len(self._bound) == _BINDINGS:
            del self._bound[next(iter(self._bound))]
        self._bound[n, r] = arrays
        return arrays


def _words(rows: int) -> int:
    """Return the words of 64 bits of a row of a mask."""
    return -(-rows // 64)


def _result_rows(work: Pass) -> int:
    """Return the number of rows of logits of a pass."""
    return 1 if work.logits is None else len(work.logits)


def _all_quantized(graph: Graph) -> bool:
    """Return whether no matrix is float. ONNX Runtime's float MatMul may add in another order for each number of rows."""
    linears = (operation for operation in graph.operations if isinstance(operation, Linear))
    return not any(isinstance(scheme, FloatScheme) for linear in linears for scheme in linear.schemes)


def _copied(result: PassResult) -> PassResult:
    """Return a copy of a result that the next pass does not overwrite."""
    taps = {name: values.copy() for name, values in result.taps.items()}
    return PassResult(logits=result.logits.copy(), top=result.top, taps=taps, seconds=result.seconds)


def _layout(graph: Graph, limits: Limits) -> CacheLayout:
    """Return the layout of the cache; the slack of rings is the largest pass of a sequence."""
    return cache_layout(graph.states, cache_rows(limits), positions=limits.positions, slack=limits.nodes)


def cpu_footprint(
    bundle: Bundle,
    limits: Limits,
    *,
    threads: int = 0,
    kv_bits: int | None = None,
    result_rows: int | None = None,
) -> Bytes:
    """Return the charged bytes by item, computed from shapes and from constants measured with ONNX Runtime 1.31.

    They are for submissions of at most ``run_rows(limits)`` rows. A wider one takes several runs, and the results of
    all runs but the last are copied.
    """
    graph = bundle_graph(bundle, kv_bits or KV_CHOICES[0], rings=True)
    check_lowered(graph, kernels=True)
    vocab, width = graph.weights[embedding_name(graph)].shape
    fixed = _fixed_sizes(bundle, graph, kv_bits or KV_CHOICES[0])
    widest = fixed.widest
    states, rows, blocks = graph.states.values(), run_rows(limits), blocks_of(limits.positions)
    layout, recurrent = _layout(graph, limits), recurrent_layout(graph, limits.nodes)
    # Each thread has the codes of a pass in three orders with their sums, and twice the scores of a block of rows.
    head_dim = max((state.head_dim for state in states), default=0)
    scores = head_dim + limits.positions + 16 if graph.states else 0
    thread_bytes = 4 * rows * widest + 4 * _BLOCK_ROWS * 2 * scores
    loaded = {
        "weights": fixed.weights + 4 * vocab,  # each row of the embedding has a scale
        "rotary_tables": rotary_bytes(graph, limits.positions),
        "session": OPERATION_BYTES * len(graph.operations),
    }
    one_sequence = not (limits.cache_rows or limits.batch_rows)  # ``result_rows`` are those of one pass
    # Conversion and self-test end before the session is loaded, so only their excess over its memory counts.
    converting = max(0, LOAD_BYTES * fixed.packed - sum(loaded.values()))
    testing = max(0, SELF_TEST_BYTES - RUNTIME_BYTES - sum(loaded.values()) - converting)
    return {
        **loaded,
        RUNTIME: RUNTIME_BYTES,
        "kv": layout.nbytes - layout.ring_bytes,
        **({"kv_ring": layout.ring_bytes} if layout.ring_bytes else {}),
        **({} if recurrent is None else {"recurrent": 4 * recurrent.slot_floats * recurrent_slots(limits)}),
        "masks": 8 * (rows * _words(rows) + limits.nodes * _words(limits.nodes)),
        # Two tables for each sequence and kind of states.
        "block_tables": _BLOCK_BYTES * sum(layout.blocks) + 2 * 4 * rows * blocks * len(layout.kinds),
        "logits": 4 * vocab * ((result_rows if one_sequence else None) or usual_result_rows(limits)),
        "activations": 4 * rows * (_ACTIVATION_COPIES * widest + width),
        "workspace": (threads or os.cpu_count() or 1)
        * (thread_bytes + 4 * (recurrent.head_floats if recurrent else 0)),
        "load_transient": converting,
        SELF_TEST: testing,
    }


@dataclass(frozen=True, kw_only=True)
class _FixedSizes:
    """The sizes of a bundle that no limit changes.

    Members:
        weights: resident bytes of all weights.
        packed: True if some of them are in the layout cache.
        widest: columns of the widest value of the graph except the logits.
    """

    weights: int
    packed: bool
    widest: int


def _fixed_sizes(bundle: Bundle, graph: Graph, kv_bits: int) -> _FixedSizes:
    """Return the sizes that no limit changes, cached because a planner asks for many limits."""
    key = ("fixed_sizes", kv_bits)
    if key not in bundle.derived:
        tensors = [bundle.tensors[name] for name in sorted(read_weights(graph))]
        bundle.derived[key] = _FixedSizes(
            weights=sum(map(resident_bytes, tensors)),
            packed=any(isinstance(tensor.scheme, TernaryScheme | Int4Scheme) for tensor in tensors),
            widest=widest_value(graph),
        )
    result: _FixedSizes = bundle.derived[key]
    return result


def resident_bytes(tensor: Tensor) -> int:
    """Return the resident bytes of a weight: in the kernels' layout, int8 codes as stored, floats as float32."""
    if isinstance(tensor.scheme, TernaryScheme | Int4Scheme):
        return layout_bytes(tensor)
    if isinstance(tensor.scheme, Int8Scheme):
        return tensor.nbytes
    return 4 * tensor.count
