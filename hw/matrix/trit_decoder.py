"""Decoding of a byte of ternary weights into five trits."""

from typing import Any

from amaranth.hdl import Module, unsigned
from amaranth.lib import data
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import ROWS

__all__ = ["TritDecoder", "digits_of"]

_BYTES = 3**ROWS  # 243 valid bytes; the others encode no weights
_ZERO = (1,) * ROWS  # digits of five zero trits


def digits_of(byte: int) -> tuple[int, ...]:
    """Return the base-3 digits of ``byte``, lowest power first: each is a trit plus one. 243 and above give zero trits."""
    return tuple(byte // 3**row % 3 for row in range(ROWS)) if byte < _BYTES else _ZERO


class TritDecoder(CostedComponent):
    """Decode ``byte = sum over row of (trit + 1) * 3**row`` with a ROM.

    Simulators and C++ compilers are slow with a 243-way switch instead.

    Members:
        byte: In(8). The encoded weights.
        digits: Out(unsigned(2) [5]). Trit plus one of each row: 0, 1 or 2.
        error: Out(1). The byte is 243 or more; its trits count as zero.

    Latency: 0 cycles, combinational. Throughput: one byte per cycle.
    Source: docs/accelerator.md, "Programs".
    """

    def __init__(self) -> None:
        super().__init__(lambda: {"byte": In(8), "digits": Out(data.ArrayLayout(unsigned(2), ROWS)), "error": Out(1)})

    @property
    def resources(self) -> Resources:
        return Resources(lut=51)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        entry = data.StructLayout({"digits": self.digits.shape(), "error": 1})
        init = [{"digits": digits_of(byte), "error": byte >= _BYTES} for byte in range(256)]
        # With the register after it, yosys would take a block RAM for each byte of a beat on an ECP5.
        m.submodules.rom = rom = Memory(shape=entry, depth=256, init=init, attrs={"romstyle": "logic"})
        read = rom.read_port(domain="comb")
        m.d.comb += [
            read.addr.eq(self.byte),
            self.digits.eq(read.data.digits),
            self.error.eq(read.data.error),
        ]
        return m
