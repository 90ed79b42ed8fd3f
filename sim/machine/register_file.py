"""A register map in Python. A host reads and writes words, and registers behave as the hardware's do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgedec.errors import UsageError
from edgedec.hw.isa.register_map import Access, Register, RegisterMap

__all__ = ["RegisterFile"]


class RegisterFile:
    """The registers of a map and their values.

    Args:
        register_map: the registers.
        pulsed: called with the names of the fields of a PULSE register to which a host writes 1, in the order of the fields.

    Members:
        values: values by register name, one number for each of ``count``; read-only registers are set here.
    """

    def __init__(self, register_map: RegisterMap, pulsed: Callable[[Sequence[str]], None]) -> None:
        self._pulsed = pulsed
        self.values = {register.name: [register.reset] * register.count for register in register_map.registers}
        self._words = {
            register.offset + index * register.bytes + 4 * word: (register, index, 32 * word)
            for register in register_map.registers
            for index in range(register.count)
            for word in range(register.bytes // 4)
        }

    def __getitem__(self, name: str) -> int:
        return self.values[name][0]

    def __setitem__(self, name: str, value: int) -> None:
        self.values[name][0] = value

    def field(self, register: Register, name: str) -> int:
        """Return the value of one field of a register."""
        field, lsb = next(pair for pair in register.positions() if pair[0].name == name)
        return self[register.name] >> lsb & ((1 << field.bits) - 1)

    def read(self, offset: int) -> int:
        """Return 32 bits; 0 if there is no register at the offset.

        Raises:
            UsageError: the offset is not a multiple of 4.
        """
        register, index, shift = self._place(offset)
        if register is None or register.access is Access.PULSE:
            return 0
        return self.values[register.name][index] >> shift & 0xFFFFFFFF

    def write(self, offset: int, value: int) -> None:
        """Write 32 bits. Only the writable bits of the register change.

        Raises:
            UsageError: the offset is not a multiple of 4, or the value has more than 32 bits.
        """
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        register, index, shift = self._place(offset)
        if register is None:
            return
        held = self.values[register.name]
        bits = value << shift & register.mask
        if register.access is Access.READ_WRITE:
            held[index] = (held[index] & ~(0xFFFFFFFF << shift)) | bits
        elif register.access is Access.WRITE_ONE_TO_CLEAR:
            held[index] &= ~bits
        elif register.access is Access.PULSE:
            self._pulsed([field.name for field, lsb in register.positions() if bits >> lsb & 1])

    def _place(self, offset: int) -> tuple[Register | None, int, int]:
        if offset < 0 or offset % 4 or offset >= 1 << 32:
            raise UsageError(f"a register's offset must be a multiple of 4, not {offset:#x}")
        return self._words.get(offset, (None, 0, 0))
