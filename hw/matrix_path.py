"""Ternary matrices: from codes and the read stream to drained vectors."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw._table_walk import sum_bits
from edgedec.hw.code_memory import CodeMemory
from edgedec.hw.config import ROWS
from edgedec.hw.drain import Drain
from edgedec.hw.group_mantissas import GroupMantissas
from edgedec.hw.lookup_engine import LookupEngine
from edgedec.hw.matrix_sequencer import MatrixSequencer, shape, step
from edgedec.hw.partial_sums import PartialSums
from edgedec.hw.pipeline import check, every
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
    """matrix: ``shape`` of edgedec.hw.matrix_sequencer, drain: as in the settings of edgedec.hw.drain."""
    return data.StructLayout({"matrix": shape(depth), "drain": _drained_with()})


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
        self._settle(m, sequencer)
        self._sweep(m, sequencer.steps)
        return m

    def _settle(self, m: Module, sequencer: MatrixSequencer) -> None:
        """A matrix to the sequencer; behind a queue, what it is drained with is joined with the scales of its codes."""
        layout = data.StructLayout({"fresh": 1, "drain": _drained_with()})
        m.submodules.settled = queue = SyncFIFO(width=layout.size, depth=_MATRICES)
        kept, offered = Signal(self.scales.payload.shape()), Signal(layout)
        entry, sink, taken = data.View(layout, queue.r_data), self._drain.settings, Signal()
        m.d.comb += [
            sequencer.matrices.payload.eq(self.matrices.p.matrix),
            sequencer.matrices.valid.eq(self.matrices.valid & queue.w_rdy),
            self.matrices.ready.eq(sequencer.matrices.ready & queue.w_rdy),
            offered.fresh.eq(self.matrices.p.matrix.fresh),
            offered.drain.eq(self.matrices.p.drain),
            queue.w_data.eq(offered),
            queue.w_en.eq(self.matrices.valid & sequencer.matrices.ready),
            sink.valid.eq(queue.r_rdy & (~entry.fresh | self.scales.valid)),
            taken.eq(sink.valid & sink.ready),
            queue.r_en.eq(taken),
            self.scales.ready.eq(taken & entry.fresh),
            sink.p.scales.eq(Mux(entry.fresh, self.scales.payload.as_value(), kept.as_value())),
            *(sink.p[name].eq(entry.drain[name]) for name, _ in _drained_with()),
        ]
        with m.If(self.scales.ready):
            m.d.sync += kept.eq(self.scales.payload)

    def _sweep(self, m: Module, source: Any) -> None:
        """Every step into a queue for each of those who need it, as they are some cycles apart."""
        steps, partial = self._queue(m, "steps"), self._queue(m, "partial")
        queues, now = [steps, partial], data.View(step(self._tile_words), steps.r_data)
        self._route(m, steps, now)
        flags = data.View(step(self._tile_words), partial.r_data)
        m.d.comb += [
            self._partial.sweeps.valid.eq(partial.r_rdy),
            partial.r_en.eq(self._partial.sweeps.ready),
            *(self._partial.sweeps.p[name].eq(flags[name]) for name in ("words", "first", "final", "scaled", "last")),
        ]
        if self._mantissas is not None:
            m.submodules.mantissas = self._mantissas
            reads = self._queue(m, "reads")
            queues.append(reads)
            wanted = data.View(step(self._tile_words), reads.r_data)
            sweeps = self._mantissas.sweeps
            # A step without mantissas only passes through.
            m.d.comb += [
                sweeps.valid.eq(reads.r_rdy & wanted.scaled),
                sweeps.p.words.eq(wanted.words),
                sweeps.p.last.eq(wanted.group_last),
                reads.r_en.eq(sweeps.ready | ~wanted.scaled),
            ]
            connect(m, self._mantissas.output, self._partial.mantissas)
        m.d.comb += source.ready.eq(every([queue.w_rdy for queue in queues]))
        for queue in queues:
            m.d.comb += [queue.w_data.eq(source.payload), queue.w_en.eq(source.valid & source.ready)]

    def _queue(self, m: Module, name: str) -> SyncFIFO:
        queue = SyncFIFO(width=step(self._tile_words).size, depth=_AHEAD)
        m.submodules[f"queue_{name}"] = queue
        return queue

    def _route(self, m: Module, steps: SyncFIFO, now: Any) -> None:
        """Beats of a step: mantissas, then weights; who takes them knows where they end."""
        engine = self._engine
        engine_turn = Signal(init=1)
        m.d.comb += [
            engine.sweeps.payload.eq(now.words),
            engine.sweeps.valid.eq(steps.r_rdy & engine_turn),
            steps.r_en.eq(engine.sweeps.valid & engine.sweeps.ready),
            engine.weights.payload.eq(self.weights.payload),
            engine.weights.valid.eq(self.weights.valid & engine.sweeps.valid),
            self.weights.ready.eq(engine.weights.ready & engine_turn),
        ]
        if self._mantissas is None:
            return
        held, mantissas = Signal(), self._mantissas
        m.d.comb += [
            engine_turn.eq(held | ~(now.scaled & now.group_first)),
            mantissas.fills.payload.eq(now.words),
            mantissas.fills.valid.eq(steps.r_rdy & ~engine_turn),
            mantissas.beats.payload.eq(self.weights.payload),
            mantissas.beats.valid.eq(self.weights.valid & mantissas.fills.valid),
        ]
        with m.If(~engine_turn):
            m.d.comb += self.weights.ready.eq(mantissas.beats.ready)
        with m.If(steps.r_en):
            m.d.sync += held.eq(0)
        with m.Elif(mantissas.fills.valid & mantissas.fills.ready):
            m.d.sync += held.eq(1)
