"""Programs as text for people: number, opcode, relevant fields, bytes, and name of each instruction."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.instructions import Base, Destination, Instruction, Opcode, Sink, Source, When

__all__ = ["describe", "lines"]

# Enumerations of the fields whose values have names.
_NAMES: dict[str, type[IntEnum]] = {
    "destination": Destination,
    "base": Base,
    "source": Source,
    "sink": Sink,
    "when": When,
}
# Fields of one bit.
_FLAGS = (
    *("wait", "normed", "fresh", "int8", "pair", "rows", "wide", "more", "onward", "rotate", "relu2", "ring"),
    *("norm_heads", "norm_rows", "tap", "tap_norm", "tied"),
)


def describe(program: Program, index: int) -> dict[str, Any]:
    """Return an instruction as data: index, opcode, name, bytes, and the fields that are not zero."""
    instruction = program.instructions[index]
    return {
        "index": index,
        "opcode": instruction.opcode.name,
        "name": program.names[index],
        "bytes": instruction["beats"] * program.config.beat_bytes if instruction.opcode == Opcode.READ else 0,
        "fields": {name: _value(name, value) for name, value in _fields(instruction).items()},
    }


def lines(program: Program, first: int = 0, count: int | None = None) -> Iterator[str]:
    """Yield one line for each of ``count`` instructions from ``first`` on."""
    end = len(program.instructions) if count is None else min(first + count, len(program.instructions))
    for index in range(first, end):
        shown_ = describe(program, index)
        words = [_word(name, value) for name, value in shown_["fields"].items()]
        size = f" {shown_['bytes']:,} bytes" if shown_["bytes"] else ""
        yield f"{index:5}  {shown_['opcode']:<7}{' '.join(words)}{size}  ; {shown_['name']}"


def _fields(instruction: Instruction) -> dict[str, int]:
    """Return the fields that are not zero; a READ always has its place and destination, a MATRIX its sink."""
    shown = {Opcode.READ: ("destination", "base", "start", "beats"), Opcode.MATRIX: ("sink",)}
    always = (*shown.get(instruction.opcode, ()), *(("source",) if instruction.opcode == Opcode.VECTOR else ()))
    shown_ = {name: instruction[name] for name in always}
    return shown_ | {name: value for name, value in instruction.fields.items() if value}


def _value(name: str, value: int) -> int | str:
    kind = _NAMES.get(name)
    return kind(value).name if kind is not None and value in set(kind) else value


def _word(name: str, value: int | str) -> str:
    if name in _FLAGS:
        return name
    return str(value) if isinstance(value, str) else f"{name}={value}"
