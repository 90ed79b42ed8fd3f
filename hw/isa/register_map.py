"""The classes of a register map, from which hardware, Python constants, SystemRDL and HTML follow.

All offsets are in bytes and the same for every configuration. Registers are 32 or 64 bits; a 64-bit one is two words, the
low one first. Fields lie side by side from bit 0. Words and bits outside the map read as zero and ignore writes: a bus
error would stop the whole processor of a board.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_extra

__all__ = ["SLOTS", "VALUE", "Access", "Field", "Register", "RegisterMap"]

VALUE = "value"  # name of the only field of a register that is one number
SLOTS = 8  # positions and rows of the mask; a configuration with fewer slots ignores the rest


class Access(Enum):
    """The accesses of software, and the port of the hardware that each implies."""

    CONSTANT = "constant"  # reads the reset value; no port
    READ_ONLY = "read only"  # the port is an input
    READ_WRITE = "read and write"  # the port is an output
    WRITE_ONE_TO_CLEAR = "write one to clear"  # the port is an output; the input beside it, _set, sets the bits
    PULSE = "pulse"  # writing 1 gives one cycle; reads zero; the port is an output


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a register.

    Members:
        name: an identifier.
        bits: width in bits, 1 to 64.
        description: one sentence.
        reset: value after reset.

    Raises:
        UsageError: a member is out of range.
    """

    name: str
    bits: int
    description: str
    reset: int = 0

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise UsageError(f"a field's name must be an identifier, not {self.name!r}")
        if not 1 <= self.bits <= 64:
            raise UsageError(f"field {self.name}: bits must be 1 to 64, not {self.bits!r}")
        if not 0 <= self.reset < 1 << self.bits:
            raise UsageError(f"field {self.name}: reset must fit {self.bits} bits, not {self.reset:#x}")


@dataclass(frozen=True, kw_only=True)
class Register:
    """A register, or several equal ones.

    Members:
        name: an identifier.
        offset: byte offset, a multiple of the register's size.
        access: access of all its fields.
        fields: fields in ascending order, from bit 0 on.
        description: one sentence.
        count: number of equal registers, one after the other.
        enabled_by: for a write-one-to-clear register, name of the register whose bits enable its interrupts.

    Raises:
        UsageError: a member is out of range.
    """

    name: str
    offset: int
    access: Access
    fields: tuple[Field, ...]
    description: str
    count: int = 1
    enabled_by: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise UsageError(f"a register's name must be an identifier, not {self.name!r}")
        names = [field.name for field in self.fields]
        if not names or len(set(names)) != len(names):
            raise UsageError(f"register {self.name}: fields must be some, with different names, not {names}")
        if sum(field.bits for field in self.fields) > 64:
            raise UsageError(f"register {self.name}: its fields are wider than 64 bits; make two registers of it")
        if self.offset < 0 or self.offset % self.bytes:
            raise UsageError(f"register {self.name}: offset must be a multiple of {self.bytes}, not {self.offset:#x}")
        if self.count < 1:
            raise UsageError(f"register {self.name}: count must be positive, not {self.count!r}")
        if self.access is Access.PULSE and any(field.bits != 1 or field.reset for field in self.fields):
            raise UsageError(f"register {self.name}: a pulse must be one bit that is 0 at reset")

    @property
    def bytes(self) -> int:
        """Bytes of one of the ``count`` registers, 4 or 8."""
        return 4 if sum(field.bits for field in self.fields) <= 32 else 8

    @property
    def reset(self) -> int:
        return sum(field.reset << lsb for field, lsb in self.positions())

    @property
    def mask(self) -> int:
        """Mask with a one for every bit of a field."""
        return (1 << sum(field.bits for field in self.fields)) - 1

    def positions(self) -> Iterator[tuple[Field, int]]:
        """Yield each field and the position of its lowest bit."""
        lsb = 0
        for field in self.fields:
            yield field, lsb
            lsb += field.bits

    def port(self, field: Field) -> str:
        """Return the name of a field's hardware port."""
        return self.name if field.name == VALUE else f"{self.name}_{field.name}"


