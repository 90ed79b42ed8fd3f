"""The on-chip program memory, which loads a program, checks its header and delivers its instructions."""

from typing import Any

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.instruction_layouts import header_layout
from edgedec.hw.blocks.ram_cost import block_rams, ultra_rams
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import INSTRUCTION_BYTES, MAGIC
from edgedec.hw.memory.router import segment
from edgedec.hw.memory.unpacker import Unpacker

__all__ = ["ProgramMemory", "fetched", "index_bits"]

_BITS = 8 * INSTRUCTION_BYTES  # bits of an instruction


def index_bits(config: AcceleratorConfig) -> int:
    """Return the bits of an instruction's number, which may be one more than that of the last instruction."""
    return config.instructions.bit_length()


def fetched(config: AcceleratorConfig) -> data.StructLayout:
    """Return the layout of an instruction with its number; ``beyond`` says that the program has ended before it."""
    return data.StructLayout({"bits": unsigned(_BITS), "index": index_bits(config), "beyond": 1})


class ProgramMemory(CostedComponent):
    """Store the header and the instructions of one program.

    Parameters:
        config: configuration of the accelerator, of which beat_bytes, instructions, ultra and hash matter.

    Members:
        begin: In(1). Forget everything; a program of ``words`` words of 32 bytes follows.
        words: In. Number of words of header and instructions, 1 to config.instructions + 1; steady after ``begin``.
        beats: In(stream ``segment(beat_bytes)``).
        loaded: Out(1). All words are loaded; ``foreign``, ``cut`` and ``commit`` are valid from then on.
        foreign: Out(1). The header is invalid or names another configuration.
        cut: Out(1). The header gives another number of instructions, or a commit beyond them.
        commit: Out. Number of the first instruction of a commit.
        walk: In(1). Deliver the instructions from number ``first`` on, once ``loaded``.
        first: In. Number of the first instruction to deliver.
        instructions: Out(stream ``fetched(config)``). After the last one, an instruction that is ``beyond`` is offered
            for ever.

    Latency: 3 cycles from the last beat to ``loaded``, one more if a beat holds two words; 3 from ``walk`` to the first
        instruction.
    Throughput: one word per cycle in and out.
    Source: derived here. Block RAM, or UltraRAM if there is some, with an output register.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config, self._ultra = config, config.style(config.instructions) == "ultra"
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
        words = config.instructions
        memory = Resources(uram=ultra_rams(_BITS, words)) if self._ultra else Resources(bram18=block_rams(_BITS, words))
        header = Resources(lut=2 * 22 + 8 + 24, ff=index_bits(config) + 2)
        counters = Resources(lut=6 * index_bits(config), ff=_BITS + 7 * index_bits(config) + 7)
        return self._unpacker.resources + header + counters + memory

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(
            shape=unsigned(_BITS),
            depth=self._config.instructions,
            init=[],
            attrs={"ram_style": "ultra" if self._ultra else "block"},
        )
        self._take(m, memory)
        self._hand_out(m, memory)
        return m

    def _take(self, m: Module, memory: Memory) -> None:
        """Load the words: word 0 is the header, word n + 1 is instruction n."""
        m.submodules.unpacker = words = self._unpacker
        connect(m, flipped(self.beats), words.beats)
        port = memory.write_port()
        items = words.items
        header = data.View(header_layout(), items.payload)
        begun = Signal()
        left = Signal(range(self._config.instructions + 2))
        misses = Signal()  # words are left, which is a register because it enables the others
        following = Signal.like(left)  # instructions according to the length, which is steady long before a word
        other = Signal()
        beyond = Signal()
        m.d.comb += [
            items.ready.eq(1),
            port.data.eq(items.payload),
            port.en.eq(items.valid & begun & misses),
            self.cut.eq(other | beyond),
        ]
        m.d.sync += following.eq(self.words - 1)
        with m.If(port.en):
            m.d.sync += [left.eq(left - 1), misses.eq(left != 1), port.addr.eq(port.addr + 1)]
        with m.If(items.valid & ~begun):
            m.d.sync += [
                begun.eq(1),
                left.eq(following),
                misses.eq(following != 0),
                port.addr.eq(0),
                self.foreign.eq((header.magic != MAGIC) | (header.configuration != self._config.hash)),
                other.eq(header.instructions != following),
                beyond.eq(header.commit >= header.instructions),
                self.commit.eq(header.commit),
            ]
        m.d.sync += self.loaded.eq(begun & ~misses)
        with m.If(self.begin):
            m.d.sync += [begun.eq(0), self.loaded.eq(0)]

    def _hand_out(self, m: Module, memory: Memory) -> None:
        """Deliver instructions through two registers that move together: the memory's own and the output register."""
        sink = self.instructions
        port = memory.read_port(transparent_for=())
        walking = Signal()
        number = Signal(index_bits(self._config))
        do_move = Signal()
        beyond = Signal()  # ``number`` is that after the last instruction
        after_last = Signal.like(number)
        final = Signal.like(number)  # number of the last instruction
        fetched_valid = Signal()
        fetched_number = Signal.like(number)
        fetched_beyond = Signal()
        m.d.comb += [
            do_move.eq(~sink.valid | sink.ready),
            port.addr.eq(number),
            port.en.eq(do_move),
        ]
        m.d.sync += [after_last.eq(self.words - 1), final.eq(self.words - 2)]
        with m.If(do_move & walking & ~beyond):
            m.d.sync += [number.eq(number + 1), beyond.eq(number == final)]
        with m.If(do_move):
            m.d.sync += [
                fetched_valid.eq(walking),
                fetched_number.eq(number),
                fetched_beyond.eq(beyond),
                sink.valid.eq(fetched_valid),
                sink.p.bits.eq(port.data),
                sink.p.index.eq(fetched_number),
                sink.p.beyond.eq(fetched_beyond),
            ]
        with m.If(self.walk):
            m.d.sync += [walking.eq(1), number.eq(self.first), beyond.eq(self.first == after_last)]
            m.d.sync += [fetched_valid.eq(0), sink.valid.eq(0)]
        with m.If(self.begin):
            m.d.sync += [walking.eq(0), fetched_valid.eq(0), sink.valid.eq(0)]
