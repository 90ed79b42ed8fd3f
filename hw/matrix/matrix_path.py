"""Multiplication by ternary and int8 matrices, from codes and the read stream to drained vectors."""

from typing import Any

from amaranth.hdl import C, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.fifo import Fifo, small_queue
from edgedec.hw.blocks.payloads import beat, codes, scales, word, words
from edgedec.hw.blocks.pipeline import check, copies, countdown, every
from edgedec.hw.blocks.register_slice import RegisterSlice, sliced
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.serializer import Serializer
from edgedec.hw.config import ACCUMULATOR_BITS, ROWS
from edgedec.hw.matrix._table_walk import sum_bits
from edgedec.hw.matrix.code_memory import CodeMemory
from edgedec.hw.matrix.drain import Drain, matrix_settings, row_constants
from edgedec.hw.matrix.group_mantissas import GroupMantissas
from edgedec.hw.matrix.lookup_engine import LookupEngine
from edgedec.hw.matrix.mac_array import linear_sums, linear_sums_bits, linear_weights
from edgedec.hw.matrix.partial_sums import PartialSums
from edgedec.hw.matrix.row_packer import RowPacker
from edgedec.hw.matrix.sequencer import MatrixSequencer, shape, step

__all__ = ["MatrixPath", "descriptor"]

_AHEAD = 4  # sweeps that may be prepared ahead
_MATRICES = 4  # matrices that may wait for their scales
_SUMMED = 8  # matrices whose last word of sums is not yet serialized: _MATRICES, and as many in the drain
_PASSES = 2  # passes whose blocks may be in the registers of the code memory
_UNDER_WAY = 31  # upper bound of matrices in progress: those above, and fewer than one for each register of the drain
_PIECE_COLUMNS = (
    8  # columns of a piece in the code memory: at most 72 bits per slot, the width of a block RAM or UltraRAM
)


def descriptor(depth: int, *, tied: bool = False) -> data.StructLayout:
    """Return the layout of a matrix's description.

    Members:
        matrix: ``shape(depth, tied=tied)`` of edgedec.hw.matrix.sequencer.
        spare: unused rows of its last word.
        drain: ``matrix_settings`` of edgedec.hw.matrix.drain.
    """
    return data.StructLayout({"matrix": shape(depth, tied=tied), "spare": range(ROWS), "drain": matrix_settings()})


