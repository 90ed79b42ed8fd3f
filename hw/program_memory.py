"""The program on the chip: taken in from the read stream, its header looked at, handed out instruction by instruction."""

from typing import Any

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.component import CostedComponent
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.instruction_layouts import header_layout
from edgedec.hw.instructions import INSTRUCTION_BYTES, MAGIC
from edgedec.hw.ram import block_rams
from edgedec.hw.resources import Resources
from edgedec.hw.router import segment
from edgedec.hw.unpacker import Unpacker

__all__ = ["ProgramMemory", "fetched", "index_bits"]

_BITS = 8 * INSTRUCTION_BYTES


def index_bits(config: AcceleratorConfig) -> int:
    """Of an instruction's number, and of that behind the last one."""
    return config.instructions.bit_length()


def fetched(config: AcceleratorConfig) -> data.StructLayout:
    """An instruction with its number. beyond: the program has ended before it, and ``bits`` mean nothing."""
    return data.StructLayout({"bits": unsigned(_BITS), "index": index_bits(config), "beyond": 1})


class ProgramMemory(CostedComponent):
    """Header and instructions.

    Parameters:
        config: its beat_bytes, instructions and hash.

    Members:
        begin: In(1). Forget everything; a program of ``words`` words of 32 bytes comes now.
        words: In. Header and instructions, 1 to config.instructions + 1; held from ``begin`` on.
        beats: In(stream ``segment(beat_bytes)``).
        loaded: Out(1). All words are there; the next three hold from then on.
        foreign: Out(1). The header is none, or its configuration another one.
        cut: Out(1). The header tells of another number of instructions, or of no commit within them.
        commit: Out. Number of the first instruction of a commit.
        walk: In(1). Hand out the instructions from number ``first`` on, once ``loaded``.
        first: In.
        instructions: Out(stream ``fetched(config)``). Behind the last one, one that is ``beyond``, for ever.

    Latency: 3 cycles from the last beat to ``loaded``, one more where a beat holds two words; 3 from ``walk`` to the first
        instruction.
    Throughput: one word per cycle in and out.
    Source: derived here. Block RAM with a register behind it.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        self._unpacker = Unpacker(beat_bytes=config.beat_bytes, item_bytes=INSTRUCTION_BYTES)
        bits = index_bits(config)
        super().__init__(
            lambda: {
                "begin": In(1),
                "words": In(range(config.instructions + 2)),
                "beats": In(stream.Signature(segment(config.beat_bytes))),
                "loaded": Out(1),
                "foreign": Out(1),
                "cut": Out(1),
                "commit": Out(bits),
                "walk": In(1),
                "first": In(bits),
                "instructions": Out(stream.Signature(fetched(config))),
            }
        )

    @property
    def resources(self) -> Resources:
        config = self._config
        memory = Resources(bram18=block_rams(_BITS, config.instructions))
        header = Resources(lut=2 * 22 + 8 + 24, ff=index_bits(config) + 2)
        counters = Resources(lut=5 * index_bits(config), ff=_BITS + 5 * index_bits(config) + 6)
        return self._unpacker.resources + header + counters + memory

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(
            shape=unsigned(_BITS), depth=self._config.instructions, init=[], attrs={"ram_style": "block"}
        )
        self._take(m, memory)
        self._hand_out(m, memory)
        return m

    def _take(self, m: Module, memory: Memory) -> None:
        """Word 0 is the header, word n + 1 instruction n."""
        m.submodules.unpacker = words = self._unpacker
        connect(m, flipped(self.beats), words.beats)
        port, items = memory.write_port(), words.items
        header = data.View(header_layout(), items.payload)
        begun, left = Signal(), Signal(range(self._config.instructions + 2))
        following = Signal.like(left)  # instructions, by the length
        other, beyond = Signal(), Signal()
        m.d.comb += [
            items.ready.eq(1),
            port.data.eq(items.payload),
            port.en.eq(items.valid & begun & (left != 0)),
            following.eq(self.words - 1),
            self.cut.eq(other | beyond),
        ]
        with m.If(items.valid & begun):
            m.d.sync += left.eq(left - (left != 0))
            with m.If(port.en):
                m.d.sync += port.addr.eq(port.addr + 1)
        with m.If(items.valid & ~begun):
            m.d.sync += [
                begun.eq(1),
                left.eq(following),
                port.addr.eq(0),
                self.foreign.eq((header.magic != MAGIC) | (header.configuration != self._config.hash)),
                other.eq(header.instructions != following),
                beyond.eq(header.commit >= header.instructions),
                self.commit.eq(header.commit),
            ]
        m.d.sync += self.loaded.eq(begun & (left == 0))
        with m.If(self.begin):
            m.d.sync += [begun.eq(0), self.loaded.eq(0)]

    def _hand_out(self, m: Module, memory: Memory) -> None:
        """Two registers that move as one: the memory's own and the one behind it."""
        sink, port = self.instructions, memory.read_port(transparent_for=())
        walking, number, moving = Signal(), Signal(index_bits(self._config)), Signal()
        beyond, last = Signal(), Signal.like(number)  # the number behind the last instruction's
        latched, latched_number, latched_beyond = Signal(), Signal.like(number), Signal()
        m.d.comb += [
            moving.eq(~sink.valid | sink.ready),
            beyond.eq(number == last),
            port.addr.eq(number),
            port.en.eq(moving),
        ]
        m.d.sync += last.eq(self.words - 1)
        with m.If(moving):
            m.d.sync += [
                number.eq(number + (walking & ~beyond)),
                latched.eq(walking),
                latched_number.eq(number),
                latched_beyond.eq(beyond),
                sink.valid.eq(latched),
                sink.p.bits.eq(port.data),
                sink.p.index.eq(latched_number),
                sink.p.beyond.eq(latched_beyond),
            ]
        with m.If(self.walk):
            m.d.sync += [walking.eq(1), number.eq(self.first), latched.eq(0), sink.valid.eq(0)]
        with m.If(self.begin):
            m.d.sync += [walking.eq(0), latched.eq(0), sink.valid.eq(0)]
