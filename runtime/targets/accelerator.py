"""Accelerators as targets: a board, a simulation of its RTL, or the interpreter of its program.

A device has room for some sequences, which the states share: when one that has no room becomes active, it takes that of
another one. Rows that both have in common stay on the device and the others run again, which gives the same integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.boards import find_board
from edgedec.bundle.bundle import Bundle
from edgedec.device import Device
from edgedec.errors import UsageError
from edgedec.memory.plan import MemoryUse
from edgedec.progress import Progress
from edgedec.runtime.accelerator.cost import CycleCost
from edgedec.runtime.accelerator.float_logits import SparseRows
from edgedec.runtime.accelerator.lending import AcceleratorLender, lender_of
from edgedec.runtime.accelerator.memories import board_memories
from edgedec.runtime.accelerator.model import (
    AcceleratorModel,
    BufferSizes,
    buffer_bytes,
    chosen_config,
    keeps_windows,
    plan_items,
    prepare_model,
)
from edgedec.runtime.accelerator.opening import bandwidth, check_device, gateware, memory_model, open_device
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.accelerator.passes import DevicePasses
from edgedec.runtime.accelerator.program_state import ProgramState, StateOwner
from edgedec.runtime.accelerator.rows import DeviceRows, Row
from edgedec.runtime.accelerator.self_test import check_answer, check_link
from edgedec.runtime.accelerator.taps import check_open, check_taps, host_bytes
from edgedec.runtime.accelerator.weights import host_weights
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.facts import DeviceFacts
from edgedec.runtime.driver.identity import Gateware
from edgedec.runtime.driver.parts import part_rows
from edgedec.runtime.protocols import I32, Bytes, CostModel, Limits, Pass, State, TargetInfo, Ticket
from edgedec.runtime.row_recipe import CAUSAL, RowRecipe
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import Bounds, TargetModule
from edgedec.runtime.targets._results import FinishedTicket, check_pass

__all__ = ["ProgramTarget", "module"]

_KV_BITS = 8  # bits of keys and values in the integer profile
_WITHOUT_CLOCK = "interpreter"  # name of the device that has no clock


class ProgramTarget(CompiledParts[AcceleratorLender]):
    """A compiled program on an accelerator.

    Members:
        device, driver, program: the device, its driver and the program that it runs.
        cost_model: estimated duration of passes.
        facts: context of the device's figures: simulated or measured, board, clock frequency.
        top_k: likeliest tokens of a row that the device can return.

    Args:
        bundle: the model.
        device: used by this target only; it is closed with the target.
        model: the compiled program, and the embedding of the host.
        limits: bounds of the passes.
        recipe: recipe of the rows, which run again where a sequence had to give up its part of the cache.
        sequences: number of parts of the cache.
        board: name of the board, for ``facts``.
        memory: name of a simulated device's memory model, for ``facts``.
        bandwidth: bytes per second of the memory, for ``cost_model``; None: no limit.
        gateware: RTL that the device must have, if that is known.

    Raises:
        UsageError: the limits exceed those of the accelerator.
    """

    free_rows: int | None = None  # each sequence has a part of the cache, or its rows run again

    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        model: AcceleratorModel,
        limits: Limits,
        *,
        recipe: RowRecipe = CAUSAL,
        sequences: int = 1,
        board: str = "",
        memory: str = "",
        bandwidth: float | None = None,
        gateware: Gateware | None = None,
    ) -> None:
        self.bundle, self.device, self.program, self.limits = bundle, device, model.program, limits
        config = model.program.config
        rows = part_rows(config, sequences)
        if limits.nodes > config.slots or limits.positions > rows:
            raise UsageError(
                f"the accelerator has {config.slots} slots and {rows} positions, not {limits.nodes} and "
                f"{limits.positions}; lower --tree-nodes or --ctx-size"
            )
        self.driver = Driver(device, model.program, model.embedding, model.head, gateware=gateware, parts=sequences)
        self._cost = CycleCost(model.program, bandwidth)
        self.cost_model: CostModel | None = self._cost
        # A replay reports the figures of the recorded device.
        recorded = getattr(device, "recorded_name", device.name)
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
        self._owner = StateOwner(
            commit=self._commit,
            truncated=self._truncated,
            lend=self._lend,
            returned=self._returned,
            goes_back=model.program.ring is None,
        )
        self._sparse = SparseRows(config.slots, model.program.host.vocab)
        self._lender = lender_of(
            self.driver,
            model.embedding,
            ids=bundle.tokens.size,
            cost=self._cost if recorded == _WITHOUT_CLOCK else None,
            owner=self._owner,
            rows=self._sparse,
        )
        if self._lender is not None:
            self._lender.inputs  # noqa: B018  it makes them now, and not while the first text waits
        self._cache = DeviceRows(self.driver, recipe)
        self._passes = DevicePasses(self.driver, self._cache, self._sparse, bundle=bundle, cost=self._cost)
        self.info = TargetInfo(
            vocab=model.program.host.vocab,
            tokenizer_hash=bundle.tokenizer_hash,
            positions=limits.positions,
            taps=tuple(tap.name for tap in model.program.host.taps),
            masks="any",
            batch_invariant=True,
            top_k=self.top_k,
            overlaps=True,
            joins=config.sequences > 1 and sequences > 1,
        )

    @property
    def counters(self) -> Counters:
        """Work of the device since the target was opened. Passes that run end first.

        Raises:
            DeviceError: one of them has failed.
        """
        self.driver.land()
        return self._passes.counters

    @property
    def device_bytes(self) -> int:
        """Bytes of the buffers in the device's memory."""
        return sum(region.array.nbytes for region in self.driver.regions.values())

    def footprint(self, limits: Limits) -> Bytes:
        """Return the bytes of the device's buffers, whose sizes the program fixes."""
        return plan_items(BufferSizes.of(self.program))

    def open(self, limits: Limits) -> State:
        """Return the empty cache of a new sequence."""
        return ProgramState(self._owner, [])

    @property
    def compiled(self) -> AcceleratorLender | None:
        """The object that lends the device to the compiled loop; None: the loop cannot use it."""
        return self._lender

    def close(self) -> None:
        """Abandon a running pass and release the device. A second call does nothing."""
        self._land()
        self._passes.abandon()
        try:
            self.driver.close()
        finally:
            self.device.close()

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        """Start passes and return. They are one where there are slots and sequences for all of them.

        Otherwise all but the last one run before this returns. The rows of a result may be the target's own memory, which
        the next pass overwrites.
        """
        checked = list[tuple[ProgramState, Pass]]()
        self._land()
        for state, one in work:
            assert isinstance(state, ProgramState)
            check_pass(one, state.length, self.limits, self.info)
            check_open(one.taps, self.info.taps)
            checked.append((state, one))
        return self._passes.submit(checked) if checked else FinishedTicket([])

    def _land(self) -> None:
        """End the rounds of the compiled loop that run on the device now."""
        if (
            self._lender is not None
            and self._lender.flight is not None
            and (flight := self._lender.flight()) is not None
        ):
            flight.land()

    def _lend(self, state: ProgramState) -> int:
        """Make the device hold a state's rows, for passes of the compiled loop. Return their first group in the cache."""
        assert self._lender is not None, "it has lent the state"
        self._land()
        self._lender.lent = False  # a failure here leaves fewer rows, which nothing may count
        self._passes.rest()
        (self.driver.part,) = self._cache.bring([(state, state.rows)])
        self._lender.lend()
        return self.driver.part.group

    def _returned(self, state: ProgramState, rows: list[Row]) -> None:
        """Note rows that the compiled loop has committed, and what it has done on the device."""
        assert self._lender is not None, "it has lent the state"
        if self._lender.lent:
            self.driver.part = self._cache.extend(state, rows)
            if (work := self._lender.take_back(state.length)) is not None:
                self._passes.counters += work

    def _commit(self, state: ProgramState, nodes: I32) -> None:
        """Commit rows of the state's last pass. If another state's rows are on the device now, they run again later.

        Raises:
            DeviceError: see ``Driver.commit``.
            UsageError: the last pass does not have these rows, or they are not in ascending order.
        """
        last, state.last = state.last, []
        kept = [int(node) for node in nodes]
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < len(last)):
            raise UsageError(f"rows {kept} cannot be kept of a pass of {len(last)}; name them in ascending order")
        rows = [last[node] for node in kept]
        if self._cache.has(state, state.rows):
            report = self._cache.commit(state, nodes, rows)
            state.commit_seconds = 0.0 if report is None else self._passes.count(report, (), 0.0)
        state.rows += rows

    def _truncated(self, state: ProgramState) -> None:
        """Note that a state has lost rows."""
        self._cache.forget(state, len(state.rows))


