"""Checks of an instruction before it is issued: the units do not check their commands, and could wait for ever."""

from typing import Any

from amaranth.hdl import Cat, Const, Value
from amaranth.lib import data

from edgedec.hw.blocks.instruction_layouts import layout
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import Base, Destination, Opcode, Sink, When

__all__ = ["out_of_range", "over", "violations"]


def out_of_range(config: AcceleratorConfig, bits: Value) -> Value:
    """Return whether ``bits``, the 256 bits of an instruction, are invalid for the accelerator of ``config``.

    They are if the opcode, ``when``, destination, base or sink does not exist, or the destination is PROGRAM; if words,
    elements, blocks, heads or the heads of a group are 0, or exceed the configuration; if a word has more spare rows
    than rows; if a ternary matrix has no planes; and if the configuration lacks group mantissas, or int8, that the
    matrix needs, or rings.
    """
    invalid: Value = Cat(applies & Cat(conditions).any() for applies, conditions in violations(config, bits)).any()
    return invalid


def violations(config: AcceleratorConfig, bits: Value) -> list[tuple[Value, list[Value]]]:
    """Return the conditions of which any makes an instruction invalid if its opcode is the one to which they apply.

    Each condition compares one field.
    """
    view = {opcode: data.View(layout(opcode), bits) for opcode in Opcode}
    opcode = view[Opcode.STOP].opcode
    cases = {
        Opcode.READ: _read(view[Opcode.READ]),
        Opcode.CACHE: [*_grouped(view[Opcode.CACHE], config), *_rings(view[Opcode.CACHE], config)],
        Opcode.COPY: [
            *_none_or_over(view[Opcode.COPY].heads, config.kv_heads),
            *_rings(view[Opcode.COPY], config),
        ],
        Opcode.LOAD: _none_or_over(view[Opcode.LOAD].elements, config.hidden),
        Opcode.VECTOR: _none_or_over(view[Opcode.VECTOR].blocks, config.depth),
        Opcode.MATRIX: _matrix(view[Opcode.MATRIX], config),
        Opcode.ATTEND: [
            *_grouped(view[Opcode.ATTEND], config),
            *_none_or_over(view[Opcode.ATTEND].kv_heads, config.kv_heads),
            *_rings(view[Opcode.ATTEND], config),
        ],
    }
    return [
        (Const(1), [opcode > max(Opcode), view[Opcode.STOP].when > max(When)]),
        *((opcode == number, conditions) for number, conditions in cases.items()),
    ]


def over(count: Value, most: int) -> Value:
    """Return ``count > most`` without a carry chain, before which synthesis would put other logic."""
    bits = range(len(count))
    if most >= (1 << len(count)) - 1:
        return Const(0)
    higher = (Cat(count[at], *(count[up] for up in bits[at:] if most >> up & 1)) for at in bits if not most >> at & 1)
    found: Value = Cat(one.all() for one in higher).any()
    return found


def _none_or_over(count: Value, most: int) -> list[Value]:
    return [count == 0, over(count, most)]


def _grouped(view: Any, config: AcceleratorConfig) -> list[Value]:
    return [*_none_or_over(view.heads, config.heads), view.group == 0]


def _rings(view: Any, config: AcceleratorConfig) -> list[Value]:
    return [] if config.ring else [view.ring]


def _read(view: Any) -> list[Value]:
    return [
        view.destination > max(Destination),
        view.destination == Destination.PROGRAM,
        view.base > max(Base),
    ]


def _matrix(view: Any, config: AcceleratorConfig) -> list[Value]:
    most_group_blocks = config.depth if config.scaling else 0
    return [
        view.words == 0,
        view.spare >= ROWS,
        *_none_or_over(view.blocks, config.depth),
        view.sink > max(Sink),
        view.int8 & (not config.per_row),
        ~view.int8 & (view.planes == 0),
        ~view.int8 & over(view.group_blocks, most_group_blocks),
    ]
