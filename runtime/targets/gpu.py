"""The target ``gpu``: the project's own kernels in WGSL on Vulkan, Metal or D3D12, with the same results as on the CPU.

A pass, or several that are submitted together, is one submission to the device (runtime/gpu). ``submit`` returns while it
runs, so the host may draft. Commits become moves of rows at the start of the next submission. If a pass asks for the
likeliest tokens, its logits stay on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.graph.ops import Linear
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.runtime import visibility
from edgedec.runtime.gpu.device import GpuDevice, open_device
from edgedec.runtime.gpu.driver import opened_device
from edgedec.runtime.gpu.executor import Executor, RunningPass, Wanted
from edgedec.runtime.gpu.footprint import gpu_footprint
from edgedec.runtime.gpu.kernels.cache import KV_CHOICES
from edgedec.runtime.gpu.kernels.results import log_of_parts
from edgedec.runtime.gpu.layout import check_bindings, sizes_of
from edgedec.runtime.gpu.lowering import bundle_layout
from edgedec.runtime.gpu.probe import arithmetic
from edgedec.runtime.gpu.rows import GpuArena, GpuRows, GpuState
from edgedec.runtime.gpu.sized_program import constants, lower
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.protocols import (
    F32,
    I32,
    Bytes,
    CostModel,
    Limits,
    Pass,
    PassResult,
    State,
    Target,
    TargetInfo,
    Ticket,
)
from edgedec.runtime.sampling.likeliest import Likeliest, find_likeliest
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets._results import check_pass
from edgedec.runtime.targets._unlimited import bounds, memories
from edgedec.schemes import FloatScheme

__all__ = ["GpuTarget", "bounds", "create", "driver_bytes", "footprint", "kv_choices", "memories"]

_Work = tuple[GpuState, Pass]
_TOP = ("top_ids", "top_logits", "top_sums")


class GpuTarget:
    """A bundle on a GPU. The rows of a result may be the target's own memory, which its next pass overwrites."""

    cost_model: CostModel | None = None

    def __init__(
        self, bundle: Bundle, device: GpuDevice, *, limits: Limits, taps: tuple[str, ...], kv_bits: int | None = None
    ) -> None:
        self.bundle, self.limits, self._kv_bits = bundle, limits, kv_bits or KV_CHOICES[0]
        layout = bundle_layout(bundle, self._kv_bits, taps=taps, binding_bytes=device.adapter.binding_bytes)
        own = arithmetic(device)
        sizes = sizes_of(limits)
        check_bindings(layout, sizes, device.adapter)
        self.program = lower(layout, sizes, fused=own.fused, compact=device.adapter.software)
        self._constants = constants(bundle, layout, sizes)
        self.executor = Executor(device, self.program, self._constants)
        self._rows = GpuRows()
        self._arena = GpuArena(self._rows, self.program.cache_blocks, limits.positions)
        self._use(device)
        self._head = self.program.layout.new()
        self._embedding = bundle.row_reader(layout.embedding)
        self._best = np.full(
            (self.program.results, self.program.vocab), -np.inf, np.float32
        )  # finite at ``_finite`` only
        self._finite: list[I32] = []  # the finite columns of each row
        self._causal = visibility.pack(np.tri(limits.nodes, dtype=np.bool_))
        self.info = TargetInfo(
            vocab=self.program.vocab,
            tokenizer_hash=bundle.tokenizer_hash,
            positions=limits.positions,
            taps=taps,
            masks="any",
            batch_invariant=own.subnormals and _all_quantized(layout.operations),
            block_rows=BLOCK_ROWS,
            kernel=f"wgsl on {device.adapter.label}",
            top_k=layout.top_k,
            overlaps=True,
            features=bundle_graph(bundle, self._kv_bits).features,
            joins=True,
        )

    def footprint(self, limits: Limits) -> Bytes:
        """Return the bytes of memory that a run within ``limits`` takes."""
        return gpu_footprint(self.bundle, limits, kv_bits=self._kv_bits, taps=self.info.taps)

    @property
    def free_rows(self) -> int:
        """Rows of the cache that no sequence holds."""
        return self._arena.free_rows

    def open(self, limits: Limits) -> State:
        """Return the empty cache of a new sequence."""
        return self._arena.open()

    def close(self) -> None:
        """Free the memory on the device. A second call does nothing."""
        self.executor.close()

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        """Start the passes and return. Those whose rows do not fit into one run take several.

        If the device was lost before, the model is loaded on it again. Texts then begin at their first row.

        Raises:
            CacheFullError: the caches of all sequences together have no room for the passes.
            DeviceError: the device was lost, or rows of a sequence with an earlier device.
        """
        if self._device.lost is not None:
            self._open_again()
        passes = [(self._checked(state, item), item) for state, item in work]
        if len({id(state) for state, _ in passes}) < len(passes):
            raise UsageError("a sequence occurs twice in one submit; submit its passes one after another")
        self._arena.reserve([(state, len(item.ids)) for state, item in passes])
        ticket = _GpuTicket(self)
        for run in self._runs(passes):
            ticket.add(run, self._start(run))
        for state, item in passes:
            state.passed(len(item.ids))
        return ticket

    def _open_again(self) -> None:
        """Load the model on a new open of the device. The rows of all sequences are gone."""
        self.executor.close()
        device = open_device()
        self.executor = Executor(device, self.program, self._constants)
        self._use(device)

    def _use(self, device: GpuDevice) -> None:
        self._device = device
        device.holders.add(self._arena)

    def _checked(self, state: State, work: Pass) -> GpuState:
        assert isinstance(state, GpuState)
        state.check_open()
        if state.arena is not self._arena:
            raise UsageError("the sequence belongs to another target; open one with Target.open of this one")
        check_pass(work, state.length, self.limits, self.info)
        state.begin(int(work.positions.min()))
        for name in work.taps:
            if name not in self.program.taps:
                raise UnsupportedError(f"the target was opened without the tap {name!r}; open it with taps=")
        return state

    def _runs(self, passes: Sequence[_Work]) -> list[list[_Work]]:
        """Divide passes, in order, into runs whose rows and blocks fit the program."""
        runs: list[list[_Work]] = []
        layout, rows, blocks = self.program.layout, 0, 0
        for state, work in passes:
            more = len(work.ids), blocks_of(state.length + len(work.ids))
            if not runs or rows + more[0] > layout.rows or blocks + more[1] > layout.blocks:
                runs.append([])
                rows = blocks = 0
            runs[-1].append((state, work))
            rows, blocks = rows + more[0], blocks + more[1]
        return runs

    def _start(self, run: Sequence[_Work]) -> list[RunningPass]:
        """Write the inputs of a run and submit it; result rows for which there is no room follow in further submissions."""
        program, n, results = self.program, 0, list[I32]()
        for _, work in run:
            results.append(_result_rows(work) + np.int32(n))
            n += len(work.ids)
        result_rows = np.concatenate(results).astype(np.int32)
        ids, embeds = self._inputs([work for _, work in run])
        self.executor.write(program.embeds, embeds)
        if program.features is not None:
            given = [work.features for _, work in run if work.features is not None]
            self.executor.write(program.features, np.ascontiguousarray(np.concatenate(given)))
        wants = [work.top_k for _, work in run if len(_result_rows(work))]
        top = bool(wants) and all(0 < k <= program.top_k for k in wants)
        sums = top and any(work.log_sum for _, work in run)
        taps = tuple(dict.fromkeys(name for _, work in run for name in work.taps))
        started, visible = list[RunningPass](), self._visible(run, n)
        for first in range(0, max(1, len(result_rows)), program.results):
            part = result_rows[first : first + program.results]
            program.layout.write(
                self._head,
                ids=ids,
                positions=np.concatenate([work.positions for _, work in run]).astype(np.int32),
                sequences=[(len(work.ids), state.length) for state, work in run],
                result_rows=part,
                visible=visible,
                tables=[state.table[0, : blocks_of(state.length + len(work.ids))] for state, work in run],
            )
            pairs = self._move()
            self.executor.write(program.head, self._head)
            wanted = Wanted(rows=n, results=len(part), top=top, sums=sums, taps=taps, again=first > 0)
            started.append(self.executor.submit(wanted, pairs))
        return started

    def _visible(self, run: Sequence[_Work], n: int) -> NDArray[np.uint64]:
        """Return the masks of all rows, each among the rows of its own sequence, uint64 [n, words]."""
        visible, row = np.zeros((n, -(-n // 64)), np.uint64), 0
        for _, work in run:
            rows = len(work.ids)
            words = -(-rows // 64)
            visible[row : row + rows, :words] = self._causal[:rows, :words] if work.visible is None else work.visible
            row += rows
        return visible

    def _move(self) -> int:
        """Write the next moves of rows, after submitting those for which there is no room. Return their number."""
        program = self.program
        while self._rows.waiting > program.most_moves:
            self.executor.write(program.moves, self._rows.take(program.most_moves))
            self.executor.submit(Wanted(0, 0), program.most_moves)
        pairs = self._rows.take(program.most_moves)
        if pairs[0]:
            self.executor.write(program.moves, pairs)
        return int(pairs[0])

    def _inputs(self, passes: Sequence[Pass]) -> tuple[I32, F32]:
        """Return the ids of all rows, int32 [n], and their embeddings, float32 [n, width].

        The host looks embeddings up, as on the CPU, so that a table of a whole vocabulary is not in memory.
        """
        ids, embeds, count = list[I32](), list[F32](), 0
        for work in passes:
            own = work.ids
            if work.embeds is not None:
                own = np.where(own < 0, own - np.int32(count), own).astype(np.int32)
                embeds.append(work.embeds)
                count += len(work.embeds)
            ids.append(own)
        all_ids = np.concatenate(ids).astype(np.int32)
        stacked = np.concatenate(embeds).astype(np.float32) if embeds else np.empty((0, self.program.width), np.float32)
        rows = self._embedding.rows(np.maximum(all_ids, 0))
        given = all_ids < 0
        rows[given] = stacked[-all_ids[given] - 1]
        return -1 - np.arange(len(all_ids), dtype=np.int32), rows

    def results(self, run: Sequence[_Work], started: Sequence[RunningPass]) -> list[PassResult]:
        """Wait for a run and return the result of each of its passes."""
        parts = [running.arrays() for running in started]
        arrays = {
            name: parts[0][name]
            if len(parts) == 1 or (name in self.program.taps and not self.program.taps[name].results)
            else np.concatenate([part[name] for part in parts])
            for name in parts[0]
        }
        results, row, result = list[PassResult](), 0, 0
        if "top_ids" in arrays:
            logits = self._filled(arrays["top_ids"], arrays["top_logits"])
        else:
            logits = arrays.get("logits", np.empty((0, self.program.vocab), np.float32))
        seconds = sum(running.seconds for running in started)
        for _, work in run:
            end, stop = row + len(work.ids), result + len(_result_rows(work))
            top: Likeliest | None
            if "top_ids" in arrays and work.top_k:
                top = _likeliest({name: part[result:stop] for name, part in arrays.items() if name in _TOP}, work)
            else:
                top = find_likeliest(logits[result:stop], work.top_k, self.bundle.tokens.size, log_sum=work.log_sum)
            taps = {
                name: arrays[name][result:stop] if self.program.taps[name].results else arrays[name][row:end]
                for name in work.taps
            }
            results.append(PassResult(logits=logits[result:stop], top=top, taps=taps, seconds=seconds))
            row, result = end, stop
        return results

    def _filled(self, ids: I32, values: F32) -> F32:
        """Return rows of logits that are finite at the likeliest tokens of each row only.

        They are the target's own memory, because new rows of a whole vocabulary would take longer than the rest of this.
        """
        for at, before in enumerate(self._finite):
            self._best[at, before] = -np.inf
        self._finite = []
        if len(ids) > len(self._best):
            self._best = np.full((len(ids), self.program.vocab), -np.inf, np.float32)
        for row, likeliest in enumerate(ids):
            self._best[row, likeliest] = values[row]
            self._finite.append(likeliest)
        return self._best[: len(ids)]


class _GpuTicket:
    """Runs that were submitted together. All but the last one are finished, because they use the same memory."""

    def __init__(self, target: GpuTarget) -> None:
        self._target = target
        self._done: list[PassResult] = []
        self._last: tuple[Sequence[_Work], list[RunningPass]] | None = None

    def add(self, run: Sequence[_Work], started: list[RunningPass]) -> None:
        """Add a run, and keep the results of the one before it."""
        if self._last is not None:
            self._done += [_copied(result) for result in self._target.results(*self._last)]
        self._last = run, started

    def result(self) -> list[PassResult]:
        """Wait until all runs are finished and return the result of each pass.

        Raises:
            DeviceError: the device was lost.
        """
        if self._last is not None:
            self._done += self._target.results(*self._last)
            self._last = None
        return self._done


def _copied(result: PassResult) -> PassResult:
    return PassResult(logits=result.logits.copy(), top=result.top, taps=result.taps, seconds=result.seconds)


def _likeliest(arrays: Mapping[str, NDArray[Any]], work: Pass) -> Likeliest:
    """Return the likeliest tokens of the rows of a pass, from what the device has found."""
    k, log_sum = work.top_k, None
    if work.log_sum:
        log_sum = np.array([*map(log_of_parts, arrays["top_logits"][:, 0], arrays["top_sums"])], np.float64)
    return Likeliest(arrays["top_ids"][:, :k], arrays["top_logits"][:, :k], log_sum)


def _result_rows(work: Pass) -> I32:
    """Return the rows of a pass whose logits it returns."""
    return np.array([len(work.ids) - 1], np.int32) if work.logits is None else work.logits


def _all_quantized(operations: Sequence[Any]) -> bool:
    """Return whether no matrix is float, whose sums have another order than on the CPU."""
    linears = (operation for operation in operations if isinstance(operation, Linear))
    return not any(isinstance(scheme, FloatScheme) for linear in linears for scheme in linear.schemes)


def footprint(bundle: Bundle, request: TargetRequest) -> Bytes:
    """Return the charged bytes by item, which are those of the program's buffers and of the driver's objects."""
    return gpu_footprint(
        bundle,
        request.limits,
        kv_bits=request.kv_bits or KV_CHOICES[0],
        taps=request.taps,
        result_rows=request.result_rows,
    )


def driver_bytes() -> int:
    """Return the bytes that the driver of the chosen adapter took when it was opened, which are beside a plan's sum."""
    return opened_device()[1].device_bytes


def kv_choices(device: str, bundle: Bundle | None = None) -> tuple[int, ...]:
    """Return the supported bits of keys and values."""
    return KV_CHOICES


def create(bundle: Bundle, request: TargetRequest) -> Target:
    """Return the target (entry point of the plug-in).

    Raises:
        DeviceError: there is no adapter, or its driver refuses a shader or a buffer.
        UnsupportedError: the model has an operation that is not lowered to kernels.
    """
    return GpuTarget(bundle, open_device(), limits=request.limits, taps=request.taps, kv_bits=request.kv_bits)