class MatrixPath(CostedComponent):
    """Connect code memory, lookup engine, partial sums and drain in a row, controlled by a sequencer.

    A word of sums has five rows. The final sweep of a tile produces one word per cycle, and none follows for as long as
    the tile's other sweeps take. A queue therefore holds a tile, and one lane suffices after it.

    The beats of a matrix arrive without gaps in the order below. For a ternary one (see
    edgedec.hw.compiler.ternary_image):

        for each tile of ``tile_words`` row words, the last perhaps shorter:
            for each plane:
                for each block of ``beat_bytes`` columns:
                    if the matrix has mantissas and the block begins a group: the group's mantissas for the tile, as many
                        words of five to a beat as go into it (edgedec.hw.matrix.group_mantissas)
                    one beat for each row word of the tile: byte c holds the five rows of column c

    For an int8 one (see edgedec.hw.compiler.int8_image): for each tile, for each block, one beat for each row of its
    words. It is multiplied by a MacArray outside this component, which serves other users first. Its sums join the
    ternary ones before the partial sums. Padding rows and columns of the matrix are zero.

    Parameters:
        beat_bytes: bytes of a beat of the read stream, 4 to 64, not a multiple of 3; at least 5 with ``scaling``; a
            power of two with ``int8``.
        slots: number of slots, 1 to 8.
        tile_words: row words of a tile, 1 to 65535.
        depth: largest number of blocks of columns of a matrix, 1 to 65535.
        scaling: whether matrices may have group mantissas.
        int8: whether matrices may be int8. Without it the ports ``mac_...`` do not exist.
        per_row: parameter of the Drain.
        tied: whether ternary matrices may have tied planes.

    Members:
        matrices: In(stream ``descriptor(depth, tied=tied)``). Matrices in the order of the read stream. One that is not
            ``fresh`` is multiplied by the codes, and drained with the scales, of the matrix before it, ternary or not.
        codes: In(codes(slots, beat_bytes)). The blocks of each fresh vector.
        scales: In(scales(slots)). One item per fresh vector; only the output of the partial sums waits for it.
        weights: In(beat(beat_bytes)). Beats of the matrices.
        rows: In(row_constants()). One item per row of a matrix with ``rows``.
        output: Out(words(32, slots)). One vector per matrix, a row at a time.
        mac_codes: Out(codes(slots, beat_bytes)). ``codes`` of the MacArray.
        mac_weights: Out(linear_weights(beat_bytes)). ``weights`` of the MacArray.
        mac_sums: In(linear_sums(beat_bytes, slots)). ``sums`` of the MacArray.
        error: Out(1). High for one cycle after a byte of ternary weights above 242.
        idle: Out(1). Every matrix that was taken has left ``output``.

    Latency: from the last beat of a matrix to its last row: the latency of the lookup engine, or 5 + log2(beat_bytes)
        for int8, plus 8 cycles, plus that of the drain, plus one cycle for each row that waits (4 for each word of a ternary
        matrix's last tile, 4 for an int8 matrix's last word, less the spare ones). From a fresh vector's first block to
        the first beat that uses it: beat_bytes / 8 + 16 cycles, beat_bytes / 8 + 3 for int8.
    Throughput: one beat per cycle if sweeps of ternary matrices have 15 words or more, those of int8 matrices 4 or
        more, and a tile has five sweeps or more; one row per cycle.
    Source: docs/accelerator.md, "The data path".
    """

    def __init__(
        self,
        *,
        beat_bytes: int,
        slots: int,
        tile_words: int,
        depth: int,
        scaling: bool = True,
        int8: bool = True,
        per_row: bool = True,
        tied: bool = False,
    ) -> None:
        check("tile_words", tile_words, 1, (1 << 16) - 1)
        check("depth", depth, 1, (1 << 16) - 1)
        if scaling and beat_bytes < ROWS:
            raise ValueError(f"beat_bytes must be at least {ROWS} with scaling, not {beat_bytes!r}")
        if int8 and beat_bytes & (beat_bytes - 1):
            raise ValueError(f"beat_bytes must be a power of two with int8, not {beat_bytes!r}")
        self._slots, self._tile_words, self._tied = slots, tile_words, tied
        self._engine = LookupEngine(beat_bytes=beat_bytes, slots=slots)
        self._sequencer = MatrixSequencer(tile_words=tile_words, depth=depth, tied=tied)
        self._memory = CodeMemory(slots=slots, columns=beat_bytes, depth=depth, pieces=_pieces(beat_bytes))
        self._width, self._step = (width := _width(beat_bytes, int8)), step(tile_words, tied=tied)
        queued = max(tile_words, 2)
        self._partial = PartialSums(
            width=width, slots=slots, tile_words=tile_words, queued=queued, scaling=scaling, tied=tied
        )
        self._summed = Fifo(shape=word(ACCUMULATOR_BITS, slots, ROWS), depth=queued, style="block")
        self._serializer = Serializer(width=ACCUMULATOR_BITS, slots=slots, lanes=ROWS)
        self._elements = RegisterSlice(shape=word(ACCUMULATOR_BITS, slots))
        self._drain = Drain(slots=slots, per_row=per_row)
        self._mantissas = GroupMantissas(beat_bytes=beat_bytes, tile_words=tile_words) if scaling else None
        self._packer = RowPacker(lanes=beat_bytes, slots=slots, width=width) if int8 else None

        def ports() -> dict[str, Any]:
            multiplied = {
                "mac_codes": Out(codes(slots, beat_bytes)),
                "mac_weights": Out(linear_weights(beat_bytes)),
                "mac_sums": In(linear_sums(beat_bytes, slots)),
            }
            return {
                "matrices": In(stream.Signature(descriptor(depth, tied=tied))),
                "codes": In(codes(slots, beat_bytes)),
                "scales": In(scales(slots)),
                "weights": In(beat(beat_bytes)),
                "rows": In(row_constants()),
                "output": Out(words(32, slots)),
                "error": Out(1),
                "idle": Out(1),
                **(multiplied if int8 else {}),
            }

        super().__init__(ports)

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of the cost by submodule, without the MacArray."""
        slots = self._slots
        glue = (
            small_queue(self._step.size, _AHEAD) * (2 if self._mantissas is None else 3)
            + small_queue((ROWS - 1).bit_length(), _SUMMED)
            + small_queue(1 + matrix_settings().size, _MATRICES)
            + self._elements.resources
            + Resources(lut=24 * slots + 40, ff=24 * slots + 8)  # scales kept or taken; what is under way
        )
        parts = {
            "engine": self._engine.resources,
            "partial": self._partial.resources,
            "summed": self._summed.resources,
            "serializer": self._serializer.resources,
            "drain": self._drain.resources,
            "sequencer": self._sequencer.resources,
            "memory": self._memory.resources,
        }
        if self._mantissas is not None:
            parts["mantissas"] = self._mantissas.resources
        if self._packer is not None:
            parts["packer"] = self._packer.resources
            joined = Resources(lut=ROWS * slots * self._width + 30, ff=14)  # the sums of both kinds of matrices
            glue += small_queue(1, _PASSES) + joined
        return parts | {"glue": glue}

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.engine, m.submodules.partial, m.submodules.drain = self._engine, self._partial, self._drain
        m.submodules.sequencer, m.submodules.memory = sequencer, memory = self._sequencer, self._memory
        connect(m, flipped(self.codes), memory.write)
        self._give_codes(m, sequencer, memory)
        m.submodules.summed, m.submodules.serializer = self._summed, self._serializer
        summed = self._summed
        m.d.comb += [
            summed.input.payload.eq(self._partial.output.payload),
            summed.input.valid.eq(self._partial.output.valid),
        ]
        contract(m, ~summed.input.valid | summed.input.ready, "The queue after the partial sums never overflows")
        m.d.sync += self._partial.released.eq(summed.output.valid & summed.output.ready)
        connect(m, self._summed.output, self._serializer.input)
        connect(m, sliced(m, "elements", self._serializer.output, self._elements), self._drain.input)
        connect(m, flipped(self.rows), self._drain.rows)
        connect(m, self._drain.output, flipped(self.output))
        m.d.comb += self.error.eq(self._engine.error)
        self._settle(m, sequencer)
        self._sweep(m, sequencer.steps)
        self._count(m)
        return m

    def _count(self, m: Module) -> None:
        """Count the matrices in progress."""
        count = Signal(range(_UNDER_WAY + 1))
        begins = Signal()
        ends = Signal()
        m.d.comb += [
            begins.eq(self.matrices.valid & self.matrices.ready),
            ends.eq(self.output.valid & self.output.ready & self.output.p.last),
            self.idle.eq(count == 0),
        ]
        m.d.sync += count.eq(count + begins - ends)
        contract(m, ~begins | (count != _UNDER_WAY), "No more matrices are in progress than can be counted")
        contract(m, ~ends | (count != 0), "A vector that leaves belongs to a matrix in progress")

    def _give_codes(self, m: Module, sequencer: MatrixSequencer, memory: CodeMemory) -> None:
        """Send blocks to the unit that multiplies by them; a queue beside the code memory holds the kind of each pass."""
        source, engine = memory.output, self._engine.codes
        if self._packer is None:
            connect(m, sequencer.passes, memory.passes)
            connect(m, source, engine)
            return
        m.submodules.kinds = kinds = SyncFIFO(width=1, depth=_PASSES)
        pass_request, mac = sequencer.passes, self.mac_codes
        m.d.comb += [
            memory.passes.payload.eq(pass_request.payload),
            memory.passes.valid.eq(pass_request.valid & kinds.w_rdy),
            pass_request.ready.eq(memory.passes.ready & kinds.w_rdy),
            kinds.w_data.eq(sequencer.int8),
            kinds.w_en.eq(pass_request.valid & memory.passes.ready),
            engine.payload.eq(source.payload),
            engine.valid.eq(source.valid & ~kinds.r_data),
            mac.payload.eq(source.payload),
            mac.valid.eq(source.valid & kinds.r_data),
            source.ready.eq(Mux(kinds.r_data, mac.ready, engine.ready)),
            kinds.r_en.eq(source.valid & source.ready & source.p.last),
        ]

    def _settle(self, m: Module, sequencer: MatrixSequencer) -> None:
        """Pass a matrix to the sequencer, and join its drain settings, after a queue, with the scales of its codes."""
        layout = data.StructLayout({"fresh": 1, "drain": matrix_settings()})
        m.submodules.settled = queue = SyncFIFO(width=layout.size, depth=_MATRICES)
        spare = self.matrices.p.spare
        m.submodules.spares = spares = SyncFIFO(width=len(spare), depth=_SUMMED)
        kept = Signal(self.scales.payload.shape())
        offered = Signal(layout)
        entry = data.View(layout, queue.r_data)
        sink = self._drain.settings
        taken = Signal()
        m.d.comb += [
            sequencer.matrices.payload.eq(self.matrices.p.matrix),
            sequencer.matrices.valid.eq(self.matrices.valid & queue.w_rdy & spares.w_rdy),
            self.matrices.ready.eq(sequencer.matrices.ready & queue.w_rdy & spares.w_rdy),
            spares.w_data.eq(spare),
            spares.w_en.eq(self.matrices.valid & self.matrices.ready),
            self._serializer.spares.payload.eq(spares.r_data),
            self._serializer.spares.valid.eq(spares.r_rdy),
            spares.r_en.eq(self._serializer.spares.ready),
            offered.fresh.eq(self.matrices.p.matrix.fresh),
            offered.drain.eq(self.matrices.p.drain),
            queue.w_data.eq(offered),
            queue.w_en.eq(self.matrices.valid & self.matrices.ready),
            sink.valid.eq(queue.r_rdy & (~entry.fresh | self.scales.valid)),
            taken.eq(sink.valid & sink.ready),
            queue.r_en.eq(taken),
            self.scales.ready.eq(taken & entry.fresh),
            sink.p.scales.eq(Mux(entry.fresh, self.scales.payload.as_value(), kept.as_value())),
            *(sink.p[name].eq(entry.drain[name]) for name, _ in matrix_settings()),
        ]
        with m.If(self.scales.ready):
            m.d.sync += kept.eq(self.scales.payload)

    def _sweep(self, m: Module, source: Any) -> None:
        """Copy every step into one queue per consumer, because the consumers are some cycles apart."""
        steps, partial = self._queue(m, "steps"), self._queue(m, "partial")
        queues, now = [steps, partial], data.View(self._step, steps.r_data)
        self._route(m, steps, now)
        flags = data.View(self._step, partial.r_data)
        sweeps, tripled = self._partial.sweeps, ("tripled",) if self._tied else ()
        int8 = Signal()
        m.d.comb += [
            sweeps.valid.eq(partial.r_rdy),
            partial.r_en.eq(sweeps.ready),
            *(sweeps.p[name].eq(flags[name]) for name in ("words", "first", "final", "scaled", "last", *tripled)),
        ]
        int8_next = Mux(sweeps.ready, flags.int8, int8)
        m.d.sync += int8.eq(int8_next)
        self._join(m, int8, int8_next)
        if self._mantissas is not None:
            m.submodules.mantissas = self._mantissas
            reads = self._queue(m, "reads")
            queues.append(reads)
            mantissa_step = data.View(self._step, reads.r_data)
            sweeps = self._mantissas.sweeps
            # A step without mantissas is dropped.
            m.d.comb += [
                sweeps.valid.eq(reads.r_rdy & mantissa_step.scaled),
                sweeps.p.words.eq(mantissa_step.words),
                sweeps.p.last.eq(mantissa_step.group_last),
                reads.r_en.eq(sweeps.ready | ~mantissa_step.scaled),
            ]
            connect(m, self._mantissas.output, self._partial.mantissas)
        m.d.comb += source.ready.eq(every([queue.w_rdy for queue in queues]))
        for queue in queues:
            m.d.comb += [queue.w_data.eq(source.payload), queue.w_en.eq(source.valid & source.ready)]

    def _join(self, m: Module, int8: Any, int8_next: Any) -> None:
        """Merge the sums of both kinds in the order of the sweeps that they belong to.

        Each row's sums are chosen by a register of their own, with the value of ``int8``: together they are too many loads.
        """
        sums, ternary = self._partial.sums, self._engine.sums
        if self._packer is None:
            connect(m, ternary, sums)
            return
        m.submodules.packer = packer = self._packer
        connect(m, flipped(self.mac_sums), packer.sums)
        m.d.comb += [
            sums.valid.eq(Mux(int8, packer.output.valid, ternary.valid)),
            packer.output.ready.eq(int8 & sums.ready),
            ternary.ready.eq(~int8 & sums.ready),
        ]
        for row, chosen in enumerate(copies(m, int8_next, ROWS, name="int8_of_row")):
            for slot in range(self._slots):
                m.d.comb += sums.payload[row][slot].eq(
                    Mux(chosen, packer.output.payload[row][slot], ternary.payload[row][slot])
                )

    def _queue(self, m: Module, name: str) -> SyncFIFOBuffered:
        queue = SyncFIFOBuffered(width=self._step.size, depth=_AHEAD)
        m.submodules[f"queue_{name}"] = queue
        return queue

    def _route(self, m: Module, steps: SyncFIFOBuffered, following: Any) -> None:
        """Send the beats of a step to the mantissas, then to the engine or the multipliers. A register for each of them
        says whether it is its turn, and one count of the row words tells the engine and the multipliers when it ends.
        """
        engine, source = self._engine, self.weights
        words = Signal(range(self._tile_words + 1))
        idle = Signal()
        load = Signal()
        engine_turn = Signal()
        mac_turn = Signal()
        fill_turn = Signal()
        moved = Signal()
        ends = Signal()
        fills = following.scaled & following.group_first if self._mantissas is not None else C(0)
        int8 = following.int8 if self._packer is not None else C(0)
        last = countdown(m, "word", load=load, count=following.words, step=moved)
        multiplied = self._multiply(m, self._packer, mac_turn, last) if self._packer is not None else None
        mac_ready, mac_moved = (C(0), C(0)) if multiplied is None else multiplied
        m.d.comb += [
            engine.weights.p["values"].eq(source.payload),
            engine.weights.p.last.eq(last),
            engine.weights.valid.eq(source.valid & engine_turn),
            moved.eq((engine.weights.valid & engine.weights.ready) | mac_moved),
            ends.eq(moved & last),
            idle.eq(~(engine_turn | mac_turn | fill_turn)),
            load.eq(steps.r_rdy & (ends | idle)),
            steps.r_en.eq(load),
            source.ready.eq((engine_turn & engine.weights.ready) | mac_ready),
        ]
        with m.If(ends | idle):
            m.d.sync += [
                engine_turn.eq(steps.r_rdy & ~int8 & ~fills),
                mac_turn.eq(steps.r_rdy & int8),
                fill_turn.eq(steps.r_rdy & fills),
                words.eq(following.words),
            ]
        if self._mantissas is not None:
            mantissas = self._mantissas
            m.d.comb += [
                mantissas.fills.payload.eq(words),
                mantissas.fills.valid.eq(fill_turn),
                mantissas.beats.payload.eq(source.payload),
                mantissas.beats.valid.eq(source.valid & fill_turn),
            ]
            with m.If(fill_turn):
                m.d.comb += source.ready.eq(mantissas.beats.ready)
                with m.If(mantissas.fills.ready):
                    m.d.sync += [fill_turn.eq(0), engine_turn.eq(1)]

    def _multiply(self, m: Module, packer: RowPacker, turn: Signal, last: Signal) -> tuple[Value, Value]:
        """Send the beats of an int8 step, five per word; a word begins only if its sums have room.

        Returns:
            whether the multipliers take a beat, and whether the last one of a word moves.
        """
        sink = self.mac_weights
        row = Signal(range(ROWS))
        first = Signal(init=1)
        row_last = Signal()
        open_ = Signal()
        taken = Signal()
        m.d.comb += [
            open_.eq(turn & (packer.room | ~first)),
            sink.payload.values.as_value().eq(self.weights.payload.as_value()),
            sink.p.last.eq(row_last & last),
            sink.valid.eq(self.weights.valid & open_),
            taken.eq(sink.valid & sink.ready),
            packer.starts.eq(taken & first),
        ]
        with m.If(taken):
            m.d.sync += [row.eq(Mux(row_last, 0, row + 1)), first.eq(row_last), row_last.eq(row == ROWS - 2)]
        return sink.ready & open_, taken & row_last


def _pieces(beat_bytes: int) -> int:
    """Return the pieces of a block in the code memory."""
    pieces = beat_bytes // _PIECE_COLUMNS
    return 1 if beat_bytes % _PIECE_COLUMNS or pieces & (pieces - 1) else pieces


def _width(beat_bytes: int, int8: bool) -> int:
    """Return the signed bits of the input of the partial sums."""
    return max(sum_bits(beat_bytes), linear_sums_bits(beat_bytes) if int8 else 0)
