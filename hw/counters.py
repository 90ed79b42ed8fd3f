"""Where the cycles went: beats, stalls by cause, cycles of each descriptor."""

from typing import Any

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw import fifo
from edgedec.hw.accelerator_registers import COUNTS
from edgedec.hw.pipeline import check
from edgedec.hw.resources import Resources

__all__ = ["Counters", "estimate"]


class Counters(Component):
    """Counts while a program runs; a latch copies all counts in one cycle, so that they belong together.

    Parameters:
        width: of the counts in bits, 8 to 64; they wrap.
        descriptors: whose cycles are kept, 2 to 65536, from the first one since the last clear.

    Members:
        running: In(1). Nothing is counted otherwise.
        beat: In(1). A beat of the read stream was taken.
        starved: In(1). A reader waits for a beat.
        blocked: In(1). A result waits for the write port.
        dependency: In(1). A beat is there, and waits for an earlier result.
        descriptor_done: In(1). A descriptor ends in this cycle.
        clear: In(1). All counts are zero from the next cycle on; the latched ones stay.
        latch: In(1).
        cycles, beats, ...: named in ``COUNTS`` with ``_latched`` behind; Out(width).
        select: In. Number of a descriptor.
        descriptor_cycles: Out(32). What the selected descriptor took, its last cycle included, at most 2**32 - 1. Of one
            that has not ended since the last clear: anything.

    Latency: 2 cycles from an event to a latched count (1 to count, 1 to latch); 1 from ``select`` to ``descriptor_cycles``.
    Source: derived here.
    """

    def __init__(self, *, width: int = 48, descriptors: int = 2048) -> None:
        check("width", width, 8, 64)
        check("descriptors", descriptors, 2, 1 << 16)
        self._width, self._descriptors = width, descriptors
        super().__init__(
            {
                "running": In(1),
                **{event: In(1) for event in ("beat", "starved", "blocked", "dependency", "descriptor_done")},
                "clear": In(1),
                "latch": In(1),
                **{f"{name}_latched": Out(width) for name in COUNTS},
                "select": In(range(descriptors)),
                "descriptor_cycles": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        events = (1, self.beat, self.starved, self.blocked, self.dependency, self.descriptor_done)
        for name, event in zip(COUNTS, events, strict=True):
            count, latched = Signal(self._width, name=name), getattr(self, f"{name}_latched")
            with m.If(self.clear):
                m.d.sync += count.eq(0)
            with m.Elif(self.running):
                m.d.sync += count.eq(count + event)
            with m.If(self.latch):
                m.d.sync += latched.eq(count)
        self._count_descriptors(m)
        return m

    def _count_descriptors(self, m: Module) -> None:
        m.submodules.memory = memory = Memory(shape=unsigned(32), depth=self._descriptors, init=[])
        write, read = memory.write_port(), memory.read_port()
        cycles, number = Signal(32, init=1), Signal(range(self._descriptors + 1))
        ended = Signal()
        m.d.comb += [
            ended.eq(self.running & self.descriptor_done & ~self.clear),
            write.addr.eq(number),
            write.data.eq(cycles),
            write.en.eq(ended & (number != self._descriptors)),
            read.addr.eq(self.select),
            self.descriptor_cycles.eq(read.data),
        ]
        with m.If(self.clear | ended):
            m.d.sync += cycles.eq(1)
        with m.Elif(self.running & ~cycles.all()):
            m.d.sync += cycles.eq(cycles + 1)
        with m.If(self.clear):
            m.d.sync += number.eq(0)
        with m.Elif(write.en):
            m.d.sync += number.eq(number + 1)


def estimate(*, width: int = 48, descriptors: int = 2048) -> Resources:
    """Of one Counters. A counter's adder needs no LUT of its own in front of the carry chain."""
    address = (descriptors - 1).bit_length()
    memory = fifo.estimate(width=32, depth=descriptors, style="block").bram18
    return Resources(lut=address + 15, ff=2 * len(COUNTS) * width + 32 + address + 1, bram18=memory)
