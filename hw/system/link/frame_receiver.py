"""Division of the bytes from the host into the parts of frames, of which only undamaged ones are passed on."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.isa.link_protocol import BLOCK_BYTES, END, ESCAPE, ESCAPED_END, ESCAPED_ESCAPE, MOST_FRAME
from edgedec.hw.memory.axi import beats_log2

__all__ = ["FrameReceiver", "block_words", "received_frame"]

_HEADER, _CHECK = 2, 4  # bytes of code and sequence, of the check sum
_DATA = _HEADER + 8  # first byte of a block, after its address


def received_frame() -> data.StructLayout:
    """Return the layout of the parts of a frame.

    Members:
        code, sequence: first two bytes.
        head: eight bytes after them: an address, or an offset and a value.
        size: two bytes after those.
        content: bytes between the sequence and the check sum, one cycle late.
    """
    return data.StructLayout(
        {
            "code": unsigned(8),
            "sequence": unsigned(8),
            "head": unsigned(64),
            "size": unsigned(16),
            "content": range(MOST_FRAME + 2),
        }
    )


def block_words(granule: int) -> int:
    """Return the words of ``granule`` bytes of the memory of a frame's block."""
    return BLOCK_BYTES // granule * 2


class FrameReceiver(CostedComponent):
    """Take bytes, remove the escapes, and say when a frame has ended that is undamaged and of a possible length.

    The parts are held in registers, and the block after an address in a memory, until more bytes are taken. A damaged frame
    is dropped; the END after it begins a new one.

    Parameters:
        granule: bytes of a word of the block's memory, a power of two.

    Members:
        bytes: In(stream of 8 bits).
        listening: In(1). Bytes may be taken. It is low while the parts of a frame are needed.
        whole: Out(1). High for one cycle: a frame has ended.
        frame: Out(received_frame()). Its parts.
        block_address, block_enable: In. Word of the block that is read, and whether one is; the first one is word 0.
        block: Out(8 * granule). Word of the block, one cycle after it was asked for.

    Latency: 3 cycles from the transfer of a frame's END to ``whole``.
    Throughput: one byte in four cycles.
    Source: docs/devices.md, "Bytes".
    """

    def __init__(self, *, granule: int) -> None:
        self._granule = granule
        super().__init__(
            lambda: {
                "bytes": In(stream.Signature(unsigned(8))),
                "listening": In(1),
                "whole": Out(1),
                "frame": Out(received_frame()),
                "block_address": In(range(block_words(granule))),
                "block_enable": In(1),
                "block": Out(8 * granule),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; that of the control is not calibrated."""
        # The memory of a block is counted with the addresses and the registers of a Fifo.
        block = Fifo(shape=8 * self._granule, depth=block_words(self._granule), style="block")
        return block.resources + Resources(lut=180 + 4 * self._granule, ff=170 + 8 * self._granule)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        granule = self._granule
        m.submodules.block = block = Memory(shape=8 * granule, depth=block_words(granule), init=[])
        read = block.read_port()
        m.d.comb += [
            read.addr.eq(self.block_address),
            read.en.eq(self.block_enable),
            self.block.eq(read.data),
        ]
        self._listen(m, block)
        return m

    def _listen(self, m: Module, block: Memory) -> None:
        """Take each byte in four steps."""
        input_bytes, frame = self.bytes, self.frame
        length = Signal(range(MOST_FRAME + 2))
        byte = Signal(8)
        value = Signal(8)
        m.submodules.check = check = CRC32_ISO_HDLC(8).create()
        escaped = Signal()
        broken = Signal()
        fresh = Signal(init=1)
        take = Signal()
        counts = Signal()
        is_end = Signal()
        is_escape = Signal()
        wrong = Signal()
        matches = Signal()
        position = Signal(_DATA + 2, init=1)  # one-hot number of the current byte among the first ones
        enough = Signal()
        full = Signal()
        in_data = Signal()
        step = Signal(3)  # steps of a byte: known, opened, taken
        put = block.write_port()
        granule = self._granule
        lanes = Signal(8 * granule)
        offset = Signal(length.shape())
        m.d.comb += [
            input_bytes.ready.eq(self.listening & ~step.any()),
            take.eq(step[2]),
            counts.eq(take & ~is_end & (escaped | ~is_escape)),
            check.start.eq(take & is_end),
            check.valid.eq(counts),
            check.data.eq(value),
            self.whole.eq(take & is_end & ~fresh & ~broken & ~escaped & enough & matches),
            put.data.eq(Cat(lanes[8:], value)),
            put.addr.eq(offset >> beats_log2(granule)),
            put.en.eq(counts & in_data & (offset[: beats_log2(granule)] == granule - 1)),
        ]
        m.d.sync += [
            step.eq(Cat(input_bytes.valid & input_bytes.ready, step)),
            is_end.eq(byte == END),
            is_escape.eq(byte == ESCAPE),
            wrong.eq((byte != ESCAPED_END) & (byte != ESCAPED_ESCAPE)),
            value.eq(Mux(escaped, Mux(byte == ESCAPED_END, END, ESCAPE), byte)),
            # Valid, because the last step was several cycles ago.
            matches.eq(check.match_detected),
            enough.eq(length >= _HEADER + _CHECK),
            full.eq(length == MOST_FRAME),
            in_data.eq((length >= _DATA) & ~fresh),
            offset.eq(length - _DATA),
            frame.content.eq(length - (_HEADER + _CHECK)),
        ]
        with m.If(input_bytes.ready):
            m.d.sync += byte.eq(input_bytes.payload)
        with m.If(take & is_end):
            m.d.sync += [escaped.eq(0), broken.eq(0), fresh.eq(1), position.eq(1)]
        with m.Elif(take & ~escaped & is_escape):
            m.d.sync += [escaped.eq(1), fresh.eq(0)]
            with m.If(fresh):
                m.d.sync += length.eq(0)
        with m.Elif(take):
            m.d.sync += [escaped.eq(0), fresh.eq(0), position.eq(position << 1)]
            with m.If((escaped & wrong) | (full & ~fresh)):
                m.d.sync += broken.eq(1)
            with m.If(fresh):
                m.d.sync += length.eq(1)
            with m.Elif(~full):
                m.d.sync += length.eq(length + 1)
            for n in range(len(position)):
                with m.If(position[n]):
                    m.d.sync += Cat(frame.code, frame.sequence, frame.head, frame.size).word_select(n, 8).eq(value)
            m.d.sync += lanes.eq(Cat(lanes[8:], value))
