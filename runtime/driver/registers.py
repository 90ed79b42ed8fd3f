"""Access to an accelerator's registers and fields by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgedec.device import Device
from edgedec.device_steps import ExpectRegister, ReadRegister, WriteRegister, perform
from edgedec.errors import UsageError
from edgedec.hw.isa.register_map import Access, Register
from edgedec.hw.isa.registers import REGISTER_MAP

__all__ = ["Registers"]


class _Layout:
    """The layout of a register, computed once: a pass writes twenty registers, and a board's processor is slow."""

    def __init__(self, register: Register) -> None:
        self.name, self.offset, self.count, self.mask = register.name, register.offset, register.count, register.mask
        self.bytes = register.bytes
        self.shifts = tuple(range(0, 8 * self.bytes, 32))  # shift of each of its words, in bits
        self.fields = {field.name: ((1 << field.bits) - 1, lsb) for field, lsb in register.positions()}
        self.is_written = register.access not in (Access.CONSTANT, Access.READ_ONLY)

    def place(self, index: int) -> int:
        """Return the offset of element ``index`` of an array of registers."""
        if not 0 <= index < self.count:
            raise UsageError(f"there are {self.count} registers {self.name}, and no number {index}")
        return self.offset + index * self.bytes


_LAYOUTS = {register.name: _Layout(register) for register in REGISTER_MAP.registers}


class Registers:
    """The registers and fields of ``edgedec.hw.isa.registers`` on a device.

    Every method raises UsageError if the register or field does not exist, cannot be written, or if the value does not fit,
    and passes errors of the device through.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def read(self, name: str, index: int = 0) -> int:
        """Return a whole register. ``index`` selects an element of an array of registers."""
        layout = _layout(name)
        offset, value = layout.place(index), 0
        for shift in layout.shifts:
            value |= self._device.read_register(offset + shift // 8) << shift
        return value

    def read_field(self, name: str, field: str) -> int:
        """Return one field of a register."""
        value, fields = self.read(name), _layout(name).fields
        if field not in fields:
            raise UsageError(f"register {name} has no field {field!r}")
        most, lsb = fields[field]
        return value >> lsb & most

    def set_fields(self, name: str, value: int | None = None) -> set[str]:
        """Return the names of the fields whose lowest bit is 1, of a value that was read before, or read now."""
        value = self.read(name) if value is None else value
        return {field for field, (_, lsb) in _layout(name).fields.items() if value >> lsb & 1}

    def write(self, name: str, value: int, index: int = 0) -> None:
        """Write a whole register."""
        perform(self._device, self.writes(name, value, index))

    def write_fields(self, name: str, **fields: int) -> None:
        """Write a register with these fields; its other fields become 0."""
        perform(self._device, self.writes_of(name, **fields))

    def writes(self, name: str, value: int, index: int = 0) -> list[WriteRegister]:
        """Return the steps that write a whole register."""
        return [WriteRegister(offset, word) for offset, word in self._words(name, value, index)]

    def expects(self, name: str, value: int) -> list[ExpectRegister]:
        """Return the steps that expect a value of a whole register."""
        return [ExpectRegister(offset, word) for offset, word in self._words(name, value, 0)]

    def reads(self, *names: str) -> list[ReadRegister]:
        """Return the steps that read whole registers, whose results ``values`` takes."""
        return [ReadRegister(layout.offset + shift // 8) for layout in map(_layout, names) for shift in layout.shifts]

    def values(self, found: Sequence[int], *names: str) -> list[int]:
        """Return the registers from the results of ``reads`` of the same names."""
        words = iter(found)
        return [sum(next(words) << shift for shift in layout.shifts) for layout in map(_layout, names)]

    def writes_of(self, name: str, **fields: int) -> list[WriteRegister]:
        """Return the steps that write a register with these fields; its other fields become 0."""
        layout, word = _layout(name), 0
        for field, value in fields.items():
            if field not in layout.fields or not layout.is_written:
                raise UsageError(f"register {name} has no field {field!r} to write")
            most, lsb = layout.fields[field]
            if not 0 <= int(value) <= most:
                raise UsageError(f"{field} of register {name} must be 0 to {most}, not {value}")
            word |= int(value) << lsb
        return self.writes(name, word)

    def _words(self, name: str, value: int, index: int) -> Iterator[tuple[int, int]]:
        """Yield offset and value of each word of a register."""
        layout = _layout(name)
        offset = layout.place(index)
        if not 0 <= value <= layout.mask:
            raise UsageError(f"register {name} must be 0 to {layout.mask:#x}, not {value:#x}")
        for shift in layout.shifts:
            yield offset + shift // 8, value >> shift & 0xFFFFFFFF


def _layout(name: str) -> _Layout:
    if name not in _LAYOUTS:
        raise UsageError(f"there is no register {name!r}; known: {', '.join(_LAYOUTS)}")
    return _LAYOUTS[name]
