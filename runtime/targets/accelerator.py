"""Accelerators as targets: a board, a simulation of its RTL, or the interpreter of its program.

A device has room for one sequence, which the states share: when a state becomes active, rows that it has in common with the
previous one stay on the device and the others run again, which gives the same integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from edgedec.boards import find_board
from edgedec.bundle.bundle import Bundle
from edgedec.device import Device
from edgedec.errors import UsageError
from edgedec.memory.plan import MemoryUse
from edgedec.progress import Progress
from edgedec.runtime.accelerator.cost import CycleCost
from edgedec.runtime.accelerator.float_logits import SparseRows, found_likeliest, whole_likeliest
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
from edgedec.runtime.accelerator.program_state import ProgramState, StateOwner
from edgedec.runtime.accelerator.rows import DeviceRows, Row, rows_of
from edgedec.runtime.accelerator.self_test import check_answer, check_link
from edgedec.runtime.accelerator.taps import check_open, check_taps, host_bytes, tapped_rows
from edgedec.runtime.accelerator.ticket import ProgramTicket, logit_rows, visible
from edgedec.runtime.accelerator.weights import host_weights
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.driver.driver import BEST, NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.runtime.driver.facts import DeviceFacts
from edgedec.runtime.driver.identity import Gateware
from edgedec.runtime.driver.report import PassReport
from edgedec.runtime.protocols import F32, I32, Bytes, CostModel, Limits, Pass, PassResult, State, TargetInfo, Ticket
from edgedec.runtime.row_recipe import CAUSAL, RowRecipe
from edgedec.runtime.sampling.likeliest import Likeliest, find_likeliest
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
        board: name of the board, for ``facts``.
        memory: name of a simulated device's memory model, for ``facts``.
        bandwidth: bytes per second of the memory, for ``cost_model``; None: no limit.
        gateware: RTL that the device must have, if that is known.

    Raises:
        UsageError: the limits exceed those of the accelerator.
    """

    free_rows: int | None = None  # the device has the rows of one sequence, and rows of the others run again

    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        model: AcceleratorModel,
        limits: Limits,
        *,
        recipe: RowRecipe = CAUSAL,
        board: str = "",
        memory: str = "",
        bandwidth: float | None = None,
        gateware: Gateware | None = None,
    ) -> None:
        self.bundle, self.device, self.program, self.limits = bundle, device, model.program, limits
        config = model.program.config
        if limits.nodes > config.slots or limits.positions > config.context:
            raise UsageError(
                f"the accelerator has {config.slots} slots and {config.context} positions, not {limits.nodes} and "
                f"{limits.positions}; lower --tree-nodes or --ctx-size"
            )
        self.driver = Driver(device, model.program, model.embedding, model.head, gateware=gateware)
        self._counters = Counters()
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
        self._cache = DeviceRows(self.driver, recipe)
        self.driver.landed = self._count_posted
        self._running: ProgramTicket | None = None
        self._output = NO_LOGITS  # kind of logits that the last pass wrote
        self.info = TargetInfo(
            vocab=model.program.host.vocab,
            tokenizer_hash=bundle.tokenizer_hash,
            positions=limits.positions,
            taps=tuple(tap.name for tap in model.program.host.taps),
            masks="any",
            batch_invariant=True,
            top_k=self.top_k,
            overlaps=True,
        )

    @property
    def counters(self) -> Counters:
        """Work of the device since the target was opened. Passes that run end first.

        Raises:
            DeviceError: one of them has failed.
        """
        self.driver.land()
        return self._counters

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
        self._running = None
        try:
            self.driver.close()
        finally:
            self.device.close()

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        """Start a pass and return. Several passes run one after another before this returns.

        The rows of a result may be the target's own memory, which the next pass overwrites.
        """
        if len(work) == 1:
            return self._submit_pass(*work[0])
        return FinishedTicket([self._submit_pass(state, item).copied() for state, item in work])

    def _submit_pass(self, state: State, work: Pass) -> ProgramTicket:
        assert isinstance(state, ProgramState)
        self._land()
        check_pass(work, state.length, self.limits, self.info)
        check_open(work.taps, self.info.taps)
        if self._running is not None:
            self._running.copied()  # wait for it, because the device runs one pass at a time
        self._cache.bring(state, state.rows)
        state.last = []
        if not len(logit_rows(work)) and not work.taps:  # there is nothing to wait for
            self.driver.post(work.ids, positions=work.positions, visible=visible(work), embeds=work.embeds)
            self._running, state.last = None, rows_of(work)
            logits, top = self._whole(work)
            done = PassResult(logits=logits, top=top, taps={}, seconds=0.0)
            return ProgramTicket(lambda _: done)
        self._start(work)
        self._running = ticket = ProgramTicket(lambda own: self.finish(own, state, work))
        return ticket

    def _start(self, work: Pass, *, whole: bool = False) -> None:
        if not len(logit_rows(work)):
            # In a pass without logits the device leaves out what comes after the last layer's keys and values.
            self._output = BEST if any(map(self.driver.host.needs_logits, work.taps)) else NO_LOGITS
        else:
            few = 0 < work.top_k <= self.top_k and (self._adds or not work.log_sum) and not whole
            self._output = BEST if few else WHOLE_ROWS
        self.driver.submit(
            work.ids,
            positions=work.positions,
            visible=visible(work),
            logits=self._output,
            embeds=work.embeds,
        )

    def finish(self, ticket: ProgramTicket, state: ProgramState, work: Pass) -> PassResult:
        """Wait for a ticket's pass and return its result.

        Raises:
            DeviceError: the pass failed; see ``Driver.finish``.
            UsageError: the pass was abandoned after Ctrl-C or an error.
        """
        if self._running is not ticket:
            raise UsageError("the pass of this ticket was abandoned; submit it again")
        self._running = None
        seconds = self._wait(work)
        found = self._output == BEST and len(logit_rows(work)) > 0
        best = self._best(work) if found else None
        if found and best is None:  # the device has found too few tokens of a row: get whole rows
            self._start(work, whole=True)
            seconds += self._wait(work)
        logits, top = best or self._whole(work)
        taps = tapped_rows(self.driver, work.taps, len(work.ids), logit_rows(work))
        state.last = rows_of(work)
        return PassResult(logits=logits, top=top, taps=taps, seconds=seconds)

    def _wait(self, work: Pass) -> float:
        """Wait for the running pass and return its seconds."""
        report, rows = self.driver.finish(), len(work.ids)
        return self._count(
            report, [rows], self._cost.seconds(rows, self.driver.length, logits=self._output != NO_LOGITS)
        )

    def _whole(self, work: Pass) -> tuple[F32, Likeliest | None]:
        """Return whole rows of logits, float32 [rows, vocab], and the likeliest tokens of each."""
        rows, ids = logit_rows(work), self.bundle.tokens.size
        if not len(rows):
            none = np.empty((0, self.info.vocab), np.float32)
            return none, find_likeliest(none, work.top_k, ids, log_sum=work.log_sum)
        sums = self.driver.results(rows).sums if self._adds and work.log_sum else None
        return whole_likeliest(self.driver.logits(rows), work.top_k, ids, log_sum=work.log_sum, sums=sums)

    @property
    def _adds(self) -> bool:
        """The device adds the exponentials of the tokenizer's ids, which it does not if the logits have a soft-cap."""
        return self.program.counted == self.bundle.tokens.size

    def _best(self, work: Pass) -> tuple[F32, Likeliest] | None:
        """Return rows with the device's likeliest logits and -inf elsewhere, and the likeliest tokens of each.

        The rows are the target's own memory. The result is None if tokens that the device has not found may belong to these.
        """
        results = self.driver.results(logit_rows(work))
        found = found_likeliest(
            results, work.top_k, ids=self.bundle.tokens.size, vocab=self.info.vocab, log_sum=work.log_sum
        )
        if found is None:
            return None
        values, likeliest = found
        return self._sparse.filled(results.ids, values), likeliest

    def _land(self) -> None:
        """End the rounds of the compiled loop that run on the device now."""
        if (
            self._lender is not None
            and self._lender.flight is not None
            and (flight := self._lender.flight()) is not None
        ):
            flight.land()

    def _lend(self, state: ProgramState) -> None:
        """Make the device hold a state's rows, for passes of the compiled loop."""
        assert self._lender is not None, "it has lent the state"
        self._land()
        if self._running is not None:
            self._running.copied()  # wait for it, because the device runs one pass at a time
        self._lender.lent = False  # a failure here leaves fewer rows, which nothing may count
        self._cache.bring(state, state.rows)
        self._lender.lend()

    def _returned(self, state: ProgramState, rows: list[Row]) -> None:
        """Note rows that the compiled loop has committed, and what it has done on the device."""
        assert self._lender is not None, "it has lent the state"
        if self._lender.lent:
            self._cache.extend(rows)
            self._counters += self._lender.take_back(state.length)

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
        if self._cache.is_of(state, state.rows):
            report = self._cache.commit(nodes, rows)
            state.commit_seconds = 0.0 if report is None else self._count(report, (), 0.0)
        state.rows += rows

    def _truncated(self, state: ProgramState) -> None:
        """Note that a state has lost rows."""
        self._cache.forget(state)

    def _count_posted(self, report: PassReport, rows: Sequence[int]) -> None:
        """Add passes without logits that were posted, of so many rows each, to the counters."""
        past = max(self.driver.length - sum(rows), 0)  # they were committed in full, unless a caller has gone back
        starts = accumulate(rows, initial=past)
        seconds = [self._cost.seconds(number, start, logits=False) for number, start in zip(rows, starts, strict=False)]
        self._count(report, rows, sum(seconds))

    def _count(self, report: PassReport, rows: Sequence[int], estimated: float) -> float:
        """Add passes of so many rows each to the counters, or a commit, and return their seconds in the device's time.

        ``estimated`` are those of a device without a clock.
        """
        seconds = report.cycles / self.facts.clock_hz if report.cycles else estimated
        self._counters = self._counters.plus(report, seconds, rows=rows)
        return seconds


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
        model = prepare_model(bundle, self.options, positions, request.taps, progress=self.progress)
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

    def bounds(self, bundle: Bundle, device: str, positions: int = 1) -> Bounds:
        """Return the accelerator's limits.

        The cache is limited if the accelerator is built already, or if the options set its size.
        """
        check_device(device, self.options)
        config = chosen_config(bundle, self.options, positions)
        options = self.options
        fixed = options.board_bundle is not None or options.built or "context" in options.overrides
        memory, engine = bandwidth(self.options), config.beat_bytes * config.clock_hz
        return Bounds(
            rows=config.slots,
            positions=config.context if fixed else None,
            bytes_per_second=engine if memory is None else min(memory, engine),
            rings=keeps_windows(bundle, config, options),
        )

    def memories(self, bundle: Bundle, request: TargetRequest) -> tuple[MemoryUse, ...]:
        """Return the board's memories."""
        check_taps(request.device, self.options, request.taps)
        positions, taps = request.limits.positions, request.taps
        config = chosen_config(bundle, self.options, positions, taps=bool(taps))
        buffers = buffer_bytes(bundle, self.options, positions, taps).by_name
        return board_memories(config, buffers, self.options, request.device)

    def footprint(self, bundle: Bundle, request: TargetRequest) -> Bytes:
        """Return the bytes of the device's buffers and of the host's weights: the embedding, and a rough head's int8 rows.

        Raises:
            UnsupportedError: the accelerator cannot return one of the values ``request.taps``.
        """
        check_taps(request.device, self.options, request.taps)
        buffers = plan_items(buffer_bytes(bundle, self.options, request.limits.positions, request.taps))
        if request.taps:
            buffers["taps"] += host_bytes(bundle, request.limits, request.taps)
        config = chosen_config(bundle, self.options, request.limits.positions, taps=bool(request.taps))
        return {**buffers, **host_weights(bundle, rough_head=config.rough_head)}


def module(accelerator: AcceleratorOptions | None, progress: Progress) -> TargetModule:
    """Return the module of an accelerator, the default one for None (entry point of the plug-in)."""
    return _Module(options=accelerator or AcceleratorOptions(), progress=progress)