@dataclass(frozen=True, kw_only=True)
class _Module:
    """The ``TargetModule`` of one accelerator."""

    options: AcceleratorOptions
    progress: Progress

    def create(self, bundle: Bundle, request: TargetRequest) -> ProgramTarget:
        """Compile the program, open the device and return the target.

        Raises:
            UnsupportedError: the model cannot be mapped to the accelerator, or this cannot return the values ``taps``.
            ToolError: a tool or package that the device needs is missing.
            DeviceError: the device does not answer, or is in use.
        """
        check_taps(request.device, self.options, request.taps)
        positions = request.limits.positions
        model = prepare_model(
            bundle, self.options, positions, request.taps, sequences=request.sequences, progress=self.progress
        )
        built_from, answer = gateware(request.device, self.options, model.program.config), None
        opened = open_device(request.device, model.program, self.options, progress=self.progress)
        if built_from is not None and self.options.board_bundle is not None:
            answer = self.options.board_bundle.known_answer
        try:
            if answer is not None or self.options.built:
                check_link(opened, model.program, built_from)
            target = ProgramTarget(
                bundle,
                opened,
                model,
                request.limits,
                recipe=request.recipe,
                sequences=request.sequences,
                board=find_board(self.options.board_name).name,
                memory="" if self.options.built else memory_model(self.options),
                bandwidth=bandwidth(self.options),
                gateware=built_from,
            )
            if answer is not None:
                check_answer(target.driver, answer)
            return target
        except BaseException:
            opened.close()
            raise

    def kv_choices(self, device: str, bundle: Bundle | None = None) -> tuple[int, ...]:
        """Return the integer profile's bits of keys and values."""
        return (_KV_BITS,)

    def bounds(self, bundle: Bundle, device: str, positions: int = 1, sequences: int = 1) -> Bounds:
        """Return the accelerator's limits.

        The cache is limited if the accelerator is built already, or if the options set its size.
        """
        check_device(device, self.options)
        config = chosen_config(bundle, self.options, positions, sequences=sequences)
        options = self.options
        fixed = options.board_bundle is not None or options.built or "context" in options.overrides
        memory, engine = bandwidth(self.options), config.beat_bytes * config.clock_hz
        return Bounds(
            rows=config.slots,
            positions=part_rows(config, sequences) if fixed else None,
            sequences=config.sequences,
            bytes_per_second=engine if memory is None else min(memory, engine),
            rings=keeps_windows(bundle, config, options),
        )

    def memories(self, bundle: Bundle, request: TargetRequest) -> tuple[MemoryUse, ...]:
        """Return the board's memories."""
        check_taps(request.device, self.options, request.taps)
        positions, taps = request.limits.positions, request.taps
        texts = request.sequences
        config = chosen_config(bundle, self.options, positions, sequences=texts, taps=bool(taps))
        buffers = buffer_bytes(bundle, self.options, positions, taps, sequences=texts).by_name
        return board_memories(config, buffers, self.options, request.device)

    def footprint(self, bundle: Bundle, request: TargetRequest) -> Bytes:
        """Return the bytes of the device's buffers and of the host's weights: the embedding, and a rough head's int8 rows.

        Raises:
            UnsupportedError: the accelerator cannot return one of the values ``request.taps``.
        """
        check_taps(request.device, self.options, request.taps)
        positions, texts = request.limits.positions, request.sequences
        buffers = plan_items(buffer_bytes(bundle, self.options, positions, request.taps, sequences=texts))
        if request.taps:
            buffers["taps"] += host_bytes(bundle, request.limits, request.taps)
        config = chosen_config(bundle, self.options, positions, sequences=texts, taps=bool(request.taps))
        return {**buffers, **host_weights(bundle, rough_head=config.rough_head > 0)}


def module(accelerator: AcceleratorOptions | None, progress: Progress) -> TargetModule:
    """Return the module of an accelerator, the default one for None (entry point of the plug-in)."""
    return _Module(options=accelerator or AcceleratorOptions(), progress=progress)
