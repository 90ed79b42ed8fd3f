"""The passes of a target on an accelerator: which sequences share one, and what each of them gets of its results.

A sequence gets the same, to the last bit, whichever others are in its pass: whether its tokens are those that the device has
found or those of whole rows depends on its own request and rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.hw.compiler.host import Results
from edgedec.runtime.accelerator.cost import CycleCost
from edgedec.runtime.accelerator.float_logits import SparseRows, found_likeliest, whole_likeliest
from edgedec.runtime.accelerator.program_state import ProgramState
from edgedec.runtime.accelerator.rows import DeviceRows, rows_of
from edgedec.runtime.accelerator.taps import tapped_rows
from edgedec.runtime.accelerator.ticket import FollowingTicket, ProgramTicket, logit_rows, visible
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.driver.driver import BEST, NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.runtime.driver.parts import PartRows, positions_read
from edgedec.runtime.driver.posted import PostedPass
from edgedec.runtime.driver.report import PassReport
from edgedec.runtime.protocols import F32, I32, Pass, PassResult, Ticket
from edgedec.runtime.sampling.likeliest import Likeliest, find_likeliest

__all__ = ["DevicePasses"]


@dataclass(frozen=True, kw_only=True)
class _Item:
    """The rows of one sequence in a pass.

    Members:
        state, work: the sequence, and its pass.
        wanted: rows whose logits it returns, int32 [r].
        output: kind of logits that it needs.
        first: its first slot.
    """

    state: ProgramState
    work: Pass
    wanted: I32
    output: int
    first: int = 0

    @property
    def slots(self) -> I32:
        """Slots whose logits it returns."""
        return self.wanted + np.int32(self.first)


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Sequences that share a pass.

    Members:
        items: the results that each of them gets.
        rows: the rows that each of them has in the pass.
        read: committed positions that the pass reads.
    """

    items: Sequence[_Item]
    rows: Sequence[PartRows]
    read: int

    @property
    def slots(self) -> int:
        """Slots of the pass."""
        return sum(len(rows.ids) for rows in self.rows)

    @property
    def output(self) -> int:
        """Kind of logits of the pass."""
        return max(item.output for item in self.items)


