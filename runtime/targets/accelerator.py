"""The accelerator as a target: a board, its RTL in simulation, or the interpreter of its program.

A device keeps one sequence. States take turns on it: one that comes back finds the rows that it shares with the one before,
and the others are run again, which gives the same integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgedec.boards import find_board
from edgedec.bundle import Bundle
from edgedec.device import Device, current_name
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.memory import MemoryUse
from edgedec.progress import Progress
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.accelerator.cost import CycleCost
from edgedec.runtime.accelerator.memories import board_memories
from edgedec.runtime.accelerator.model import AcceleratorModel, buffer_bytes, chosen_config, prepare_model
from edgedec.runtime.accelerator.opening import bandwidth, check_device, memory_model, opened
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.accelerator.rows import DeviceRows, Row, rows_of
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.driver.driver import BEST, NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.runtime.driver.facts import DeviceFacts
from edgedec.runtime.driver.report import PassReport
from edgedec.runtime.protocols import F32, I32, Bytes, CostModel, Limits, Pass, PassResult, State, TargetInfo, Ticket
from edgedec.runtime.targets import Bounds, TargetModule
from edgedec.runtime.targets._graphs import embedding_name
from edgedec.runtime.targets._results import Done, check_pass, top_k
from edgedec.runtime.visibility import unpack

__all__ = ["AcceleratorTarget", "module"]

_KV_BITS = 8
_WITHOUT_CLOCK = "interpreter"
# What a plan calls the buffers of ``Program.sizes``.
_ITEMS = {"program": "program", "image": "weights", "cache": "kv", "input": "activations", "output": "logits"}


class _State:
    """One sequence: its rows, wherever the device is.

    Members:
        rows: committed. last: of its last pass, until some of them are kept.
        length: committed rows.
    """

    def __init__(self, target: AcceleratorTarget, rows: list[Row]) -> None:
        self._target, self.rows = target, rows
        self.last: list[Row] = []
        self.length = len(rows)
        self.commit_seconds: float | None = 0.0

    def commit(self, nodes: I32) -> None:
        self._target.commit(self, nodes)
        self.length = len(self.rows)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise UsageError(f"cannot go back to {length} rows, there are {self.length}")
        if length < self.length:
            del self.rows[length:]
            self.length = length
            self._target.changed(self)

    def fork(self) -> State:
        return _State(self._target, list(self.rows))

    def close(self) -> None:
        self.truncate(0)


class _Ticket:
    """A pass that runs. ``result`` waits for it; asked again it has the answer at once."""

    def __init__(self, target: AcceleratorTarget, state: _State, work: Pass) -> None:
        self._target, self._state, self._work = target, state, work
        self._result: PassResult | None = None

    def result(self) -> list[PassResult]:
        if self._result is None:
            self._result = self._target.finish(self, self._state, self._work)
        return [self._result]

    def kept(self) -> PassResult:
        """The result, in memory that the next pass leaves alone."""
        (result,) = self.result()
        self._result = replace(result, logits=result.logits.copy())
        return self._result


class AcceleratorTarget:
    """A model on a device.

    Members:
        device, driver, program: for figures, and for tests.
        counters: what was done since the target was made.
        cost_model: seconds of a pass beforehand, an estimate.
        facts: what its figures have to be read with.
        top_k: likeliest tokens of a row that the device finds by itself.

    Args:
        device: nobody else's; closed with the target.
        board, memory: names, for ``facts``; ``memory`` of a simulated one.
        bandwidth: of the memory, for ``cost_model``; None: without limit.
    """

    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        model: AcceleratorModel,
        limits: Limits,
        *,
        board: str = "",
        memory: str = "",
        bandwidth: float | None = None,
    ) -> None:
        self.bundle, self.device, self.program, self.limits = bundle, device, model.program, limits
        config = model.program.config
        if limits.nodes > config.slots or limits.positions > config.context:
            raise UsageError(
                f"the accelerator has {config.slots} slots and {config.context} positions, not {limits.nodes} and "
                f"{limits.positions}; lower --tree-nodes or --ctx-size"
            )
        self.driver = Driver(device, model.program, model.embedding)
        self.counters = Counters()
        self._cost = CycleCost(model.program, bandwidth)
        self.cost_model: CostModel | None = self._cost
        # The figures of a replayed device are those of the device that was recorded.
        recorded = current_name(getattr(device, "recorded_name", device.name))
        self.facts = DeviceFacts(
            device=device.name,
            kind="estimated" if recorded == _WITHOUT_CLOCK else device.kind,
            live=recorded == device.name,
            board=board,
            memory="" if device.kind == "measured" else memory,
            clock_hz=device.clock_hz,
            config=config,
        )
        self.top_k = config.top_k
        self._cache = DeviceRows(self.driver, lambda report, rows: self._ran(report, rows, logits=False))
        self._running: _Ticket | None = None
        self._wrote = NO_LOGITS  # what the last pass did
        vocab = model.program.host.vocab
        self._rows = np.full((config.slots, vocab), -np.inf, np.float32)  # of logits, finite at ``_kept`` only
        self._kept = np.zeros((config.slots, min(config.top_k, vocab)), np.int64)
        self.info = TargetInfo(
            vocab=model.program.host.vocab,
            tokenizer_hash=bundle.tokenizer_hash,
            positions=limits.positions,
            taps=(),
            masks="tree",
            batch_invariant=True,
        )

    @property
    def device_bytes(self) -> int:
        """Of the buffers that the device has."""
        return sum(region.array.nbytes for region in self.driver.regions.values())

    def footprint(self, limits: Limits) -> Bytes:
        return _items(self.program.sizes)

    def open(self, limits: Limits) -> State:
        return _State(self, [])

    def close(self) -> None:
        """Gives up what runs, and lets go of the device; a second time does nothing."""
        self._running = None
        try:
            self.driver.close()
        finally:
            self.device.close()

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        """Begins a pass and returns; several are run to their ends one after the other.

        A result's rows may be the target's own memory, which the next pass overwrites.
        """
        if len(work) == 1:
            return self._begun(*work[0])
        return Done([self._begun(state, item).kept() for state, item in work])

    def _begun(self, state: State, work: Pass) -> _Ticket:
        assert isinstance(state, _State)
        check_pass(work, state.length, self.limits, self.info.vocab)
        if work.taps:
            raise _no_taps(work.taps)
        if self._running is not None:
            self._running.kept()  # the device runs one pass at a time
        self._cache.bring(state, state.rows)
        state.last = []
        self._start(work)
        self._running = ticket = _Ticket(self, state, work)
        return ticket

    def _start(self, work: Pass, *, whole: bool = False) -> None:
        n = len(work.ids)
        self._wrote = (
            NO_LOGITS if not len(_wanted(work)) else BEST if 0 < work.top_k <= self.top_k and not whole else WHOLE_ROWS
        )
        self.driver.submit(
            work.ids,
            positions=work.positions,
            visible=None if work.visible is None else unpack(work.visible, n),
            logits=self._wrote,
            embeds=work.embeds,
        )

    def finish(self, ticket: _Ticket, state: _State, work: Pass) -> PassResult:
        """What a ticket asks for when somebody asks it.

        Raises:
            DeviceError: the pass failed; as ``Driver.finish``.
            UsageError: the pass was given up, after Ctrl-C or an error.
        """
        if self._running is not ticket:
            raise UsageError("the pass of this ticket was given up; submit it again")
        self._running = None
        seconds = self._finished(work)
        found = self._best(work) if self._wrote == BEST else None
        if self._wrote == BEST and found is None:  # padding is likeliest in some row, and crowds out all tokens
            self._start(work, whole=True)
            seconds += self._finished(work)
        logits, top = found or self._whole(work)
        state.last = rows_of(work)
        return PassResult(logits=logits, top=top, taps={}, seconds=seconds)

    def _finished(self, work: Pass) -> float:
        return self._ran(self.driver.finish(), len(work.ids), logits=self._wrote != NO_LOGITS)

    def _whole(self, work: Pass) -> tuple[F32, tuple[I32, F32] | None]:
        """Whole rows of logits, float32 [rows, vocab], and the likeliest of each."""
        rows = _wanted(work)
        if not len(rows):
            return np.empty((0, self.info.vocab), np.float32), None
        logits = _floats(self.driver.logits(rows))
        return logits, top_k(logits, work.top_k, self.bundle.tokens.size)

    def _best(self, work: Pass) -> tuple[F32, tuple[I32, F32]] | None:
        """The same with -inf for what the device did not keep; None if none of what it kept in some row is a token.

        The rows are the target's own memory: to fill a vocabulary for each pass would take longer than all else here.
        """
        found = self.driver.results(_wanted(work))
        tokens = (found.ids < self.bundle.tokens.size).sum(axis=1)  # the likeliest first, so padding may lie between
        if not tokens.all():
            return None
        ids = found.ids.astype(np.int64)
        values = _floats(Logits(values=found.logits, mantissa=found.mantissa, exponent=found.exponent))
        np.put_along_axis(self._rows, self._kept, -np.inf, axis=1)
        self._kept[: len(ids)] = ids
        logits = self._rows[: len(ids)]
        np.put_along_axis(logits, ids, values, axis=1)
        if tokens.min() < ids.shape[1]:
            return logits, cast(tuple[I32, F32], top_k(logits, work.top_k, self.bundle.tokens.size))
        return logits, (found.ids[:, : work.top_k], values[:, : work.top_k])

    def commit(self, state: _State, nodes: I32) -> None:
        """Keeps rows of the state's last pass; where another state's are on the device by now, they are run again later.

        Raises:
            DeviceError: as ``Driver.commit``.
            UsageError: rows that the last pass did not have, or not in ascending order.
        """
        last, state.last = state.last, []
        kept = [int(node) for node in nodes]
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < len(last)):
            raise UsageError(f"rows {kept} cannot be kept of a pass of {len(last)}; name them in ascending order")
        rows = [last[node] for node in kept]
        if self._cache.is_of(state, state.rows):
            report = self._cache.commit(nodes, rows)
            state.commit_seconds = 0.0 if report is None else self._committed(report)
        state.rows += rows

    def changed(self, state: _State) -> None:
        """A state has lost rows."""
        self._cache.forget(state)

    def _ran(self, report: PassReport, rows: int, *, logits: bool) -> float:
        """Takes a pass into the counters; its seconds in the device's time."""
        if report.cycles:
            seconds = report.cycles / self.facts.clock_hz
        else:  # a device without a clock
            seconds = self._cost.seconds(rows, self.driver.length, logits=logits)
        self.counters = self.counters.plus(report, seconds, rows=rows)
        return seconds

    def _committed(self, report: PassReport) -> float:
        """The same of a commit that moved rows; a device without a clock takes no time for it."""
        seconds = report.cycles / self.facts.clock_hz
        self.counters = self.counters.plus(report, seconds, rows=0)
        return seconds


