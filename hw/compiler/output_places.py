"""Places in the output buffer: results, rows of logits after them, and tapped values after these, each from a page on.

A tapped vector has an item for each column of its blocks, int32 of all slots, as a row of logits has for each id. A norm has
as many, and in the next page the root of each slot as {root u16, its exponent s16, 0 s32}.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgedec.errors import BundleError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction, Opcode
from edgedec.hw.isa.output_layout import RESULT_BYTES, ROWS_OFFSET, TAP_PAGE_BYTES

__all__ = ["TapPlaces", "first_tap_page", "item_row_bytes", "output_end", "rows_end", "tap_places"]


@dataclass(frozen=True, kw_only=True)
class TapPlaces:
    """Bytes from the start of the buffer to what a ``VECTOR`` writes there.

    Members:
        vector, norm, roots: the vector, the product of its norm, and the roots; None: not written.
        begin, end: the first and the last of all these, at the beginning of a page.
        written: bytes that are written there, without the ends of pages.
    """

    vector: int | None
    norm: int | None
    roots: int | None
    begin: int
    end: int
    written: int


def item_row_bytes(config: AcceleratorConfig) -> int:
    """Return the bytes of an item of all slots: an id's logits, or a column of a tapped vector."""
    return 4 << (config.slots - 1).bit_length()


def rows_end(config: AcceleratorConfig, vocab: int) -> int:
    """Return the bytes from the start of the buffer to the end of the rows of logits."""
    return ROWS_OFFSET + vocab * item_row_bytes(config)


def first_tap_page(config: AcceleratorConfig, vocab: int) -> int:
    """Return the first page after the rows of logits."""
    return _pages(rows_end(config, vocab))


def tap_places(config: AcceleratorConfig, instruction: Instruction) -> TapPlaces | None:
    """Return the places of what an instruction writes beside results; None if it writes nothing.

    Raises:
        BundleError: it writes a value, and the accelerator has no unit that does; or a norm, and there is none.
    """
    if instruction.opcode != Opcode.VECTOR or not (instruction["tap"] or instruction["tap_norm"]):
        return None
    if not config.taps or instruction["tap_norm"] > instruction["normed"]:
        what = "the product of a norm" if instruction["tap_norm"] else "a vector"
        raise BundleError(f"an instruction writes {what}, which its accelerator does not: compile it again")
    begin = instruction["tap_page"] * TAP_PAGE_BYTES
    columns_bytes, roots_bytes = (
        instruction["blocks"] * config.beat_bytes * item_row_bytes(config),
        RESULT_BYTES * config.slots,
    )
    size = _pages(columns_bytes) * TAP_PAGE_BYTES
    norm = begin + size * instruction["tap"]
    roots = norm + size
    whole = roots + _pages(roots_bytes) * TAP_PAGE_BYTES
    return TapPlaces(
        vector=begin if instruction["tap"] else None,
        norm=norm if instruction["tap_norm"] else None,
        roots=roots if instruction["tap_norm"] else None,
        begin=begin,
        end=whole if instruction["tap_norm"] else norm,
        written=columns_bytes * instruction["tap"] + (columns_bytes + roots_bytes) * instruction["tap_norm"],
    )


def output_end(config: AcceleratorConfig, vocab: int, instructions: Iterable[Instruction]) -> int:
    """Return the bytes of the output buffer of a program."""
    ends = (places.end for one in instructions if (places := tap_places(config, one)) is not None)
    return max(ends, default=rows_end(config, vocab))


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // TAP_PAGE_BYTES)
