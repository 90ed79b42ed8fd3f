"""The results of a pass on the accelerator, which are in the output buffer until the next pass."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Device
from edgedec.errors import UsageError
from edgedec.hw.compiler.host import ProgramHost, Results
from edgedec.hw.compiler.program import Program, result_bytes
from edgedec.reference.integer_profile.taps import TappedRows
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.driver.operations import Operations
from edgedec.runtime.driver.regions import Region

__all__ = ["BEST", "NO_LOGITS", "WHOLE_ROWS", "Outputs"]

NO_LOGITS, BEST, WHOLE_ROWS = 0, 1, 2  # values of the field logits of the register pass_parameters

I32 = NDArray[np.int32]


class Outputs(Operations):
    """Reads the results of the last pass. What was read once is not read from the device again.

    Members:
        host: the meaning of the buffers of the program.
    """

    def __init__(self, device: Device, program: Program, host: ProgramHost, max_cycles: int | None) -> None:
        super().__init__(device, program, max_cycles)
        self.host = host
        self._result_bytes = result_bytes(program.config)
        self._written = (0, NO_LOGITS)  # slots and logits of the pass whose results are in the output buffer
        self._beside = False  # True if ``ProgramHost.beside`` was read

    @abstractmethod
    def _region(self, name: str) -> Region:
        """Return a buffer of the program."""

    def _forget_results(self) -> None:
        self._written, self._fetched_bytes, self._beside = (0, NO_LOGITS), 0, False

    def _wrote(self, slots: int, logits: int) -> None:
        """Note that a pass of so many slots has ended, with logits of this kind."""
        self._written = (slots, logits)

    def _output(self, size_bytes: int, beside: range = range(0)) -> NDArray[np.uint8]:
        """Return the output buffer after reading its first bytes, and others."""
        needed = 0 if size_bytes <= self._fetched_bytes else size_bytes
        self._fetched_bytes = max(self._fetched_bytes, needed)
        if self._beside or beside.stop <= self._fetched_bytes:
            beside = range(0)
        self._beside = self._beside or bool(beside)
        return self._region("output").fetched(needed, beside)

    def results(self, rows: I32) -> Results:
        """Return the likeliest tokens of the slots ``rows`` of the last pass.

        Raises:
            UsageError: the pass did not finish, does not have these slots, or wrote no logits.
        """
        self._check_written(rows, BEST)
        return self.host.results(self._output(self._result_bytes, self.host.beside), rows)

    def logits(self, rows: I32) -> Logits:
        """Return whole rows of logits of the slots ``rows`` of the last pass.

        Raises:
            UsageError: see ``results``, or the pass did not write whole rows.
        """
        self._check_written(rows, WHOLE_ROWS)
        return self.host.logits(self._output(self.program.output_bytes), rows)

    def tapped(self, name: str, rows: I32) -> TappedRows:
        """Return a tapped value of the slots ``rows`` of the last pass.

        Raises:
            UsageError: see ``results``; the value needs a pass with logits, or the program does not write it.
        """
        self._check_written(rows, BEST if self.host.needs_logits(name) else NO_LOGITS)
        return self.host.tapped(self._output(self.program.output_bytes), name, rows)

    def _check_written(self, rows: I32, least: int) -> None:
        slots, logits = self._written
        if logits < least or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < slots):
            expected = "whole rows of logits" if least == WHOLE_ROWS else "results"
            kind = ("none", "the best", "whole rows")[logits]
            raise UsageError(
                f"there are no {expected} of slots {rows.tolist()}: the last finished pass wrote {kind}, of {slots} slots; "
                "finish a pass that writes them first"
            )
