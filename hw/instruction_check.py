"""What an instruction must not ask for: the units take what they get, and would wait for ever."""

from typing import Any

from amaranth.hdl import Cat, Mux, Value
from amaranth.lib import data

from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.instruction_layouts import layout
from edgedec.hw.instructions import Base, Destination, Opcode, Sink, When

__all__ = ["out_of_range"]


def out_of_range(config: AcceleratorConfig, bits: Value) -> Value:
    """Whether the 256 bits are no instruction that the accelerator of ``config`` carries out.

    That is: an opcode, ``when``, destination, base or sink that does not exist, or PROGRAM as a destination; no words;
    no elements, blocks or heads, or more of these than there are; more spare rows than a word can have; a ternary matrix
    without planes; blocks that share mantissas, or int8, where the configuration lacks them; a group of no heads.
    """
    view = {opcode: data.View(layout(opcode), bits) for opcode in Opcode}
    opcode = view[Opcode.STOP].opcode
    cases = {
        Opcode.READ: _read(view[Opcode.READ]),
        Opcode.CACHE: _grouped(view[Opcode.CACHE], config),
        Opcode.COPY: _none_or_over(view[Opcode.COPY].heads, config.kv_heads),
        Opcode.LOAD: _none_or_over(view[Opcode.LOAD].elements, config.hidden),
        Opcode.VECTOR: _none_or_over(view[Opcode.VECTOR].blocks, config.depth),
        Opcode.MATRIX: _matrix(view[Opcode.MATRIX], config),
        Opcode.ATTEND: _grouped(view[Opcode.ATTEND], config)
        | _none_or_over(view[Opcode.ATTEND].kv_heads, config.kv_heads),
    }
    wrong = Cat((opcode == number) & case for number, case in cases.items()).any()
    found: Value = (opcode > max(Opcode)) | (view[Opcode.STOP].when > max(When)) | wrong
    return found


def _none_or_over(count: Value, most: int) -> Value:
    found: Value = (count == 0) | (count > most)
    return found


def _grouped(view: Any, config: AcceleratorConfig) -> Value:
    found: Value = _none_or_over(view.heads, config.heads) | (view.group == 0)
    return found


def _read(view: Any) -> Value:
    found: Value = (
        (view.destination > max(Destination)) | (view.destination == Destination.PROGRAM) | (view.base > max(Base))
    )
    return found


def _matrix(view: Any, config: AcceleratorConfig) -> Value:
    most_group_blocks = config.depth if config.scaling else 0
    ternary = (view.planes == 0) | (view.group_blocks > most_group_blocks)
    found: Value = (
        (view.words == 0)
        | (view.spare >= ROWS)
        | _none_or_over(view.blocks, config.depth)
        | (view.sink > max(Sink))
        | Mux(view.int8, 0 if config.per_row else 1, ternary)
    )
    return found
