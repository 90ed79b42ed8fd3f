"""Places of the writes of a layer's keys, or of its values: those of a pass and those that a commit moves."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.instruction_layouts import layout
from edgedec.hw.blocks.payloads import rows
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Opcode

__all__ = [
    "MovedRows",
    "NewRows",
    "cache_beats",
    "layer",
    "place",
]

SLOT_BITS = 4  # bits of a number of slots
_RUN_BITS = 24  # bits of a run's length in beats


def layer() -> data.StructLayout:
    """Return the description of a layer.

    Members:
        start: beats from kv_address to the layer.
        run: beats from a head's keys to its values, and from there to the next head's keys.
        kv_heads: number of key-value heads.
        ring: the layer keeps its rows in a ring.
    """
    return data.StructLayout({"start": unsigned(36), "run": unsigned(_RUN_BITS), "kv_heads": unsigned(8), "ring": 1})


def place(config: AcceleratorConfig) -> data.StructLayout:
    """Return the layout of a chunk and its place.

    Members:
        at: beats from kv_address to the head's keys, or values.
        index: number of the chunk in the head.
        position: position, counted from the first uncommitted one.
        codes: bytes of the chunk, lowest address first.
        ring: the layer keeps its rows in a ring; only if the configuration has rings.
    """
    return data.StructLayout(
        {
            "at": unsigned(36),
            "index": unsigned(max(1, (config.kv_layout.chunks - 1).bit_length())),
            "position": unsigned(SLOT_BITS),
            "codes": unsigned(8 * config.chunk),
            **({"ring": 1} if config.ring else {}),
        }
    )


def cache_beats(config: AcceleratorConfig) -> stream.Signature:
    """Return a stream of beats of the read stream; ``last`` ends a range and has ``spare`` unused items at its end."""
    bytes_ = data.ArrayLayout(unsigned(8), config.beat_bytes)
    return stream.Signature(data.StructLayout({"data": bytes_, "last": 1, "spare": unsigned(8)}))


class NewRows(CostedComponent):
    """Place the keys of a pass, or its values, item after item and slot after slot.

    Parameters:
        config: configuration of the accelerator.
        values: whether the rows are values, which lie one run after the keys.

    Members:
        layers: In(stream layer()). One item per layer.
        rows: In(stream rows(8, slots, chunk)). head_dim / chunk items per head, kv_heads heads per layer.
        own: In(4). Number of slots in use, at least 1.
        places: Out(stream place(config)). ``own`` chunks per item.
        busy: Out(1). A layer is in progress or offered.

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
        at = Signal(36)
        run = Signal(_RUN_BITS)
        heads = Signal(8)  # number of heads left
        active = Signal()  # heads are left
        index = Signal.like(sink.p.index)
        slot = Signal(SLOT_BITS)
        ends = Signal()
        last = Signal(SLOT_BITS)  # last slot in use; steady while a layer is in progress
        m.d.sync += last.eq(self.own - 1)
        m.d.comb += [
            self.layers.ready.eq(~active),
            self.busy.eq(self.layers.valid | active),
            sink.valid.eq(self.rows.valid & active),
            ends.eq(slot == last),
            self.rows.ready.eq(sink.ready & ends & active),
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
                    m.d.sync += [index.eq(0), heads.eq(heads - 1), active.eq(heads != 1), at.eq(at + (run << 1))]
        if config.ring:
            ring = Signal()
            m.d.comb += sink.p.ring.eq(ring)
            with m.If(self.layers.valid & self.layers.ready):
                m.d.sync += ring.eq(self.layers.p.ring)
        with m.If(self.layers.valid & self.layers.ready):
            layer_ = self.layers.p
            start = layer_.start + layer_.run if self._values else layer_.start
            m.d.sync += [at.eq(start), run.eq(layer_.run), heads.eq(layer_.kv_heads), active.eq(layer_.kv_heads != 0)]
        return m


class MovedRows(CostedComponent):
    """Place accepted slots after the committed ones, if they are not there already.

    Parameters:
        config: configuration of the accelerator.

    Members:
        copies: In(stream layout(Opcode.COPY)). One item per layer.
        beats: In(cache_beats(config)). For each slot that moves, in ascending order, and each head: the group of its
            keys, head_dim / chunk beats, then that of its values. ``last`` and ``spare`` are ignored.
        committed: In(20). Number of positions before the pass.
        accepted: In(8). Bit i is set if slot i of the pass is accepted.
        places: Out(stream place(config)). One chunk per beat.
        busy: Out(1). A copy is in progress or offered.

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
        sink, copy, positions = self.places, self.copies.p, self._config.kv_layout.positions
        start = Signal(36)
        run = Signal(_RUN_BITS)
        heads = Signal(8)
        # left: accepted bits, bit 0 for the current slot; moved: the slot leaves its own place.
        left = Signal(8)
        rank = Signal(SLOT_BITS)
        moved = Signal()
        lane = Signal(range(positions))  # position of the slot in its group
        at = Signal(36)
        runs = Signal(9)
        index = Signal.like(sink.p.index)
        moves = Signal()
        ends = Signal()
        walks = Signal()
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
                moved.eq(moved | ~left[0]),  # all slots after the first rejected one move
                lane.eq(lane + 1),
                at.eq(start),
                runs.eq(heads << 1),
            ]
        if self._config.ring:
            ring = Signal()
            m.d.comb += sink.p.ring.eq(ring)
            with m.If(self.copies.valid & self.copies.ready):
                m.d.sync += ring.eq(copy.ring)
        with m.If(self.copies.valid & self.copies.ready):
            m.d.sync += [
                *(start.eq(copy.start), at.eq(copy.start), run.eq(copy.run)),
                *(heads.eq(copy.heads), runs.eq(copy.heads << 1), left.eq(self.accepted)),
                *(rank.eq(0), moved.eq(0), lane.eq(self.committed)),
            ]
        return m