class DevicePasses:
    """Runs passes of sequences, several in one where they fit.

    Args:
        driver: the driver of the device.
        cache: the rows of the sequences.
        sparse: memory for rows of logits.
        bundle: the model.
        cost: seconds of passes of a device without a clock.

    Members:
        counters: work of the device so far, without posted passes that have not landed.
    """

    def __init__(
        self, driver: Driver, cache: DeviceRows, sparse: SparseRows, *, bundle: Bundle, cost: CycleCost
    ) -> None:
        self._driver, self._cache, self._sparse, self._bundle, self._cost = driver, cache, sparse, bundle, cost
        self.counters = Counters()
        self._running: ProgramTicket | None = None
        driver.landed = self._count_posted

    def submit(self, work: Sequence[tuple[ProgramState, Pass]]) -> Ticket:
        """Start passes that were checked, one at least, in the order of ``work``. All but the last one run meanwhile."""
        *first, last = self._packed([self._item(state, one) for state, one in work])
        done = [self._start(items).copied() for items in first]
        ticket = self._start(last)
        return FollowingTicket(done, ticket) if done else ticket

    def rest(self) -> None:
        """Wait for the pass that runs, whose results are then kept, because the device runs one at a time."""
        if self._running is not None:
            self._running.copied()

    def abandon(self) -> None:
        """Forget the pass that runs."""
        self._running = None

    def count(self, report: PassReport, rows: Sequence[int], estimated: float) -> float:
        """Add passes of so many rows each to the counters, or a commit, and return their seconds in the device's time.

        ``estimated`` are those of a device without a clock.
        """
        seconds = report.cycles / self._driver.device.clock_hz if report.cycles else estimated
        self.counters = self.counters.plus(report, seconds, rows=rows)
        return seconds

    def _count_posted(self, report: PassReport, passes: Sequence[PostedPass]) -> None:
        seconds = [self._cost.seconds(one.rows, one.read, logits=False) for one in passes]
        self.count(report, [one.rows for one in passes], sum(seconds))

    def _item(self, state: ProgramState, work: Pass) -> _Item:
        wanted, host = logit_rows(work), self._driver.host
        if not len(wanted):
            # In a pass without logits the device leaves out what comes after the last layer's keys and values.
            output = BEST if any(map(host.needs_logits, work.taps)) else NO_LOGITS
        else:
            few = 0 < work.top_k <= host.program.config.top_k and (self._adds or not work.log_sum)
            output = BEST if few else WHOLE_ROWS
        return _Item(state=state, work=work, wanted=wanted, output=output)

    def _packed(self, items: Sequence[_Item]) -> list[list[_Item]]:
        """Return which items share a pass: as many as there are slots and sequences for, in their order."""
        config, packed, used = self._driver.program.config, list[list[_Item]](), 0
        for item in items:
            rows = len(item.work.ids)
            if not packed or used + rows > config.slots or len(packed[-1]) == self._most:
                packed.append([])
                used = 0
            packed[-1].append(replace(item, first=used))
            used += rows
        return packed

    @property
    def _most(self) -> int:
        """Most sequences of a pass."""
        return min(self._driver.program.config.sequences, len(self._driver.parts))

    def _start(self, items: Sequence[_Item]) -> ProgramTicket:
        """Start a pass, and return its ticket."""
        self.rest()
        parts = self._cache.bring([(item.state, item.state.rows) for item in items])
        rows = [
            PartRows(
                part=part,
                ids=item.work.ids,
                positions=item.work.positions,
                visible=visible(item.work),
                embeds=item.work.embeds,
            )
            for part, item in zip(parts, items, strict=True)
        ]
        for item in items:
            item.state.last = []
        if all(item.output == NO_LOGITS and not item.work.taps for item in items):  # there is nothing to wait for
            self._driver.post_parts(rows)
            self._running = None
            done = [self._nothing(item) for item in items]
            return ProgramTicket(lambda _: done)
        read = positions_read(self._driver.program.config, [one.sequence for one in rows])
        group = _Group(items=items, rows=rows, read=read)
        self._driver.submit_parts(rows, logits=group.output)
        self._running = ticket = ProgramTicket(lambda own: self._finish(own, group))
        return ticket

    def _nothing(self, item: _Item) -> PassResult:
        item.state.last = rows_of(item.work)
        logits, top = self._whole(item)
        return PassResult(logits=logits, top=top, taps={}, seconds=0.0)

    def _finish(self, ticket: ProgramTicket, group: _Group) -> list[PassResult]:
        """Wait for a ticket's pass and return the results.

        Raises:
            DeviceError: the pass failed; see ``Driver.finish``.
            UsageError: the pass was abandoned after Ctrl-C or an error.
        """
        if self._running is not ticket:
            raise UsageError("the pass of this ticket was abandoned; submit it again")
        self._running = None
        seconds = self._wait(group, group.output)
        best = [self._best(item) if item.output == BEST and len(item.wanted) else None for item in group.items]
        # Whole rows are needed if the device has found too few tokens of a row.
        lacks = any(
            found is None and item.output == BEST and len(item.wanted)
            for item, found in zip(group.items, best, strict=True)
        )
        if lacks and group.output != WHOLE_ROWS:
            self._driver.submit_parts(group.rows, logits=WHOLE_ROWS)
            seconds += self._wait(group, WHOLE_ROWS)
        sparse = self._filled([found for found in best if found is not None])
        results = list[PassResult]()
        for item, found in zip(group.items, best, strict=True):
            if found is None:
                logits, top = self._whole(item)
            else:
                logits, sparse = sparse[: len(item.wanted)], sparse[len(item.wanted) :]
                top = found[2]
            taps = tapped_rows(self._driver, item.work.taps, item.first, len(item.work.ids), item.slots)
            item.state.last = rows_of(item.work)
            results.append(PassResult(logits=logits, top=top, taps=taps, seconds=seconds))
        return results

    def _wait(self, group: _Group, output: int) -> float:
        """Wait for the running pass and return its seconds."""
        report, slots = self._driver.finish(), group.slots
        return self.count(report, [slots], self._cost.seconds(slots, group.read, logits=output != NO_LOGITS))

    def _whole(self, item: _Item) -> tuple[F32, Likeliest | None]:
        """Return whole rows of logits, float32 [rows, vocab], and the likeliest tokens of each."""
        work, slots, ids = item.work, item.slots, self._bundle.tokens.size
        if not len(slots):
            none = np.empty((0, self._driver.host.program.host.vocab), np.float32)
            return none, find_likeliest(none, work.top_k, ids, log_sum=work.log_sum)
        sums = self._driver.results(slots).sums if self._adds and work.log_sum else None
        return whole_likeliest(self._driver.logits(slots), work.top_k, ids, log_sum=work.log_sum, sums=sums)

    @property
    def _adds(self) -> bool:
        """The device adds the exponentials of the tokenizer's ids, which it does not if the logits have a soft-cap."""
        return self._driver.program.counted == self._bundle.tokens.size

    def _best(self, item: _Item) -> tuple[Results, F32, Likeliest] | None:
        """Return what the device has found, the logits, and the likeliest tokens of each row.

        The result is None if tokens that the device has not found may belong to these.
        """
        results, work = self._driver.results(item.slots), item.work
        found = found_likeliest(
            results,
            work.top_k,
            ids=self._bundle.tokens.size,
            vocab=self._driver.program.host.vocab,
            log_sum=work.log_sum,
        )
        return None if found is None else (results, *found)

    def _filled(self, found: Sequence[tuple[Results, F32, Likeliest]]) -> F32:
        """Return rows with the device's likeliest logits and -inf elsewhere, in the target's own memory."""
        if not found:
            return np.empty((0, 0), np.float32)
        ids, values = (np.concatenate(arrays) for arrays in zip(*((one[0].ids, one[1]) for one in found), strict=True))
        return self._sparse.filled(ids, values)
