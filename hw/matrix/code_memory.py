"""A memory of the activation codes of a vector, which the tiles and planes of a matrix read repeatedly."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import codes, rows
from edgedec.hw.blocks.pipeline import check, countdown
from edgedec.hw.blocks.ram_cost import block_rams
from edgedec.hw.blocks.resources import Resources

__all__ = ["CodeMemory", "passes"]

_STYLES = ("block", "ultra", "distributed")  # values of ram_style


def passes(depth: int) -> stream.Signature:
    """Return a stream of passes, each of which reads the blocks 0 .. ``blocks - 1``, at least one.

    A ``fresh`` pass reads a new vector, which is written meanwhile. A pass over an existing vector may read fewer
    blocks than were written, not more.
    """
    return stream.Signature(data.StructLayout({"fresh": 1, "blocks": range(depth + 1)}))


class CodeMemory(CostedComponent):
    """Store the blocks of columns of one vector for each slot; they are written once and read in every pass.

    A block is wide (4,096 bits for 64 columns of 8 slots) and needed only once per sweep, so it is stored in pieces:
    the memory is as wide as a piece, and one register holds the offered block.

    Parameters:
        slots: number of slots, 1 to 8.
        columns: columns of a block, 1 to 64.
        depth: blocks, 1 to 65536.
        pieces: pieces of a block, a power of two that divides ``columns``.
        style: kind of memory: "block", "ultra" or "distributed".

    Members:
        write: In(codes(slots, columns)). Taken during a fresh pass only, as many blocks as the pass has; ``last`` is
            ignored.
        passes: In(passes(depth)). A pass is taken once the one before it is read completely, so a fresh pass overwrites
            nothing that is needed.
        output: Out(codes(slots, columns)). The blocks of each pass; ``last`` accompanies the last one.

    Latency: pieces + 2 cycles, from a block at ``write`` in a fresh pass to the same block at ``output``, or from a
        pass over an existing vector to its first block.
    Throughput: one block in pieces + 2 cycles plus its wait at the output; a block is written in ``pieces`` cycles,
        whether or not blocks are read.
    Source: derived here. One write port and one read port, registered.
    """

    def __init__(self, *, slots: int, columns: int, depth: int, pieces: int = 1, style: str = "block") -> None:
        check("slots", slots, 1, 8)
        check("columns", columns, 1, 64)
        check("depth", depth, 1, 1 << 16)
        check("pieces", pieces, 1, columns)
        if pieces & (pieces - 1) or columns % pieces:
            raise ValueError(f"pieces must be a power of two that divides {columns} columns, not {pieces!r}")
        if style not in _STYLES:
            raise ValueError(f"style must be one of {', '.join(_STYLES)}, not {style!r}")
        block = codes(slots, columns)
        super().__init__(lambda: {"write": In(block), "passes": In(passes(depth)), "output": Out(block)})
        self._slots, self._columns, self._depth, self._pieces, self._style = slots, columns, depth, pieces, style

    @property
    def resources(self) -> Resources:
        """Estimate of the cost of a memory in block RAM, which is written and read in pieces, and a register of a block."""
        slots, columns, depth, pieces = self._slots, self._columns, self._depth, self._pieces
        bits = 8 * slots * columns
        count = (depth * pieces).bit_length()
        chosen = bits // pieces * -(-(pieces - 1) // 3)  # a piece of what is written
        return Resources(
            lut=chosen + 4 * count + 13, ff=bits + 4 * count + 10, bram18=block_rams(bits // pieces, depth * pieces)
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(
            shape=rows(8, self._slots, self._columns // self._pieces),
            depth=self._depth * self._pieces,
            init=[],
            attrs={"ram_style": self._style},
        )
        # Counted in pieces: ``put`` written ones, ``get`` requested ones.
        count = range(self._depth * self._pieces + 1)
        put = Signal(count)
        get = Signal(count)
        busy = Signal()
        writing = Signal()
        pass_request = self.passes
        begins = Signal()
        length = Signal(count)
        m.d.comb += [
            pass_request.ready.eq(~busy),
            begins.eq(pass_request.valid & pass_request.ready),
            length.eq(pass_request.p.blocks * self._pieces),
        ]
        do_put = self._write(m, memory, put, writing)
        do_get, ends = self._read(m, memory, get, busy & ((get != put) | ~writing))
        last_put = countdown(m, "put", load=begins & pass_request.p.fresh, count=length, step=do_put)
        last_get = countdown(m, "get", load=begins, count=length, step=do_get)
        with m.If(do_put & last_put):
            m.d.sync += writing.eq(0)
        with m.If(do_get):
            m.d.sync += ends.eq(last_get)
            with m.If(last_get):
                m.d.sync += busy.eq(0)
        with m.If(begins):
            m.d.sync += [busy.eq(1), get.eq(0)]
            with m.If(pass_request.p.fresh):
                m.d.sync += [put.eq(0), writing.eq(1)]
        return m

    def _write(self, m: Module, memory: Memory, put: Signal, writing: Signal) -> Value:
        """Write pieces. Return whether one is written."""
        source = self.write
        port = memory.write_port()
        bits = (self._pieces - 1).bit_length()
        offered = Value.cast(source.p.codes)
        width = len(offered) // self._pieces
        pieces = Array(offered[i * width : (i + 1) * width] for i in range(self._pieces))
        m.d.comb += [
            port.addr.eq(put),
            port.en.eq(source.valid & writing),
            Value.cast(port.data).eq(pieces[put[:bits]] if bits else offered),
            source.ready.eq(writing & put[:bits].all() if bits else writing),
        ]
        with m.If(port.en):
            m.d.sync += put.eq(put + 1)
        return port.en

    def _read(self, m: Module, memory: Memory, get: Signal, available: Value) -> tuple[Value, Signal]:
        """Read pieces into the output register; ``available`` says that the piece ``get`` is written.

        Return whether a piece is read, and the register that says whether the one read before was the vector's last.
        """
        sink = self.output
        port = memory.read_port(transparent_for=())
        bits = (self._pieces - 1).bit_length()
        # full: the register holds, or is about to hold, a complete block.
        full = Signal()
        arriving = Signal()
        place = Signal(max(bits, 1))
        complete = Signal()
        ends = Signal()
        offered = Signal()
        final = get[:bits].all() if bits else 1
        m.d.comb += [
            port.addr.eq(get),
            port.en.eq(available & ~full),
            complete.eq(port.en & final),
            offered.eq(arriving & full),
        ]
        m.d.sync += arriving.eq(port.en)
        with m.If(port.en):
            m.d.sync += [get.eq(get + 1), place.eq(get[:bits] if bits else 0)]
        with m.If(complete):
            m.d.sync += full.eq(1)
        with m.If(offered):
            m.d.sync += [sink.valid.eq(1), sink.p.last.eq(ends)]
        with m.If(sink.valid & sink.ready):
            m.d.sync += [sink.valid.eq(0), full.eq(0)]
        block = Value.cast(sink.p.codes)
        width = len(block) // self._pieces
        for piece in range(self._pieces):
            with m.If(arriving & (place == piece)):
                m.d.sync += block[piece * width : (piece + 1) * width].eq(Cat(Value.cast(port.data)))
        return port.en, ends
