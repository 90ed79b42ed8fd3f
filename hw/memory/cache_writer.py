"""Writes of new keys and values to the cache in memory, and moves of accepted ones to their final places."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.constant_product import product
from edgedec.hw.blocks.instruction_layouts import layout
from edgedec.hw.blocks.payloads import beat, rows
from edgedec.hw.blocks.pipeline import carried, check, fork, pipeline
from edgedec.hw.blocks.register_slice import RegisterSlice
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Opcode
from edgedec.hw.isa.striping import block_bytes
from edgedec.hw.memory.axi import beats_log2, requests
from edgedec.hw.memory.new_rows import (
    SLOT_BITS,
    MovedRows,
    NewRows,
    cache_beats,
    layer,
    place,
)

__all__ = ["CacheWriter"]

_STAGES = 4  # registers from a place to its address, without a ring
_LENGTH_BITS = 32  # bits of a request's length in bytes


class CacheWriter(CostedComponent):
    """Write every chunk to its physical place (edgedec.hw.isa.striping) with one short write.

    Keys and values of a layer arrive and leave independently; keys of the next layer may be written before all values
    of the last one have arrived.

    Parameters:
        config: configuration of the accelerator.
        address_bits: bits of an address on the bus, 16 to 64.

    Members:
        layers: In(stream layer()). One item per layer, taken once all keys and values of the previous one have arrived.
        new_keys, new_values: In(stream rows(8, slots, chunk)). head_dim / chunk items per head, head after head. Slot i
            is written at position committed + i, if i < own.
        copies: In(stream layout(Opcode.COPY)). One item per layer of a commit, with at least 1 head.
        beats: In(cache_beats(config)). Beats for ``MovedRows``: slot i moves to committed + (number of accepted slots
            before it). The rows of a ring lie at the places that ``CacheRows`` of edgedec.hw.isa.kv_layout defines.
        own: In(4). Slots of the pass, at least 1. Steady while not idle, as are ``committed``, ``accepted``,
            ``kv_address``.
        committed: In(20). Number of positions before the pass.
        accepted: In(8). Slots to keep, bit i for slot i.
        place: In. Row of position ``committed`` in a ring, steady likewise; only if the configuration has rings.
        rows: In(20), an array of the slots. Row of each slot, and of a sequence's i-th position in a commit; only if it has
            several sequences. It takes the place of ``committed``, of which the lane in a group is used.
        kv_address: In(64). Address of the cache, a multiple of ``block_bytes(ports)``.
        requests: Out(stream {address, bytes}). One chunk each, which lies within a beat.
        data: Out(beat(port_bytes)). One beat per request, with the chunk in all lanes that it may have.
        idle: Out(1). Nothing is in progress or offered.

    Latency: 6 cycles from an item to its first request. Throughput: one chunk per cycle.
    Source: derived here.
    """

    def __init__(self, config: AcceleratorConfig, *, address_bits: int = 40) -> None:
        check("address_bits", address_bits, 16, 64)
        self._config, self._address_bits = config, address_bits
        self._keys, self._values = NewRows(config=config, values=False), NewRows(config=config, values=True)
        self._moved = MovedRows(config=config)
        self._places = RegisterSlice(shape=place(config))
        self._address_and_codes = data.StructLayout({"address": address_bits, "codes": 8 * config.chunk})
        self._located = RegisterSlice(shape=self._address_and_codes)
        item = stream.Signature(rows(8, config.slots, config.chunk))
        super().__init__(
            lambda: {
                "layers": In(stream.Signature(layer())),
                "new_keys": In(item),
                "new_values": In(item),
                "copies": In(stream.Signature(layout(Opcode.COPY))),
                "beats": In(cache_beats(config)),
                "own": In(SLOT_BITS),
                "committed": In(20),
                "accepted": In(8),
                **({"place": In(range(config.ring.rows))} if config.ring else {}),
                **({"rows": In(data.ArrayLayout(unsigned(20), config.slots))} if config.sequences > 1 else {}),
                "kv_address": In(64),
                "requests": Out(requests(address_bits, _LENGTH_BITS)),
                "data": Out(beat(config.port_bytes)),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        config, address_bits = self._config, self._address_bits
        codes, beats = 8 * config.chunk, address_bits - beats_log2(config.beat_bytes)
        choice = Resources(lut=codes + 36 + 12)
        address = Resources(
            lut=36 + 21 + 21 * (config.kv_layout.chunks.bit_count() - 1) + beats + address_bits - 12,
            ff=21 + 36 + 26 + beats + 8 + address_bits + _STAGES,
        )
        shift_registers = Resources(lut=codes, ff=64)
        rings = Resources(lut=3 * 21, ff=21 + 36 + 2) if config.ring else Resources()
        if config.sequences > 1:
            rings = Resources(lut=20 * -(-config.slots // 4) - 20)
        parts = total(part.resources for part in (self._keys, self._values, self._moved, self._places, self._located))
        return parts + choice + address + shift_registers + rings

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.keys, m.submodules.values = keys, values = self._keys, self._values
        m.submodules.moved = moved = self._moved
        fork(m, self.layers, [keys.layers, values.layers])
        connect(m, flipped(self.new_keys), keys.rows)
        connect(m, flipped(self.new_values), values.rows)
        connect(m, flipped(self.copies), moved.copies)
        connect(m, flipped(self.beats), moved.beats)
        m.d.comb += [
            *(keys.own.eq(self.own), values.own.eq(self.own)),
            *(moved.committed.eq(self.committed), moved.accepted.eq(self.accepted)),
        ]
        m.submodules.places = places = self._places
        self._choose(m, [moved.places, keys.places, values.places], places.input)
        in_progress = self._locate(m, places.output)
        busy = (keys.busy, values.busy, moved.busy, places.output.valid, in_progress)
        m.d.comb += self.idle.eq(~Cat(self.layers.valid, *busy).any())
        return m

    def _choose(self, m: Module, sources: list[Any], sink: Any) -> None:
        """Choose moves before all others, and keys and values in turn."""
        moved, keys, values = sources
        turn = Signal()  # values come first if both are offered
        with m.If(sink.valid & sink.ready):
            m.d.sync += turn.eq(~turn)
        with m.If(moved.valid):
            connect(m, moved, sink)
        with m.Elif(values.valid & (turn | ~keys.valid)):
            connect(m, values, sink)
        with m.Else():
            connect(m, keys, sink)

    def _locate(self, m: Module, source: Any) -> Any:
        """Compute the address of each chunk. Return whether one is in progress."""
        config, kv = self._config, self._config.kv_layout
        wide = beats_log2(kv.positions)
        stages = _STAGES + bool(config.ring)
        located = stream.Signature(self._address_and_codes).create()
        m.submodules.located = located_slice = self._located
        enable, valids = pipeline(m, located, source.valid, stages)
        connect(m, located, located_slice.input)
        m.d.comb += source.ready.eq(enable)
        row = self._row(m, enable, source.p)
        at = carried(m, enable, source.p.at + source.p.index, stages - 2)
        group = carried(m, enable, product(row >> wide, kv.chunks))
        within = carried(m, enable, at + group)  # beats from kv_address on
        lane = carried(m, enable, row[:wide], 2)
        m.d.comb += [
            located.p.address.eq(carried(m, enable, self._physical(within, lane), name="address")),
            located.p.codes.eq(carried(m, enable, source.p.codes, stages)),
        ]
        request = stream.Signature(located.p.shape()).create()
        beat_data = stream.Signature(located.p.shape()).create()
        fork(m, located_slice.output, [request, beat_data])
        m.d.comb += [
            self.requests.p.address.eq(request.p.address),
            self.requests.p.bytes.eq(config.chunk),
            self.requests.valid.eq(request.valid),
            request.ready.eq(self.requests.ready),
            self.data.payload.eq(beat_data.p.codes.replicate(config.port_bytes // config.chunk)),
            self.data.valid.eq(beat_data.valid),
            beat_data.ready.eq(self.data.ready),
        ]
        return Cat(valids, located_slice.output.valid).any()

    def _row(self, m: Module, enable: Any, item: Any) -> Any:
        """Return the row of an item's position after one register, or after two if there are rings."""
        ring = self._config.ring
        if self._config.sequences > 1:
            return carried(
                m, enable, Array(self.rows[one] for one in range(self._config.slots))[item.position], name="position"
            )
        if ring is None:
            return carried(m, enable, self.committed + item.position, name="position")
        less = Signal(signed(len(self.place) + 1))
        m.d.sync += less.eq(self.place - ring.rows)
        position = carried(m, enable, Mux(item.ring, self.place, self.committed) + item.position)
        wrapped = carried(m, enable, less + item.position)  # negative before the end of the ring
        passed = carried(m, enable, item.ring) & ~wrapped[-1]
        return carried(m, enable, Mux(passed, wrapped, position)[: len(position)], name="row")

    def _physical(self, beats: Any, lane: Any) -> Any:
        """Return the address of chunk ``lane`` of a beat, counted from kv_address: ``striping.physical_address`` in bits."""
        config = self._config
        chunk, port = beats_log2(config.chunk), beats_log2(config.port_bytes)
        block = beats_log2(block_bytes(config.ports))
        logical = Cat(lane, beats)[: self._address_bits - chunk]  # logical address in chunks
        byte, number, inside, above = (
            logical[: port - chunk],
            logical[port - chunk : port - chunk + beats_log2(config.ports)],
            logical[port - chunk + beats_log2(config.ports) : block - chunk],
            logical[block - chunk :],
        )
        high = (self.kv_address[block : self._address_bits] + above)[: self._address_bits - block]
        return Cat(byte.shift_left(chunk), inside, number, high)
