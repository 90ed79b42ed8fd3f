"""A memory of the mantissas of a group of columns, which every sweep reads row word by row word."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.payloads import beat
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import ROWS
from edgedec.hw.matrix.partial_sums import MANTISSA_BITS

__all__ = ["GroupMantissas", "reading"]


def reading(tile_words: int) -> stream.Signature:
    """Return a stream of reads of the words 0 .. ``words - 1``; ``last`` says that the next read is of the next group."""
    return stream.Signature(data.StructLayout({"words": range(tile_words + 1), "last": 1}))


class GroupMantissas(CostedComponent):
    """Hold two groups: one that every sweep of its blocks of columns reads, and one that is written meanwhile.

    Beats are stored unchanged, so that they can arrive at the rate of the stream; they are divided when they are read.

    Parameters:
        beat_bytes: bytes of a beat, 5 to 64. It holds ``beat_bytes // 5`` words of five mantissas, from its lowest byte
            on.
        tile_words: largest number of words of a group, 1 to 65536.

    Members:
        fills: In(stream range(tile_words + 1)). Number of words of the next group, at least 1; taken with its last
            beat.
        beats: In(beat(beat_bytes)). As many beats as the words need; the bytes after the last word are ignored.
        sweeps: In(reading(tile_words)). ``words`` must be that of the group's fill.
        output: Out(stream unsigned(8) [5]). One item for each word of a sweep.

    Latency: 2 cycles from a group's last beat to its first word.
    Throughput: one beat and one word per cycle, across sweeps and groups too.
    Source: docs/integer-profile.md, "Linear".
    """

    def __init__(self, *, beat_bytes: int, tile_words: int) -> None:
        check("beat_bytes", beat_bytes, ROWS, 64)
        check("tile_words", tile_words, 1, 1 << 16)
        self._beat_bytes, self._tile_words, self._per_beat = beat_bytes, tile_words, beat_bytes // ROWS
        super().__init__(
            lambda: {
                "fills": In(stream.Signature(range(tile_words + 1))),
                "beats": In(beat(beat_bytes)),
                "sweeps": In(reading(tile_words)),
                "output": Out(stream.Signature(data.ArrayLayout(unsigned(MANTISSA_BITS), ROWS))),
            }
        )

    @property
    def resources(self) -> Resources:
        tile_words = self._tile_words
        bits, beats = self._per_beat * ROWS * MANTISSA_BITS, -(-tile_words // self._per_beat)
        depth = 2 << (beats - 1).bit_length()
        # LUTs: the register that is shifted is loaded in part by the multiplexer of the memory's banks.
        loaded = bits if depth <= 64 else bits // 3
        shifted = Resources(lut=loaded + 6 * tile_words.bit_length() + 10, ff=bits + 2 * tile_words.bit_length() - 3)
        return small_queue(bits, depth) + shifted

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        self._address_bits = (-(-self._tile_words // self._per_beat) - 1).bit_length()
        m.submodules.memory = memory = Memory(
            shape=unsigned(self._per_beat * ROWS * MANTISSA_BITS),
            depth=2 << self._address_bits,
            init=[],
            attrs={"ram_style": "distributed"},
        )
        full = Signal(2)
        words = Signal(2 * self.fills.payload.shape().width)  # words of each bank
        self._write(m, memory, full, words)
        self._read(m, memory, full, words)
        return m

    def _walk(self, m: Module, name: str, words: Value, step: Value) -> tuple[Value, Value, Value]:
        """Return the next beat's address, whether it is the group's last, and its number of words; ``step`` advances."""
        most = self._per_beat
        reach = Signal(
            range(self._tile_words + most + 1), init=most, name=f"{name}_reach"
        )  # words up to the beat's end
        address = Signal(self._address_bits, name=f"{name}_address")
        ends = words <= reach
        with m.If(step):
            m.d.sync += [
                reach.eq(Mux(ends, most, reach + most)),
                address.eq(Mux(ends, 0, address + 1)),
            ]
        return address, ends, Mux(ends, (words - reach + most)[: most.bit_length()], most)

    def _write(self, m: Module, memory: Memory, full: Signal, words: Signal) -> None:
        port = memory.write_port()
        bank = Signal()
        width = len(words) // 2
        m.d.comb += [
            self.beats.ready.eq(self.fills.valid & ~full.bit_select(bank, 1)),
            port.en.eq(self.beats.valid & self.beats.ready),
            port.data.eq(Value.cast(self.beats.payload)),
        ]
        address, ends, _ = self._walk(m, "written", self.fills.payload, port.en)
        m.d.comb += [port.addr.eq(Cat(address, bank)), self.fills.ready.eq(port.en & ends)]
        with m.If(self.fills.ready):
            m.d.sync += [
                full.bit_select(bank, 1).eq(1),
                bank.eq(~bank),
                words.word_select(bank, width).eq(self.fills.payload),
            ]

    def _read(self, m: Module, memory: Memory, full: Signal, filled: Signal) -> None:
        sink = self.output
        port = memory.read_port(domain="comb")
        bank = Signal()
        held = Signal(port.data.shape(), reset_less=True)
        words = Signal(range(self._per_beat + 1))
        load = Signal()
        do_take = Signal()
        m.d.comb += [
            sink.valid.eq(words != 0),
            Value.cast(sink.payload).eq(held),
            do_take.eq(sink.valid & sink.ready),
            load.eq(((words == 0) | (do_take & (words == 1))) & self.sweeps.valid & full.bit_select(bank, 1)),
        ]
        address, ends, count = self._walk(m, "read", self.sweeps.p.words, load)
        m.d.comb += [port.addr.eq(Cat(address, bank)), self.sweeps.ready.eq(load & ends)]
        with m.If(load):
            m.d.sync += [held.eq(port.data), words.eq(count)]
        with m.Elif(do_take):
            m.d.sync += [held.eq(held >> ROWS * MANTISSA_BITS), words.eq(words - 1)]
        with m.If(load):
            same = self.sweeps.p.words == filled.word_select(bank, len(filled) // 2)
            contract(m, same, "A sweep has the words of its group")
        with m.If(load & ends & self.sweeps.p.last):
            m.d.sync += [full.bit_select(bank, 1).eq(0), bank.eq(~bank)]
