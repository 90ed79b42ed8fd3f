"""The place in a design that holds the hash of the design's own RTLIL."""

from typing import Any

from amaranth.hdl import Module, Signal

__all__ = ["STAMP", "STAMP_BITS", "stamp"]

STAMP = "rtlil_hash"  # attribute of the register; ``edgedec.hw.emit.stamping`` writes its initial value
STAMP_BITS = 64


def stamp(m: Module) -> Any:
    """Return a register that always holds its initial value: 0, until ``to_rtlil`` writes the hash into its text.

    Synthesis makes constants of it. A constant from the beginning would be scattered over the text before it is known.
    """
    value = Signal(STAMP_BITS, name=STAMP, reset_less=True, attrs={STAMP: 1})
    m.d.sync += value.eq(value)
    return value