def _wanted(work: Pass) -> I32:
    return np.array([len(work.ids) - 1], np.int32) if work.logits is None else work.logits


def _no_taps(taps: Sequence[str]) -> UnsupportedError:
    return UnsupportedError(
        f"the accelerator hands back logits only, not {', '.join(taps)}; take a drafter that needs none, or --device cpu"
    )


def _floats(logits: Logits) -> NDArray[np.float32]:
    """As float32 [rows, n]; what is less than a row's largest integer stays less, so that the likeliest is the integers'."""
    units = np.ldexp(logits.mantissa.astype(np.float64), logits.exponent)[:, None]
    found: NDArray[np.float32] = (logits.values * units).astype(np.float32)
    top = found.max(axis=1, keepdims=True)
    rounded_up = (found == top) & (logits.values < logits.values.max(axis=1, keepdims=True))
    return np.where(rounded_up, np.nextafter(top, np.float32(-np.inf)), found)


def _items(sizes: Mapping[str, int]) -> dict[str, int]:
    return {_ITEMS[name]: size for name, size in sizes.items()}


@dataclass(frozen=True, kw_only=True)
class _Module:
    """A TargetModule of one accelerator."""

    options: AcceleratorOptions
    progress: Progress

    def create(
        self,
        bundle: Bundle,
        *,
        device: str,
        limits: Limits,
        threads: int,
        taps: tuple[str, ...],
        kv_bits: int | None = None,
    ) -> AcceleratorTarget:
        """Raises:
        UnsupportedError: the model does not map to the accelerator, or taps are wanted.
        ToolError: something that the device needs is missing.
        DeviceError: it does not answer, or is in use.
        """
        if taps:
            raise _no_taps(taps)
        model = prepare_model(bundle, self.options, limits.positions, progress=self.progress)
        found = opened(device, model.program, self.options, progress=self.progress)
        try:
            return AcceleratorTarget(
                bundle,
                found,
                model,
                limits,
                board=find_board(self.options.board_name).name,
                memory="" if self.options.built else memory_model(self.options),
                bandwidth=bandwidth(self.options),
            )
        except BaseException:
            found.close()
            raise

    def kv_choices(self, device: str, bundle: Bundle | None = None) -> tuple[int, ...]:
        """The integer profile's."""
        return (_KV_BITS,)

    def bounds(self, bundle: Bundle, device: str, positions: int = 1) -> Bounds:
        """Its slots, and the cache of an accelerator that is there already or that was asked for."""
        check_device(device, self.options)
        config = chosen_config(bundle, self.options, positions)
        options = self.options
        fixed = options.board_bundle is not None or options.built or "context" in options.overrides
        memory, engine = bandwidth(self.options), config.beat_bytes * config.clock_hz
        return Bounds(
            rows=config.slots,
            positions=config.context if fixed else None,
            bytes_per_second=engine if memory is None else min(memory, engine),
        )

    def memories(self, bundle: Bundle, limits: Limits, device: str) -> tuple[MemoryUse, ...]:
        """Of the board."""
        config = chosen_config(bundle, self.options, limits.positions)
        return board_memories(config, buffer_bytes(bundle, self.options, limits.positions), self.options, device)

    def footprint(
        self,
        bundle: Bundle,
        limits: Limits,
        *,
        device: str = "sim",
        threads: int = 0,
        kv_bits: int | None = None,
        result_rows: int | None = None,
    ) -> Bytes:
        """Bytes of the device's buffers, and of the table whose rows the host sends."""
        found = _items(buffer_bytes(bundle, self.options, limits.positions))
        embedding = bundle.tensors[embedding_name(build_graph(bundle.config))]
        parts = embedding.scheme.parts(embedding.shape)
        return {**found, "embedding": sum(part.nbytes for part in parts.values())}


def module(accelerator: AcceleratorOptions | None, progress: Progress) -> TargetModule:
    """The plug-in entry: a module of one accelerator, the usual one for None."""
    return _Module(options=accelerator or AcceleratorOptions(), progress=progress)
