"""Performance counters: beats, stalls by cause, and the cycles of each descriptor."""

from typing import Any

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.ram_cost import block_rams
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.isa.registers import COUNTS

__all__ = ["CounterBlock"]

_EVENTS = ("beat", "starved", "blocked", "dependency", "descriptor_done")  # counted events, in the order of COUNTS[1:]


class CounterBlock(CostedComponent):
    """Count events while a program runs; a latch copies all counts in one cycle, so that they are consistent.

    Parameters:
        width: bits of a count, 8 to 64; counts wrap.
        descriptors: number of descriptors whose cycles are kept, 2 to 65536, from the first one after a clear.

    Members:
        running: In(1). A program runs; nothing is counted otherwise.
        beat: In(1). A beat of the read stream is taken.
        starved: In(1). A reader waits for a beat.
        blocked: In(1). A result waits for the write port.
        dependency: In(1). A valid beat waits for an earlier result.
        descriptor_done: In(1). A descriptor ends in this cycle.
        clear: In(1). Set all counts to zero, the latched ones excepted.
        latch: In(1). Copy all counts.
        cycles_latched, beats_latched, ...: Out(width). The latched counts, named as in ``COUNTS``.
        select: In. Number of a descriptor.
        descriptor_cycles: Out(32). Cycles of the selected descriptor, its last one included, at most 2**32 - 1. The
            value is undefined for a descriptor that has not ended since the last clear.

    Latency: 3 cycles from an event to a latched count, because events arrive late in a cycle (1 to sample, 1 to count,
        1 to latch); 2 from ``select`` to ``descriptor_cycles``.
    Source: derived here.
    """

    def __init__(self, *, width: int = 48, descriptors: int = 2048) -> None:
        check("width", width, 8, 64)
        check("descriptors", descriptors, 2, 1 << 16)
        self._width, self._descriptors = width, descriptors
        super().__init__(
            lambda: {
                "running": In(1),
                **dict.fromkeys(_EVENTS, In(1)),
                "clear": In(1),
                "latch": In(1),
                **{f"{name}_latched": Out(width) for name in COUNTS},
                "select": In(range(descriptors)),
                "descriptor_cycles": Out(32),
            }
        )

    @property
    def resources(self) -> Resources:
        width, descriptors = self._width, self._descriptors
        address = (descriptors - 1).bit_length()
        # The adder of a counter needs no LUT of its own before the carry chain.
        flip_flops = 2 * len(COUNTS) * width + 73 + address
        return Resources(lut=address + 15, ff=flip_flops, bram18=block_rams(32, descriptors))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sampled = {name: Signal(name=f"{name}_seen") for name in (*_EVENTS, "running", "clear", "latch")}
        m.d.sync += [register.eq(getattr(self, name)) for name, register in sampled.items()]
        for name, event in zip(COUNTS, (1, *(sampled[event] for event in _EVENTS)), strict=True):
            count = Signal(self._width, name=name)
            latched = getattr(self, f"{name}_latched")
            with m.If(sampled["clear"]):
                m.d.sync += count.eq(0)
            with m.Elif(sampled["running"]):
                m.d.sync += count.eq(count + event)
            with m.If(sampled["latch"]):
                m.d.sync += latched.eq(count)
        self._count_descriptors(m, sampled)
        return m

    def _count_descriptors(self, m: Module, sampled: dict[str, Signal]) -> None:
        m.submodules.memory = memory = Memory(shape=unsigned(32), depth=self._descriptors, init=[])
        write = memory.write_port()
        read = memory.read_port()
        cycles = Signal(32, init=1)
        number = Signal(range(self._descriptors + 1))
        ended = Signal()
        m.d.comb += [
            ended.eq(sampled["running"] & sampled["descriptor_done"] & ~sampled["clear"]),
            write.addr.eq(number),
            write.data.eq(cycles),
            write.en.eq(ended & (number != self._descriptors)),
            read.addr.eq(self.select),
        ]
        m.d.sync += self.descriptor_cycles.eq(read.data)
        with m.If(sampled["clear"] | ended):
            m.d.sync += cycles.eq(1)
        with m.Elif(sampled["running"] & ~cycles.all()):
            m.d.sync += cycles.eq(cycles + 1)
        with m.If(sampled["clear"]):
            m.d.sync += number.eq(0)
        with m.Elif(write.en):
            m.d.sync += number.eq(number + 1)