@dataclass(frozen=True, kw_only=True)
class RegisterMap:
    """A table of registers.

    Members:
        name: an identifier.
        registers: registers in ascending order of their offsets.
        description: one sentence.

    Raises:
        UsageError: registers overlap or share a name, or an ``enabled_by`` does not match.
    """

    name: str
    registers: tuple[Register, ...]
    description: str

    def __post_init__(self) -> None:
        end = 0
        for register in self.registers:
            if register.offset < end:
                raise UsageError(f"register {register.name} at {register.offset:#x} overlaps the one before it")
            end = register.offset + register.bytes * register.count
        names = [register.name for register in self.registers]
        if len(set(names)) != len(names):
            raise UsageError(f"registers must have different names, not {sorted(names)}")
        for register in self.registers:
            if register.enabled_by and self[register.enabled_by].mask != register.mask:
                raise UsageError(f"register {register.name} and its {register.enabled_by} must have the same bits")

    def __getitem__(self, name: str) -> Register:
        for register in self.registers:
            if register.name == name:
                return register
        known = ", ".join(register.name for register in self.registers)
        raise UsageError(f"there is no register {name!r}; there are {known}")

    def offsets(self) -> dict[str, int]:
        """Return the byte offset of each register, of the first one if there are several."""
        return {register.name: register.offset for register in self.registers}

    @property
    def bytes(self) -> int:
        """Bytes from offset 0 to the end of the last register."""
        return max((register.offset + register.bytes * register.count for register in self.registers), default=0)

    def systemrdl(self) -> str:
        """Return the map as SystemRDL 2.0."""
        lines = [
            f"addrmap {self.name} {{",
            f"    name = {_quoted(self.name)};",
            f"    desc = {_quoted(self.description)};",
            "    default accesswidth = 32;",
            "    addressing = compact;",
        ]
        for register in self.registers:
            lines += _systemrdl_register(register)
        return "\n".join([*lines, "};", ""])

    def html(self, folder: Path) -> None:
        """Write pages that describe the map into ``folder``, with PeakRDL.

        Raises:
            ToolError: systemrdl-compiler or peakrdl-html is not installed.
        """
        try:
            from peakrdl_html import HTMLExporter
            from systemrdl.compiler import RDLCompiler
        except ImportError as error:
            raise ToolError(f"the register map's pages need PeakRDL ({error}); run: {install_extra('hdl')}") from error
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / f"{self.name}.rdl"
        source.write_text(self.systemrdl(), "utf-8")
        compiler = RDLCompiler()
        compiler.compile_file(str(source))
        HTMLExporter().export(compiler.elaborate(self.name), str(folder))


_PROPERTIES = {  # SystemRDL properties of each access
    Access.CONSTANT: "sw = r; hw = na;",
    Access.READ_ONLY: "sw = r; hw = w;",
    Access.READ_WRITE: "sw = rw; hw = r;",
    Access.WRITE_ONE_TO_CLEAR: "sw = rw; onwrite = woclr; hw = r; hwset;",
    Access.PULSE: "sw = w; hw = r; singlepulse;",
}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _systemrdl_register(register: Register) -> Iterator[str]:
    yield "    reg {"
    yield f"        name = {_quoted(register.name)};"
    yield f"        desc = {_quoted(register.description)};"
    yield f"        regwidth = {8 * register.bytes};"
    for field, lsb in register.positions():
        reset = "" if register.access is Access.READ_ONLY else f" = {field.bits}'h{field.reset:x}"
        properties = f"desc = {_quoted(field.description)}; {_PROPERTIES[register.access]}"
        yield f"        field {{ {properties} }} {field.name}[{lsb + field.bits - 1}:{lsb}]{reset};"
    array = f"[{register.count}]" if register.count > 1 else ""
    step = f" += {register.bytes:#x}" if register.count > 1 else ""
    yield f"    }} {register.name}{array} @ {register.offset:#x}{step};"
