"""The CPU target with the project's own operators (runtime/kernels). A pass is one run of one session.

Weights (runtime/kernels/weights) are read into huge pages or memory-mapped: ternary matrices from the layout cache, int8
matrices from the bundle itself. If memory has no room for all of them, some are read during passes. Keys and values of a
sequence are in one buffer, which the operators update in place. Inputs and outputs are bound once for each number of rows;
after that this module allocates nothing in a pass. The library of the operators runs the session
(runtime/kernels/sessions), so that the compiled loop can run passes without Python.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, UnsupportedError, UsageError
from edgedec.graph.graph import FEATURES_INPUT, Graph
from edgedec.graph.ops import Linear
from edgedec.memory.heap import freed_blocks_go_back, trim_heap
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.onnx.lowering import emit
from edgedec.onnx.ops.linear import NARROW
from edgedec.onnx.recurrent_layout import recurrent_layout
from edgedec.runtime import visibility
from edgedec.runtime.base.cores import physical_cores
from edgedec.runtime.base.key_counts import KeyCounts
from edgedec.runtime.cache.arena import ArenaState, CacheArena, RecurrentArenaState
from edgedec.runtime.cache.slots import RecurrentSlots
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.rows.recurrent import RecurrentBuffer
from edgedec.runtime.kernels.sessions.session import RESULTS, ROWS, WORDS, KernelSession, Memory
from edgedec.runtime.kernels.weights.huge_pages import FileReader
from edgedec.runtime.kernels.weights.weight_stream import WeightStream
from edgedec.runtime.model_graph import bundle_graph, embedding_name
from edgedec.runtime.protocols import F32, Bytes, CostModel, Limits, Pass, PassResult, State, TargetInfo, Ticket
from edgedec.runtime.run_sizes import recurrent_slots, run_rows
from edgedec.runtime.sampling.likeliest import find_likeliest
from edgedec.runtime.targets._cpu_footprint import KV_CHOICES, arena_layout, cpu_footprint, mask_words
from edgedec.runtime.targets._cpu_weights import is_fused, load_weights
from edgedec.runtime.targets._footprint import tap_items
from edgedec.runtime.targets._lending import CpuLender
from edgedec.runtime.targets._lent_weights import lent_weights
from edgedec.runtime.targets._pass_arrays import PassArrays, PassBuffers
from edgedec.runtime.targets._results import FinishedTicket, check_pass, check_positions
from edgedec.schemes import FloatScheme

__all__ = ["CpuTarget"]

_COUNTED = (  # fields of ``KeyCounts`` in the order of the kernels
    *("seen", "read", "read_bytes", "again", "hits"),
    *("kept", "fetched", "fetched_bytes"),
)


class CpuTarget(CompiledParts[CpuLender]):
    """A bundle in one session of the project's own operators.

    Passes that are submitted together run together, as long as their rows fit into one run. ``logits`` and ``taps`` of a
    result are views of the target's own memory, which its next pass overwrites.

    ``rings`` False keeps all rows of layers with a window, too, which changes no result. With ``lent``, tensors that the
    bundle borrows are those in the memory of the target that lends them.

    Members:
        stream: reads the weights that ``limits`` leave no memory for; None: all of them are in memory.
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
        lent: bool = False,
    ) -> None:
        self.bundle, self.limits, self._kernels, self._taps = bundle, limits, kernels, taps
        self._threads, self._kv_bits, self._lent, self._rows = threads, kv_bits, lent, run_rows(limits)
        self.graph: Graph = bundle_graph(bundle, kv_bits or KV_CHOICES[0], rings=rings)
        self._layout = arena_layout(self.graph, limits)
        self._recurrent = recurrent_layout(self.graph, limits.nodes)
        slots = None
        if self._recurrent is not None:
            count = recurrent_slots(limits)
            buffer = RecurrentBuffer(kernels, self._recurrent, count, self._float_weight)
            slots = RecurrentSlots(buffer, limits.snapshots)
        self._arena = CacheArena(kernels, self._layout, limits.positions, slots)
        self._layout = self._arena.buffer.layout  # with the store of values in a file
        vocab, width = self.graph.weights[embedding_name(self.graph)].shape
        self.stream: WeightStream | None = None
        self._files = FileReader()  # no operator reads weights before the first run
        try:
            self._session = self._open(threads)
        finally:
            self._files.finish()
        self.info = TargetInfo(
            vocab=vocab,
            tokenizer_hash=bundle.tokenizer_hash,
            positions=limits.positions,
            taps=taps,
            masks="any" if slots is None else "tree",
            batch_invariant=_has_one_order(self.graph),
            kernel=kernels.code_path,
            block_rows=BLOCK_ROWS,
            features=self.graph.features,
            joins=True,
        )
        self._causal = visibility.pack(np.tri(limits.nodes, dtype=np.bool_))  # its beginning is that of fewer rows
        shapes = {name: self.graph.values[name].shape for name in taps}
        self._buffers = PassBuffers(
            self._rows,
            kinds=len(self._layout.kinds),
            entries=self._rows * blocks_of(limits.positions),
            widths={
                "embed": width,
                **({FEATURES_INPUT: self.info.features} if self.info.features else {}),
                "logits": vocab,
                **{name: int(shape[1]) for name, shape in shapes.items()},
            },
            row_taps={name for name, shape in shapes.items() if shape[0] == "n"},
            result_taps={name for name, shape in shapes.items() if shape[0] != "n"},
        )
        self._bind()
        self._lender = CpuLender(
            kernels,
            self._session,
            self._buffers,
            self.embedding,
            self._arena,
            limits.positions,
            weights=self._weights,
        )

    def _float_weight(self, name: str) -> F32:
        return self.bundle.weight(name).dense()

    def _open(self, threads: int) -> KernelSession:
        with freed_blocks_go_back():  # a bundle's first start converts matrices
            lent = lent_weights(self.bundle, lent=self._lent)
            weights = load_weights(self.bundle, self._kernels, self.graph, self.limits, self._files, lent)
        trim_heap()
        self.stream, self.embedding = weights.stream, weights.rows
        self._weights = weights  # kept, because a draft model that borrows some of them looks for them
        arrays = dict(weights.initializers)
        fused = is_fused()
        emitter = emit(
            self.graph,
            self.bundle.tensors,
            positions=self.limits.positions,
            cache=self._layout,
            recurrent=self._recurrent,
            taps=self._taps,
            packed=weights.packed,
            kernels=True,
            fused_threads=(threads or physical_cores()) if fused else 0,
            pass_rows=self._rows,
            arrays=arrays,
        )
        folder = self.bundle.path.resolve()
        try:
            model = emitter.program() or emitter.model()
            return KernelSession(self._kernels, model, threads=threads, folder=folder, initializers=arrays, fused=fused)
        except RuntimeError as error:
            raise DeviceError(f"{self.bundle.path} cannot be opened on cpu: {error}") from error

    def footprint(self, limits: Limits) -> Bytes:
        """Return the bytes of memory that a run within ``limits`` takes."""
        own = cpu_footprint(self.bundle, limits, threads=self._threads, kv_bits=self._kv_bits, lent=self._lent)
        return {**own, **tap_items(self.bundle, limits, self._taps)}

    @property
    def key_counts(self) -> KeyCounts | None:
        """The counts of keys since the opening; None: every query attends to all keys that it sees."""
        counts = self._arena.buffer.counts
        return None if counts is None else KeyCounts(**dict(zip(_COUNTED, counts, strict=True)))

    @property
    def values_file(self) -> int | None:
        """The descriptor of the file of values; None: all values are in memory."""
        file = self._arena.buffer.file
        return None if file is None else file.descriptor

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
        if self._lender.flight is not None and (flight := self._lender.flight()) is not None:
            flight.land()
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

    @property
    def session(self) -> KernelSession:
        """The session that runs passes."""
        return self._session

    @property
    def compiled(self) -> CpuLender | None:
        """The object that lends its inputs and states to the compiled loop, which has ids alone; None: it needs features."""
        return None if self.info.features else self._lender

    @property
    def threads(self) -> int:
        """Number of threads of a pass; 0: one for each core."""
        return self._threads

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
        arrays = self._buffers.bind(len(work.ids), _result_rows(work))
        self._fill(arrays, state, work)
        self._run_session(arrays, (state,))
        return self._result(arrays, state, work, began)

    def _run(self, passes: Sequence[tuple[ArenaState, Pass]]) -> list[PassResult]:
        """Run passes together and return their results."""
        began = time.perf_counter()
        arrays = self._buffers.bind(
            sum(len(work.ids) for _, work in passes), sum(_result_rows(work) for _, work in passes)
        )
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
        if part.features is not None:
            assert work.features is not None, "check_pass has checked it"
            part.features[...] = work.features
        part.positions[...] = work.positions
        if work.logits is None:
            part.rows[0] = row + n - 1
        else:
            np.add(work.logits, row, out=part.rows)
        words = mask_words(n)
        part.visible[:, :words] = self._causal[:n, :words] if work.visible is None else work.visible
        self._buffers.sequences[at, 0], self._buffers.sequences[at, 1] = n, state.length
        if isinstance(state, RecurrentArenaState):
            assert state.slot is not None  # ``submit`` has reserved it
            state.visible = work.visible
            self._buffers.slots[at] = state.slot
        blocks = blocks_of(state.length + n)  # it may hold more after a wider pass that was not committed
        self._buffers.tables[:, block : block + blocks] = state.table[:, :blocks]
        return blocks

    def _run_session(self, arrays: PassArrays, states: Sequence[ArenaState]) -> None:
        try:
            self.run(arrays)
        except RuntimeError as error:
            rows, pasts = len(arrays.embed), ", ".join(str(state.length) for state in states)
            raise DeviceError(f"a pass of {rows} rows over {pasts} failed on cpu: {error}") from error

    def _result(self, part: PassArrays, state: ArenaState, work: Pass, began: float) -> PassResult:
        state.passed(len(work.ids))
        taps = {name: (part.row_taps if name in part.row_taps else part.taps)[name] for name in work.taps}
        top = find_likeliest(part.logits, work.top_k, self.bundle.tokens.size, log_sum=work.log_sum)
        return PassResult(logits=part.logits, top=top, taps=taps, seconds=time.perf_counter() - began)

    def _embed(self, work: Pass, out: F32) -> None:
        if work.embeds is None:
            self.embedding.rows(work.ids, out)
            return
        from_embeds = work.ids < 0
        self.embedding.rows(np.maximum(work.ids, 0), out)
        out[from_embeds] = work.embeds[-work.ids[from_embeds] - 1]

    def _bind(self) -> None:
        """Let the session read and write the buffers."""
        buffers, cache, floats = self._buffers, self._arena.buffer.cache, self._buffers.floats
        inputs = {
            "embed": Memory(floats["embed"], (1, ROWS, floats["embed"].shape[1])),
            "positions": Memory(buffers.positions, (1, ROWS)),
            "rows": Memory(buffers.result_rows, (RESULTS,)),
            "visible": Memory(buffers.visible.view(np.int64), (ROWS, WORDS)),
            "sequences": Memory(buffers.sequences, buffers.sequences.shape),
            "blocks": Memory(buffers.tables, buffers.tables.shape),
            "cache": Memory(cache, cache.shape),
        }
        if self.info.features:
            inputs[FEATURES_INPUT] = Memory(floats[FEATURES_INPUT], (1, ROWS, self.info.features))
        if self._arena.slots is not None:
            states = self._arena.slots.buffer.memory
            inputs |= {"slots": Memory(buffers.slots, buffers.slots.shape), "states": Memory(states, states.shape)}
        outputs = {f"out.{self.graph.outputs[0]}": Memory(floats["logits"], (1, RESULTS, self.info.vocab))}
        for name in self._taps:
            rows = ROWS if name in buffers.row_taps else RESULTS
            outputs[f"out.{name}"] = Memory(floats[name], (1, rows, floats[name].shape[1]))
        self._session.bind(inputs, outputs)


def _result_rows(work: Pass) -> int:
    """Return the number of rows of logits of a pass."""
    return 1 if work.logits is None else len(work.logits)


def _has_one_order(graph: Graph) -> bool:
    """Return whether no wide matrix is float: ONNX Runtime's MatMul may add in another order for each number of rows."""
    return not any(
        isinstance(scheme, FloatScheme) and graph.weights[weight].shape[0] > NARROW
        for operation in graph.operations
        if isinstance(operation, Linear)
        for weight, scheme in zip(operation.weights, operation.schemes, strict=True)
    )


def _copied(result: PassResult) -> PassResult:
    """Return a copy of a result that the next pass does not overwrite."""
    taps = {name: values.copy() for name, values in result.taps.items()}
    return PassResult(logits=result.logits.copy(), top=result.top, taps=taps, seconds=result.seconds)
