"""Where the writes of a layer's keys, or of its values, go: those of a pass and those that a commit moves."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.component import CostedComponent
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.instruction_layouts import layout
from edgedec.hw.instructions import Opcode
from edgedec.hw.resources import Resources
from edgedec.hw.shapes import rows

__all__ = [
    "MovedRows",
    "NewRows",
    "cache_beats",
    "layer",
    "place",
]

SLOT_BITS = 4
_RUN_BITS = 24


def layer() -> data.StructLayout:
    """start: beats from kv_address to the layer. run: beats from a head's keys to its values, and on to the next's."""
    return data.StructLayout({"start": unsigned(36), "run": unsigned(_RUN_BITS), "kv_heads": unsigned(8)})


def place(config: AcceleratorConfig) -> data.StructLayout:
    """A chunk and where it goes.

    at: beats from kv_address to the head's keys, or values. index: of the chunk in the head. position: counted from the
    first uncommitted one. codes: bytes of the chunk, lowest address first.
    """
    return data.StructLayout(
        {
            "at": unsigned(36),
            "index": unsigned(max(1, (config.kv_layout.chunks - 1).bit_length())),
            "position": unsigned(SLOT_BITS),
            "codes": unsigned(8 * config.chunk),
        }
    )


def cache_beats(config: AcceleratorConfig) -> stream.Signature:
    """A beat of the read stream; ``last`` of a range, ``spare`` items at the end of that."""
    bytes_ = data.ArrayLayout(unsigned(8), config.beat_bytes)
    return stream.Signature(data.StructLayout({"data": bytes_, "last": 1, "spare": unsigned(8)}))


class NewRows(CostedComponent):
    """Keys of a pass, or values, item after item and slot after slot.

    Parameters:
        config: of the accelerator.
        values: they lie a run behind the keys.

    Members:
        layers: In(stream layer()). One per layer.
        rows: In(stream rows(8, slots, chunk)). head_dim / chunk items per head, kv_heads heads per layer.
        own: In(4). Slots in use, from 1 on.
        places: Out(stream place(config)). ``own`` chunks per item.
        busy: Out(1). A layer is in work or offered.

    Latency: none from an item to its first place. Throughput: one place per cycle.
    """

    def __init__(self, *, config: AcceleratorConfig, values: bool) -> None:
        self._config, self._values = config, values
        super().__init__(
            lambda: {
                "layers": In(stream.Signature(layer())),
                "rows": In(stream.Signature(rows(8, config.slots, config.chunk))),
                "own": In(SLOT_BITS),
                "places": Out(stream.Signature(place(config))),
                "busy": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        config = self._config
        choice = 8 * config.chunk * -(-(config.slots - 1) // 4)  # LUTs: a slot's codes
        return Resources(lut=choice + 36 + 36, ff=36 + _RUN_BITS + 8 + 4)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, sink = self._config, self.places
        at, run, heads = Signal(36), Signal(_RUN_BITS), Signal(8)  # heads: that are left
        index, slot, ends = Signal.like(sink.p.index), Signal(SLOT_BITS), Signal()
        last = Signal(SLOT_BITS)  # slot in use; steady while a layer is in work
        m.d.sync += last.eq(self.own - 1)
        m.d.comb += [
            self.layers.ready.eq(heads == 0),
            self.busy.eq(self.layers.valid | (heads != 0)),
            sink.valid.eq(self.rows.valid & (heads != 0)),
            ends.eq(slot == last),
            self.rows.ready.eq(sink.ready & ends & (heads != 0)),
            sink.p.at.eq(at),
            sink.p.index.eq(index),
            sink.p.position.eq(slot),
        ]
        with m.Switch(slot):
            for number in range(config.slots):
                with m.Case(number):
                    codes = Cat(self.rows.payload[lane][number].as_unsigned() for lane in range(config.chunk))
                    m.d.comb += sink.p.codes.eq(codes)
        with m.If(sink.valid & sink.ready):
            m.d.sync += slot.eq(Mux(ends, 0, slot + 1))
            with m.If(ends):
                m.d.sync += index.eq(index + 1)
                with m.If(index == config.kv_layout.chunks - 1):
                    m.d.sync += [index.eq(0), heads.eq(heads - 1), at.eq(at + (run << 1))]
        with m.If(self.layers.valid & self.layers.ready):
            given = self.layers.p
            start = given.start + given.run if self._values else given.start
            m.d.sync += [at.eq(start), run.eq(given.run), heads.eq(given.kv_heads)]
        return m


class MovedRows(CostedComponent):
    """Accepted slots to the places behind the committed ones, where they are not there already.

    Parameters:
        config: of the accelerator.

    Members:
        copies: In(stream layout(Opcode.COPY)). One per layer.
        beats: In(cache_beats(config)). For each slot that moves, ascending, and each head: the group of its keys, head_dim /
            chunk beats, then of its values. ``last`` and ``spare`` are not looked at.
        committed: In(20). Positions before the pass.
        accepted: In(8). Bit i: slot i of the pass is accepted.
        places: Out(stream place(config)). One chunk per beat.
        busy: Out(1). A copy is in work or offered.

    Latency: 1 cycle per slot, and none from a beat to its place. Throughput: one place per cycle.
    """

    def __init__(self, *, config: AcceleratorConfig) -> None:
        self._config = config
        super().__init__(
            lambda: {
                "copies": In(stream.Signature(layout(Opcode.COPY))),
                "beats": In(cache_beats(config)),
                "committed": In(20),
                "accepted": In(8),
                "places": Out(stream.Signature(place(config))),
                "busy": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        config = self._config
        choice = 8 * config.chunk * -(-(config.kv_layout.positions - 1) // 4)  # LUTs: a lane's codes
        return Resources(lut=choice + 36 + 36 + 42, ff=36 + _RUN_BITS + 8 + 8 + 9)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sink, given, positions = self.places, self.copies.p, self._config.kv_layout.positions
        start, run, heads = Signal(36), Signal(_RUN_BITS), Signal(8)
        left, rank, moved = (
            Signal(8),
            Signal(SLOT_BITS),
            Signal(),
        )  # left: bit 0 is the slot's; moved: from its own place
        lane = Signal(range(positions))  # the slot's, in its group
        at, runs, index = Signal(36), Signal(9), Signal.like(sink.p.index)
        moves, ends, walks = Signal(), Signal(), Signal()
        m.d.comb += [
            self.copies.ready.eq(left == 0),
            self.busy.eq(self.copies.valid | (left != 0)),
            moves.eq(left[0] & moved),
            sink.valid.eq(self.beats.valid & moves),
            self.beats.ready.eq(sink.ready & moves),
            sink.p.at.eq(at),
            sink.p.index.eq(index),
            sink.p.position.eq(rank),
            sink.p.codes.eq(self.beats.p.data.as_value().word_select(lane, 8 * self._config.chunk)),
            ends.eq(index == self._config.kv_layout.chunks - 1),
            walks.eq((left != 0) & (~moves | (sink.valid & sink.ready & ends & (runs == 1)))),
        ]
        with m.If(sink.valid & sink.ready):
            m.d.sync += index.eq(Mux(ends, 0, index + 1))
            with m.If(ends):
                m.d.sync += [at.eq(at + run), runs.eq(runs - 1)]
        with m.If(walks):
            m.d.sync += [
                left.eq(left >> 1),
                rank.eq(rank + left[0]),
                moved.eq(moved | ~left[0]),  # from the first one left out on, all move
                lane.eq(lane + 1),
                at.eq(start),
                runs.eq(heads << 1),
            ]
        with m.If(self.copies.valid & self.copies.ready):
            m.d.sync += [
                *(start.eq(given.start), at.eq(given.start), run.eq(given.run)),
                *(heads.eq(given.heads), runs.eq(given.heads << 1), left.eq(self.accepted)),
                *(rank.eq(0), moved.eq(0), lane.eq(self.committed)),
            ]
        return m
