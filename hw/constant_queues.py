"""The queues of the constants: beats of the read stream become items, which wait for the units that take them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, ShapeLike, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.attention.coder import constants as coding_constants
from edgedec.hw.attention.parts import head_factor
from edgedec.hw.attention.rotary import angles
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.payloads import payload
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import CONSTANT_BEATS, AcceleratorConfig, constant_queues
from edgedec.hw.matrix.drain import row_constants
from edgedec.hw.memory.router import segment
from edgedec.hw.memory.unpacker import MixedUnpacker, Unpacker, mixed_segment

__all__ = ["KINDS", "ConstantQueues"]

KINDS = ("gains", "rows", "coding", "factors", "scales")  # constants that wait in queues


class ConstantQueues(CostedComponent):
    """Store the constants of an instruction before the data that they are used with, so that this data can pass.

    Beats of all kinds wait in one queue, are divided into items one after another, and the items wait in a queue of their
    kind. Angles have no queue; their unit takes them at once.

    Parameters:
        config: configuration of the accelerator; ``constant_queues`` of it has the items that each queue holds.

    Members:
        gains_beats, rows_beats, coding_beats, factors_beats, scales_beats: In(streams segment(beat_bytes)). At most one of
            them is valid in a cycle.
        angles_beats: In(stream segment(beat_bytes)).
        gains, scales: Out(streams of signed(16) [1], of unsigned(16) [1]). Gains of norms; V of docs/integer-profile.md.
        rows: Out(stream row_constants()). Bias, shift and weight of a row, as in Drain.
        coding: Out(stream edgedec.hw.attention.coder.constants()). As in AttentionPath.
        factors: Out(stream head_factor()). As in AttentionPath.
        angles: Out(stream angles(slots, 1)). As in AttentionPath.

    Latency: 7 cycles from the beat that completes an item if all queues are empty; of angles 1 cycle.
    Throughput: one item per cycle, of all kinds together; an item that is larger than a beat takes as many cycles as it
        has beats.
    Source: docs/accelerator.md, "The data path", and the formats of the items in "Programs".
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        slots, size = config.slots, config.beat_bytes
        self._slots, self._beat_bytes, self._kinds = slots, size, _constants(config)
        self._beats = Fifo(shape=mixed_segment(size, len(KINDS)), depth=CONSTANT_BEATS, style="block")
        # Items that fit a beat share an unpacker; those of narrow accelerators that do not are joined in their own.
        items = {name: constant.item_bytes for name, constant in self._kinds.items()}
        self._mixed = [name for name in KINDS if items[name] <= size]
        self._mixed_unpacker = MixedUnpacker(beat_bytes=size, item_bytes=[items[name] for name in self._mixed])
        large = {name: items[name] for name in KINDS if name not in self._mixed}
        self._unpackers = {
            name: Unpacker(beat_bytes=size, item_bytes=item_bytes)
            for name, item_bytes in {"angles": _angles_item_bytes(slots), **large}.items()
        }
        self._queues = {
            name: Fifo(shape=constant.shape, depth=constant.items, style="block")
            for name, constant in self._kinds.items()
        }
        beats = In(stream.Signature(segment(size)))
        super().__init__(
            lambda: {
                **{f"{name}_beats": beats for name in (*KINDS, "angles")},
                **{name: Out(stream.Signature(constant.shape)) for name, constant in self._kinds.items()},
                "angles": Out(stream.Signature(angles(slots, 1))),
            }
        )

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of the cost by submodule; that of the logic between them is in the glue of the data path."""
        return {
            "beats": self._beats.resources,
            "unpack": self._mixed_unpacker.resources,
            **{f"unpack_{name}": part.resources for name, part in self._unpackers.items()},
            **{f"queue_{name}": part.resources for name, part in self._queues.items()},
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        for name, item in self._items(m).items():
            m.submodules[f"queue_{name}"] = queue = self._queues[name]
            m.d.comb += [
                *_packed(name, item.payload, queue.input.payload),
                queue.input.valid.eq(item.valid),
                item.ready.eq(queue.input.ready),
            ]
            connect(m, queue.output, flipped(getattr(self, name)))
        item = self._unpacked(m, "angles", flipped(self.angles_beats))
        turn = Signal(self.angles.payload.shape())
        for slot in range(self._slots):
            m.d.comb += [
                turn.cos[0][slot].eq(item.payload[32 * slot : 32 * slot + 16]),
                turn.sin[0][slot].eq(item.payload[32 * slot + 16 : 32 * slot + 32]),
            ]
        m.d.comb += [
            self.angles.payload.eq(turn),
            self.angles.valid.eq(item.valid),
            item.ready.eq(self.angles.ready),
        ]
        return m

    def _items(self, m: Module) -> dict[str, Any]:
        """Queue all constants as beats, and return the stream of the items of each kind. They are unpacked item by item,
        several to a beat, and must not delay the weights that follow them meanwhile.
        """
        m.submodules.beats, m.submodules.unpack = queue, mixed = self._beats, self._mixed_unpacker
        sources = [getattr(self, f"{name}_beats") for name in KINDS]
        m.d.comb += queue.input.valid.eq(Cat(port.valid for port in sources).any())
        for number, port in enumerate(sources):
            m.d.comb += port.ready.eq(queue.input.ready)
            with m.If(port.valid):  # the router makes at most one of them valid
                m.d.comb += [queue.input.p.segment.eq(port.payload), queue.input.p.kind.eq(number)]
        items = {}
        source = queue.output
        chosen = Signal()
        m.d.comb += mixed.beats.p.segment.eq(source.p.segment)
        for number, name in enumerate(KINDS):
            if name in self._mixed:
                kind = self._mixed.index(name)
                with m.If(source.p.kind == number):
                    m.d.comb += [mixed.beats.p.kind.eq(kind), chosen.eq(1), source.ready.eq(mixed.beats.ready)]
                items[name] = self._split(m, name, kind)
            else:
                stored = stream.Signature(segment(self._beat_bytes)).create(path=(f"stored_{name}",))
                selected = source.p.kind == number
                m.d.comb += [stored.payload.eq(source.p.segment), stored.valid.eq(source.valid & selected)]
                with m.If(selected):
                    m.d.comb += source.ready.eq(stored.ready)
                items[name] = self._unpacked(m, name, stored)
        m.d.comb += mixed.beats.valid.eq(source.valid & chosen)
        return items

    def _split(self, m: Module, name: str, kind: int) -> Any:
        """Return the stream of one kind of the items that share an unpacker."""
        items = self._mixed_unpacker.items
        port = stream.Signature(items.p.item.shape()).create(path=(f"item_{name}",))
        m.d.comb += [port.payload.eq(items.p.item), port.valid.eq(items.valid & (items.p.kind == kind))]
        with m.If(items.p.kind == kind):
            m.d.comb += items.ready.eq(port.ready)
        return port

    def _unpacked(self, m: Module, name: str, source: Any) -> Any:
        m.submodules[f"unpack_{name}"] = unpacker = self._unpackers[name]
        connect(m, source, unpacker.beats)
        return unpacker.items


def _angles_item_bytes(slots: int) -> int:
    """Return the bytes of an item of angles: s16 cos and s16 sin of each slot, padded to a power of two."""
    return 1 << (4 * slots - 1).bit_length()


@dataclass(frozen=True, kw_only=True)
class _Constant:
    """A kind of constant: bytes of an item in memory, most items of an instruction, and an item as its unit takes it."""

    item_bytes: int
    items: int
    shape: ShapeLike


def _constants(config: AcceleratorConfig) -> Mapping[str, _Constant]:
    items = constant_queues(config)
    kinds: dict[str, tuple[int, ShapeLike]] = {
        "gains": (2, data.ArrayLayout(signed(16), 1)),
        "rows": (8, payload(row_constants())),
        "coding": (8, coding_constants()),
        "factors": (4, head_factor()),
        "scales": (2, data.ArrayLayout(unsigned(16), 1)),
    }
    return {name: _Constant(item_bytes=size, items=items[name], shape=shape) for name, (size, shape) in kinds.items()}


def _packed(name: str, item: Any, sink: Any) -> list[Any]:
    """Return the assignments of an item, laid out as in docs/accelerator.md, to the fields of a constant."""
    if name in ("gains", "scales"):
        return [sink[0].eq(item)]
    if name == "rows":
        return [sink.bias[0].eq(item[:27]), sink.shift[0].eq(item[27:32]), sink.weight[0].eq(item[32:48])]
    if name == "coding":
        return [sink.mantissa.eq(item[:16]), sink.middle.eq(item[32:50])]
    return [sink.factor.eq(item[:16]), sink.shift.eq(item[16:22])]
