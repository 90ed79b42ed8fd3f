"""Distribution of the read stream to the units that consume it."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.payloads import beat
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import FIELDS, Destination, Opcode

__all__ = ["Router", "entry", "port", "segment"]

_QUEUED = 32  # segments whose beats are still to come; enough that short ones do not hold the prefetcher back


def entry() -> data.StructLayout:
    """Return the layout of a segment's description: destination, length in beats, unused items at its end (or 0)."""
    return data.StructLayout({name: FIELDS[Opcode.READ][name] for name in ("destination", "beats", "spare")})


def segment(beat_bytes: int) -> data.StructLayout:
    """Return the layout of a beat of a segment; ``spare`` of the last one counts unused items at its end, others have 0."""
    return data.StructLayout({"data": data.ArrayLayout(unsigned(8), beat_bytes), "last": 1, "spare": unsigned(8)})


def port(destination: Destination) -> str:
    """Return the name of the Router's output for a destination."""
    return destination.name.lower()


class Router(CostedComponent):
    """Distribute the beats, segment by segment.

    Parameters:
        config: configuration of the accelerator, of which beat_bytes matters.

    Members:
        entries: In(stream ``entry()``). Segments in the order of their beats. A segment of 0 beats is dropped.
        beats: In(beat(beat_bytes)). A beat waits until its entry is there.
        load, angles, gains, weights, rows, coding, factors, scales, keys_values, copy, program: Out(stream
            ``segment(beat_bytes)``). The beats of an unknown destination are taken and dropped.

    Latency: 1 cycle from a beat to its output; 2 from an entry to the first beat that is taken for it.
    Throughput: one beat per cycle, across segments too.
    Source: derived here. A single register of one beat serves all outputs.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        out = Out(stream.Signature(segment(config.beat_bytes)))
        self._config = config
        super().__init__(
            lambda: {
                "entries": In(stream.Signature(entry())),
                "beats": In(beat(config.beat_bytes)),
                **{port(destination): out for destination in Destination},
            }
        )

    @property
    def resources(self) -> Resources:
        config = self._config
        outputs = len(Destination)
        counters = Resources(lut=9 * outputs + 10, ff=2 * outputs + 24 + 8)
        return counters + small_queue(entry().size, _QUEUED) + Resources(lut=8, ff=8 * config.beat_bytes + 9)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = SyncFIFO(width=entry().size, depth=_QUEUED)
        due = data.View(entry(), queue.r_data)
        outputs = [getattr(self, port(destination)) for destination in Destination]
        held = Signal(outputs[0].p.shape(), reset_less=True)
        valid = Signal(len(outputs))  # one bit for each output: the held beat is for it
        goal = Signal(len(outputs))  # one bit for each output: the arriving beats are for it
        left, spare, final = Signal(entry()["beats"].shape), Signal(entry()["spare"].shape), Signal()
        do_move, do_read = Signal(), Signal()
        m.d.comb += [
            queue.w_data.eq(Value.cast(self.entries.payload)),
            queue.w_en.eq(self.entries.valid & (self.entries.p.beats != 0)),
            self.entries.ready.eq(queue.w_rdy),
            do_move.eq(~valid.any() | Cat(o.ready & o.valid for o in outputs).any()),
            self.beats.ready.eq(do_move & (left != 0)),
            do_read.eq(self.beats.ready & self.beats.valid),
            final.eq(left == 1),
            queue.r_en.eq((left == 0) | (do_read & final)),
            *(output.payload.eq(held) for output in outputs),
            *(output.valid.eq(bit) for output, bit in zip(outputs, valid, strict=True)),
        ]
        with m.If(do_move):
            m.d.sync += valid.eq(Mux(do_read, goal, 0))
        with m.If(do_read):
            m.d.sync += [
                held.data.eq(self.beats.payload),
                held.last.eq(final),
                held.spare.eq(Mux(final, spare, 0)),
                left.eq(left - 1),
            ]
        with m.If(queue.r_rdy & queue.r_en):
            m.d.sync += [
                left.eq(due.beats),
                spare.eq(due.spare),
                goal.eq(Cat(due.destination == d for d in Destination)),
            ]
        return m
