"""A register map in Python: what a host reads and writes, word by word, as the hardware's registers behave."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.errors import UsageError
from edgedec.hw.isa.register_map import Access, Register, RegisterMap

__all__ = ["RegisterFile"]


class RegisterFile:
    """Members:
    values: of each register by name, one number for each of ``count``; what is read only is set here.

    Args:
        pulsed: called with each field of a PULSE register that a host has written 1 to, in the order of the fields.
    """

    def __init__(self, of: RegisterMap, pulsed: Callable[[str], None]) -> None:
        self._pulsed = pulsed
        self.values = {register.name: [register.reset] * register.count for register in of.registers}
        self._words = {
            register.offset + index * register.bytes + 4 * word: (register, index, 32 * word)
            for register in of.registers
            for index in range(register.count)
            for word in range(register.bytes // 4)
        }

    def __getitem__(self, name: str) -> int:
        return self.values[name][0]

    def __setitem__(self, name: str, value: int) -> None:
        self.values[name][0] = value

    def field(self, register: Register, name: str) -> int:
        """One field of a register."""
        found, lsb = next(pair for pair in register.positions() if pair[0].name == name)
        return self[register.name] >> lsb & ((1 << found.bits) - 1)

    def read(self, offset: int) -> int:
        """32 bits; 0 where there is no register.

        Raises:
            UsageError: the offset is no multiple of 4.
        """
        register, index, shift = self._place(offset)
        if register is None or register.access is Access.PULSE:
            return 0
        return self.values[register.name][index] >> shift & 0xFFFFFFFF

    def write(self, offset: int, value: int) -> None:
        """32 bits, of which those stay that can be written.

        Raises:
            UsageError: the offset is no multiple of 4, or the value has more bits.
        """
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        register, index, shift = self._place(offset)
        if register is None:
            return
        held = self.values[register.name]
        given = value << shift & register.mask
        if register.access is Access.READ_WRITE:
            held[index] = (held[index] & ~(0xFFFFFFFF << shift)) | given
        elif register.access is Access.WRITE_ONE_TO_CLEAR:
            held[index] &= ~given
        elif register.access is Access.PULSE:
            for field, lsb in register.positions():
                if given >> lsb & 1:
                    self._pulsed(field.name)

    def _place(self, offset: int) -> tuple[Register | None, int, int]:
        if offset < 0 or offset % 4 or offset >= 1 << 32:
            raise UsageError(f"a register's offset must be a multiple of 4, not {offset:#x}")
        return self._words.get(offset, (None, 0, 0))
