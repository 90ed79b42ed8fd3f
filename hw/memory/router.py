"""Distribution of the read stream to the units that consume it."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.payloads import beat
from edgedec.hw.blocks.register_slice import RegisterSlice
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
    Source: derived here. A single RegisterSlice serves all outputs, so that ``beats.ready`` comes from registers.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        out = Out(stream.Signature(segment(config.beat_bytes)))
        self._routed = data.StructLayout({"goal": len(Destination), "segment": segment(config.beat_bytes)})
        self._slice = RegisterSlice(shape=self._routed)
        super().__init__(
            lambda: {
                "entries": In(stream.Signature(entry())),
                "beats": In(beat(config.beat_bytes)),
                **{port(destination): out for destination in Destination},
            }
        )

    @property
    def resources(self) -> Resources:
        outputs = len(Destination)
        counter = Resources(lut=92, ff=24 + 8 + 2 + outputs)
        return counter + small_queue(entry().size, _QUEUED) + self._slice.resources + Resources(lut=2 * outputs)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = SyncFIFO(width=entry().size, depth=_QUEUED)
        m.submodules.slice = cut = self._slice
        due = data.View(entry(), queue.r_data)
        goal = Signal(len(Destination))  # one bit for each output: the arriving beats are for it
        left = Signal(entry()["beats"].shape)
        spare = Signal(entry()["spare"].shape)
        # Registered comparisons of ``left`` with 0 and 1: beats of a segment are still to come, and the next is the last.
        active = Signal()
        final = Signal()
        do_read = Signal()
        m.d.comb += [
            queue.w_data.eq(Value.cast(self.entries.payload)),
            queue.w_en.eq(self.entries.valid & (self.entries.p.beats != 0)),
            self.entries.ready.eq(queue.w_rdy),
            cut.input.p.goal.eq(goal),
            cut.input.p.segment.data.eq(self.beats.payload),
            cut.input.p.segment.last.eq(final),
            cut.input.p.segment.spare.eq(Mux(final, spare, 0)),
            cut.input.valid.eq(self.beats.valid & active),
            self.beats.ready.eq(cut.input.ready & active),
            do_read.eq(self.beats.ready & self.beats.valid),
            queue.r_en.eq(~active | (do_read & final)),
        ]
        with m.If(do_read):
            m.d.sync += [left.eq(left - 1), final.eq(left == 2), active.eq(~final)]
        with m.If(queue.r_rdy & queue.r_en):
            m.d.sync += [
                left.eq(due.beats),
                final.eq(due.beats == 1),
                active.eq(1),
                spare.eq(due.spare),
                goal.eq(Cat(due.destination == d for d in Destination)),
            ]
        source, outputs = cut.output, [getattr(self, port(destination)) for destination in Destination]
        taken = Cat(output.ready & bit for output, bit in zip(outputs, source.p.goal, strict=True)).any()
        m.d.comb += [
            *(output.payload.eq(source.p.segment) for output in outputs),
            *(output.valid.eq(source.valid & bit) for output, bit in zip(outputs, source.p.goal, strict=True)),
            source.ready.eq(taken | ~source.p.goal.any()),
        ]
        return m
