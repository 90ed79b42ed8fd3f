"""The interrupt controller that a Zynq's block design has between its blocks and the processor, as pynq drives it.

Source: AMD PG099 (AXI INTC), registers and the behaviour of inputs that are sensitive to the level.
"""

from __future__ import annotations

__all__ = ["AxiInterruptController"]

_ISR, _IPR, _IER, _IAR, _SIE, _CIE, _MER = 0x00, 0x04, 0x08, 0x0C, 0x10, 0x14, 0x1C


class AxiInterruptController:
    """Members:
    lines: its inputs, as bits; whoever drives them calls ``drive``.
    """

    def __init__(self) -> None:
        self.lines = 0
        self._status = self._enabled = self._master = 0

    @property
    def output(self) -> bool:
        """To the processor."""
        return bool(self._master & 1 and self._status & self._enabled)

    def drive(self, lines: int) -> None:
        self.lines = lines
        self._status |= lines

    def read(self, offset: int) -> int:
        """32 bits."""
        found = {
            _ISR: self._status,
            _IPR: self._status & self._enabled,
            _IER: self._enabled,
            _MER: self._master,
        }
        return found.get(offset, 0)

    def write(self, offset: int, value: int) -> None:
        """32 bits."""
        if offset == _IER:
            self._enabled = value
        elif offset == _IAR:
            self._status = self._status & ~value | self.lines  # a line that is high is noted again
        elif offset == _SIE:
            self._enabled |= value
        elif offset == _CIE:
            self._enabled &= ~value
        elif offset == _MER:
            self._master = value & 3
