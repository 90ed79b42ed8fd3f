"""An accelerator's registers by name, over the words that a device has."""

from __future__ import annotations

from edgedec.device import Device
from edgedec.errors import UsageError
from edgedec.hw.accelerator_registers import REGISTER_MAP
from edgedec.hw.register_map import Access, Register

__all__ = ["Registers"]


class Registers:
    """Registers and fields of edgedec.hw.accelerator_registers. Every method raises what the device raises, and

    Raises:
        UsageError: there is no such register or field, it cannot be written, or the value does not fit.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def read(self, name: str, index: int = 0) -> int:
        """A whole register; ``index``: of several that are alike."""
        register, offset = _place(name, index)
        words = range(register.bytes // 4)
        return sum(self._device.read_register(offset + 4 * word) << (32 * word) for word in words)

    def read_field(self, name: str, field: str) -> int:
        value = self.read(name)
        for found, lsb in REGISTER_MAP[name].positions():
            if found.name == field:
                return value >> lsb & ((1 << found.bits) - 1)
        raise UsageError(f"register {name} has no field {field!r}")

    def set_fields(self, name: str) -> set[str]:
        """Names of the one-bit fields that read 1."""
        value = self.read(name)
        return {field.name for field, lsb in REGISTER_MAP[name].positions() if value >> lsb & 1}

    def write(self, name: str, value: int, index: int = 0) -> None:
        """A whole register."""
        register, offset = _place(name, index)
        if not 0 <= value <= register.mask:
            raise UsageError(f"register {name} must be 0 to {register.mask:#x}, not {value:#x}")
        for word in range(register.bytes // 4):
            self._device.write_register(offset + 4 * word, value >> (32 * word) & 0xFFFFFFFF)

    def write_fields(self, name: str, **fields: int) -> None:
        """A register of these fields; the others become 0."""
        self.write(name, _composed(REGISTER_MAP[name], fields))


def _place(name: str, index: int) -> tuple[Register, int]:
    register = REGISTER_MAP[name]
    if not 0 <= index < register.count:
        raise UsageError(f"there are {register.count} registers {name}, and no number {index}")
    return register, register.offset + index * register.bytes


def _composed(register: Register, fields: dict[str, int]) -> int:
    known = {field.name: (field.bits, lsb) for field, lsb in register.positions()}
    value = 0
    for name, given in fields.items():
        if name not in known or register.access in (Access.CONSTANT, Access.READ_ONLY):
            raise UsageError(f"register {register.name} has no field {name!r} to write")
        bits, lsb = known[name]
        if not 0 <= int(given) < 1 << bits:
            raise UsageError(f"{name} of register {register.name} must be 0 to {(1 << bits) - 1}, not {given}")
        value |= int(given) << lsb
    return value
