"""The interrupt controller between the blocks of a Zynq's block design and the processor, as pynq uses it.

Source: AMD PG099 (AXI INTC), registers and the behaviour of level-sensitive inputs.
"""

from __future__ import annotations

__all__ = ["AxiInterruptController"]

_ISR, _IPR, _IER, _IAR, _SIE, _CIE, _MER = 0x00, 0x04, 0x08, 0x0C, 0x10, 0x14, 0x1C


class AxiInterruptController:
    """The registers and the state of an interrupt controller.

    Members:
        lines: its inputs, as bits; ``drive`` sets them.
    """

    def __init__(self) -> None:
        self.lines = 0
        self._status = self._enabled = self._master = 0

    @property
    def output(self) -> bool:
        """Level of the interrupt line to the processor."""
        return bool(self._master & 1 and self._status & self._enabled)

    def drive(self, lines: int) -> None:
        self.lines = lines
        self._status |= lines

    def read(self, offset: int) -> int:
        """Return the 32-bit register at byte ``offset``."""
        values = {
            _ISR: self._status,
            _IPR: self._status & self._enabled,
            _IER: self._enabled,
            _MER: self._master,
        }
        return values.get(offset, 0)

    def write(self, offset: int, value: int) -> None:
        """Write the 32-bit register at byte ``offset``."""
        if offset == _IER:
            self._enabled = value
        elif offset == _IAR:
            self._status = self._status & ~value | self.lines  # a line that is still high sets its bit again
        elif offset == _SIE:
            self._enabled |= value
        elif offset == _CIE:
            self._enabled &= ~value
        elif offset == _MER:
            self._master = value & 3
