"""Ternary matrices: from codes and the read stream to drained vectors."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw._table_walk import sum_bits
from edgedec.hw.code_memory import CodeMemory
from edgedec.hw.config import ROWS
from edgedec.hw.drain import Drain
from edgedec.hw.drain import settings as drain_settings
from edgedec.hw.group_mantissas import GroupMantissas
from edgedec.hw.lookup_engine import LookupEngine
from edgedec.hw.matrix_sequencer import MatrixSequencer, shape, step
from edgedec.hw.partial_sums import PartialSums
from edgedec.hw.pipeline import check
from edgedec.hw.shapes import beat, codes, scales, words

__all__ = ["MatrixPath", "descriptor"]

_AHEAD = 4  # sweeps that are ready before they are wanted
_MATRICES = 4  # whose scales may still be missing
_PIECE_COLUMNS = 8  # of a block in the code memory: 72 bits or less for each slot, the width of a block RAM or UltraRAM


def _drained_with() -> data.StructLayout:
    """What ``edgedec.hw.drain.settings`` takes from the matrix; the rest are the scales."""
    return data.StructLayout(
        {"pre_shift": unsigned(3), "base": signed(9), "weight": unsigned(16), "wide": 1, "bias": 1}
    )


def descriptor(depth: int) -> data.StructLayout:
    """A matrix: ``shape`` as in edgedec.hw.matrix_sequencer, ``drain`` as in edgedec.hw.drain."""
    return data.StructLayout({"shape": shape(depth), "drain": _drained_with()})


class MatrixPath(Component):
    """Code memory, lookup engine, partial sums and drain behind each other; a sequencer that tells them what to do.

    The beats of a matrix come in this order, without gaps (edgedec.hw.compiler.ternary_image makes it):

        for each tile of ``tile_words`` row words, the last perhaps shorter:
            for each plane:
                for each block of ``beat_bytes`` columns:
                    if the matrix has mantissas and the block begins a group: the group's mantissas for the tile, as many
                        words of five to a beat as go into it (edgedec.hw.group_mantissas)
                    one beat for each row word of the tile: byte c holds the five rows of column c

    Rows and columns behind the matrix's are zero trits.

    Parameters:
        beat_bytes: of the read stream, 4 to 64, not a multiple of 3; at least 5 with ``scaling``.
        slots: 1 to 8.
        tile_words: row words of a tile, 1 to 65535.
        depth: most blocks of columns of a matrix, 1 to 65535.
        scaling: matrices may have group mantissas.

    Members:
        matrices: In(stream ``descriptor(depth)``). In the order of the read stream. One that is not ``fresh`` is multiplied
            by the codes, and drained with the scales, of the one before it.
        codes: In(codes(slots, beat_bytes)). The blocks of each fresh vector.
        scales: In(scales(slots)). One item per fresh vector; only what leaves the partial sums waits for it.
        weights: In(beat(beat_bytes)).
        biases: In(stream of signed(27) [5]). One item per word of a matrix with a bias.
        output: Out(words(27, slots)). One vector per matrix.
        error: Out(1). For a cycle after a weight's byte above 242.

    Latency: from the last beat of a matrix to its last word that of the lookup engine, 4 cycles and 8 of the drain; from a
        fresh vector's first block to the first beat that uses it beat_bytes / 8 + 17 cycles.
    Throughput: one beat per cycle where sweeps have 15 words or more.
    Source: DESIGN section 7.
    """

    def __init__(self, *, beat_bytes: int, slots: int, tile_words: int, depth: int, scaling: bool = True) -> None:
        check("tile_words", tile_words, 1, (1 << 16) - 1)
        check("depth", depth, 1, (1 << 16) - 1)
        if scaling and beat_bytes < ROWS:
            raise ValueError(f"beat_bytes must be at least {ROWS} with scaling, not {beat_bytes!r}")
        self._slots, self._depth, self._tile_words = slots, depth, tile_words
        self._beat_bytes = beat_bytes
        self._engine = LookupEngine(beat_bytes=beat_bytes, slots=slots)
        self._partial = PartialSums(width=sum_bits(beat_bytes), slots=slots, tile_words=tile_words, scaling=scaling)
        self._drain = Drain(slots=slots)
        self._mantissas = GroupMantissas(beat_bytes=beat_bytes, tile_words=tile_words) if scaling else None
        super().__init__(
            {
                "matrices": In(stream.Signature(descriptor(depth))),
                "codes": In(codes(slots, beat_bytes)),
                "scales": In(scales(slots)),
                "weights": In(beat(beat_bytes)),
                "biases": In(stream.Signature(data.ArrayLayout(signed(27), ROWS))),
                "output": Out(words(27, slots)),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.engine, m.submodules.partial, m.submodules.drain = self._engine, self._partial, self._drain
        m.submodules.sequencer = sequencer = MatrixSequencer(tile_words=self._tile_words, depth=self._depth)
        pieces = self._beat_bytes // _PIECE_COLUMNS
        if self._beat_bytes % _PIECE_COLUMNS or pieces & (pieces - 1):
            pieces = 1
        m.submodules.memory = memory = CodeMemory(
            slots=self._slots, columns=self._beat_bytes, depth=self._depth, pieces=pieces
        )
        connect(m, flipped(self.codes), memory.write)
        connect(m, sequencer.passes, memory.passes)
        connect(m, memory.output, self._engine.codes)
        connect(m, self._engine.sums, self._partial.sums)
        connect(m, self._partial.output, self._drain.input)
        connect(m, flipped(self.biases), self._drain.biases)
        connect(m, self._drain.output, flipped(self.output))
        m.d.comb += self.error.eq(self._engine.error)
        settled = self._settle(m)
        m.d.comb += [
            sequencer.matrices.payload.eq(self.matrices.p["shape"]),
            sequencer.matrices.valid.eq(self.matrices.valid & settled.w_rdy),
            self.matrices.ready.eq(sequencer.matrices.ready & settled.w_rdy),
            settled.w_en.eq(self.matrices.valid & sequencer.matrices.ready),
        ]
        self._sweep(m, sequencer.steps)
        return m

    def _settle(self, m: Module) -> SyncFIFO:
        """Joins what each matrix is drained with and the scales of its codes."""
        layout = data.StructLayout({"fresh": 1, "drain": _drained_with()})
        m.submodules.settled = queue = SyncFIFO(width=layout.size, depth=_MATRICES)
        kept = Signal(self.scales.payload.shape())
        entry, sink, taken = data.View(layout, queue.r_data), self._drain.settings, Signal()
        m.d.comb += [
            queue.w_data.eq(Value.cast(data.View(layout, self._entry())).as_unsigned()),
            sink.valid.eq(queue.r_rdy & (~entry.fresh | self.scales.valid)),
            taken.eq(sink.valid & sink.ready),
            queue.r_en.eq(taken),
            self.scales.ready.eq(taken & entry.fresh),
            Value.cast(sink.p.scales).eq(Mux(entry.fresh, Value.cast(self.scales.payload), Value.cast(kept))),
            *(sink.p[name].eq(entry.drain[name]) for name, _ in entry.drain.shape()),
        ]
        with m.If(self.scales.ready):
            m.d.sync += kept.eq(self.scales.payload)
        return queue
