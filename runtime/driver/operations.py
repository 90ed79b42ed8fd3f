"""An operation on the accelerator, a pass or a commit: it is started, and its end is waited for."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from edgedec.device import Device
from edgedec.device_steps import Fetch, Performer, Step, UnexpectedRegisterError, Wait, perform
from edgedec.errors import DeviceError
from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.registers import COUNTS
from edgedec.runtime.driver.failures import error_text, silence_text
from edgedec.runtime.driver.limits import patience_cycles
from edgedec.runtime.driver.pass_steps import POLL_CYCLES, ending_of, ending_steps
from edgedec.runtime.driver.registers import Registers
from edgedec.runtime.driver.report import PassReport

__all__ = ["Operations"]

_LOG = logging.getLogger(__name__)

# Device time between two reads of the registers while the driver waits for the interrupt: the first and the longest, in
# seconds. Each is twice the previous one, so that a lost interrupt costs at most the duration of the pass, and one second.
_FIRST_SLICE_S, _LONGEST_SLICE_S = 0.01, 1.0


class Operations(ABC):
    """Starts operations and waits for their ends.

    Members:
        device, program: the device, and the program that it runs.
        registers: the device's registers by name.
        max_cycles: cycles after which an operation has failed.
    """

    def __init__(self, device: Device, program: Program, max_cycles: int | None) -> None:
        self.device, self.program, self.registers = device, program, Registers(device)
        self.max_cycles = patience_cycles(program) if max_cycles is None else max_cycles
        self._expected = ""  # event that ends the running or abandoned operation; empty: none runs
        self._fetched_bytes = 0  # first bytes of the output buffer that were read since the last pass
        self._interrupts = True  # False once an interrupt was missing

    @abstractmethod
    def taken_text(self) -> str:
        """Return that the accelerator has the addresses of another driver, and what to do."""

    @abstractmethod
    def _abandon(self) -> None:
        """Forget what runs."""

    def _starting(self, doorbell: str, *, first: bool = True) -> list[Step]:
        """Return the steps that start the operation that the registers describe; the counters then begin with the first."""
        registers = self.registers
        clear = registers.writes_of("interrupt_status", done=1, error=1, committed=1)
        return [*clear, *registers.writes_of("control", **{doorbell: 1}, clear_counters=first)]

    def ring(self, doorbell: str, event: str, before: Sequence[Step] = ()) -> None:
        """Start the operation that the registers describe. ``event`` is the interrupt that reports its success.

        Args:
            before: steps that are carried out first, in the same request.
        """
        self._expected = event
        self._perform([*before, *self._starting(doorbell)])

    def _perform(self, steps: Sequence[Step]) -> list[int]:
        """Carry out steps, among which may be those that check whose the accelerator is."""
        try:
            return perform(self.device, steps)
        except UnexpectedRegisterError as error:
            self._expected = ""  # nothing was started, and what runs is another driver's
            self._abandon()
            raise DeviceError(self.taken_text()) from error

    def answer(self, first: Sequence[Step] = (), fetch: Fetch | None = None) -> PassReport:
        """Wait for the event of ``ring``. After an exception, call it again or start another operation.

        Args:
            first: steps that are carried out first, in the same request.
            fetch: bytes that come with the end, in the same request.

        Raises:
            DeviceError: the accelerator stopped with an error or did not answer in time; the message names the instruction.
        """
        events, idle, counts = self._wait_for_event(first, fetch)
        report = PassReport(**dict(zip(COUNTS, counts, strict=True)))
        if "error" in events:
            raise DeviceError(self.error_text())
        if self._expected not in events:
            raise DeviceError(self.timeout_text(report.descriptors, idle))
        self._expected = ""
        return report

    def _wait_for_event(self, first: Sequence[Step], fetch: Fetch | None) -> tuple[set[str], bool, list[int]]:
        """Carry out steps, then wait until there is an event, nothing runs, or the time is over.

        Returns:
            The events of ``interrupt_status``, whether the accelerator is idle, and the counters in the order of COUNTS.
        """
        after = [*ending_steps(self.registers), *([] if fetch is None else [fetch])]
        far = isinstance(self.device, Performer)  # a look at the registers is a round trip then
        left, part = self.max_cycles / self.device.clock_hz, _LONGEST_SLICE_S if far else _FIRST_SLICE_S
        while True:
            part = min(part, left)
            interrupted, *found = self._perform([*first, Wait(part), *after])
            first, end = (), ending_of(self.registers, found)
            left, part = left - part, min(2 * part, _LONGEST_SLICE_S)
            if end.events:
                self._fetched_bytes = 0 if fetch is None else fetch.size_bytes
                if not interrupted:
                    self.missed_interrupt()
            if end.events or end.idle or left <= 0:
                return end.events, end.idle, end.counts

    def missed_interrupt(self) -> None:
        """Warn once that an operation ended without an interrupt, because ends are then seen at the next read only."""
        if self._interrupts and not self.device.wait(POLL_CYCLES / self.device.clock_hz):
            self._interrupts = False
            _LOG.warning(
                "%s: a pass ended without an interrupt, so the ends of passes will be noticed late. Check that the "
                "accelerator's interrupt is connected",
                self.device.name,
            )

    def error_text(self) -> str:
        """Return why the accelerator has given up, and what to do."""
        return error_text(self.registers, self.program)

    def timeout_text(self, number: int, idle: bool) -> str:
        """Return that there was no answer, after ``number`` instructions, and whether nothing runs any more."""
        logits = self.registers.read_field("pass_parameters", "logits") > 0
        commits = self._expected == "committed"
        return silence_text(
            self.device.name, self.program, number, self.max_cycles, idle=idle, commits=commits, logits=logits
        )
