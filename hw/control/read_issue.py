"""Issue of reads: ranges go to the read stream, their descriptions to the router. A failed range is traced to its start."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.ram_cost import distributed_luts
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.shallow_fifo import ShallowFifo
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.program_memory import index_bits
from edgedec.hw.isa.instructions import FIELDS, Opcode
from edgedec.hw.memory.axi import NUMBER_BITS, beats_log2
from edgedec.hw.memory.router import entry

__all__ = ["ReadIssue", "ranges", "read", "read_errors"]

_QUEUED = 4  # reads that may wait
_REMEMBERED = 32  # ranges kept for error reports; more than the Prefetcher takes before the first of them ends
_BEATS_BITS = FIELDS[Opcode.READ]["beats"]  # bits of a range's length in beats


def ranges(config: AcceleratorConfig, address_bits: int) -> data.StructLayout:
    """Return the layout of a range as the Prefetcher takes it."""
    return data.StructLayout({"start": address_bits - beats_log2(config.beat_bytes), "beats": _BEATS_BITS})


def read(config: AcceleratorConfig, address_bits: int) -> data.StructLayout:
    """Return the layout of a read: a range, its entry for the Router, and the number of its instruction."""
    members = {**dict(ranges(config, address_bits)), **dict(entry())}
    shapes = {name: field.shape for name, field in members.items()}
    return data.StructLayout({**shapes, "index": index_bits(config)})


def read_errors() -> stream.Signature:
    """Return the stream of errors that the Prefetcher reports."""
    return stream.Signature(data.StructLayout({"port": 2, "request": NUMBER_BITS, "response": 2}), always_ready=True)


class ReadIssue(CostedComponent):
    """A queue, a fork, and a memory of the latest ranges.

    Parameters:
        config: configuration of the accelerator, of which beat_bytes and instructions matter.
        address_bits: bits of an address on the bus, 16 to 64.

    Members:
        reads: In(stream ``read(config, address_bits)``).
        ranges: Out(stream ``ranges(config, address_bits)``).
        entries: Out(stream ``entry()``).
        stopped: In(1). Neither take nor offer anything.
        waiting: Out(1). A read is not yet passed on.
        errors: In(read_errors()). Ranges are counted from 0 after a reset, as the Prefetcher does after its flush.
        failed: Out(1). High for one cycle after an error, in which ``index`` and ``address`` are valid.
        index: Out. Number of the instruction.
        address: Out(64). Logical byte address of the range's start.

    Latency: 1 cycle from a read to its range and entry; 1 from an error to ``failed``.
    Throughput: one read per cycle.
    Source: derived here.
    """

    def __init__(self, config: AcceleratorConfig, *, address_bits: int = 40) -> None:
        check("address_bits", address_bits, 16, 64)
        self._config, self._read = config, read(config, address_bits)
        self._start_bits = address_bits - beats_log2(config.beat_bytes)
        super().__init__(
            lambda: {
                "reads": In(stream.Signature(self._read)),
                "ranges": Out(stream.Signature(ranges(config, address_bits))),
                "entries": Out(stream.Signature(entry())),
                "stopped": In(1),
                "waiting": Out(1),
                "errors": In(read_errors()),
                "failed": Out(1),
                "index": Out(index_bits(config)),
                "address": Out(64),
            }
        )

    @property
    def resources(self) -> Resources:
        entry_bits = self._start_bits + index_bits(self._config)
        memory = Resources(lut=distributed_luts(entry_bits, _REMEMBERED), ff=entry_bits + 6)
        return small_queue(self._read.size, _QUEUED) + memory + Resources(lut=8, ff=2)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = ShallowFifo(shape=self._read, depth=_QUEUED)
        due = queue.output.p
        sinks = (self.ranges, self.entries)
        taken = [Signal(name=f"{name}_taken") for name in ("range", "entry")]
        offered = Signal()
        both = Signal()
        m.d.comb += [
            Value.cast(queue.input.payload).eq(Value.cast(self.reads.payload)),
            queue.input.valid.eq(self.reads.valid & ~self.stopped),
            self.reads.ready.eq(queue.input.ready & ~self.stopped),
            offered.eq(queue.output.valid & ~self.stopped),
            both.eq(Cat(taken_before | sink.ready for taken_before, sink in zip(taken, sinks, strict=True)).all()),
            queue.output.ready.eq(offered & both),
            self.waiting.eq(queue.output.valid),
            *(self.ranges.p[name].eq(due[name]) for name in ("start", "beats")),
            *(self.entries.p[name].eq(due[name]) for name in ("destination", "beats", "spare")),
        ]
        for taken_before, sink in zip(taken, sinks, strict=True):
            m.d.comb += sink.valid.eq(offered & ~taken_before)
            with m.If(offered):
                m.d.sync += taken_before.eq((taken_before | sink.ready) & ~both)
        self._remember(m, due)
        return m

    def _remember(self, m: Module, due: Any) -> None:
        kept = data.StructLayout({"start": self._read["start"].shape, "index": self._read["index"].shape})
        m.submodules.memory = memory = Memory(shape=kept, depth=_REMEMBERED, init=[])
        write = memory.write_port()
        read_port = memory.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(self.ranges.valid & self.ranges.ready),
            write.data.start.eq(due.start),
            write.data.index.eq(due.index),
            read_port.addr.eq(self.errors.p.request),
        ]
        with m.If(write.en):
            m.d.sync += write.addr.eq(write.addr + 1)
        m.d.sync += [
            self.failed.eq(self.errors.valid),
            self.index.eq(read_port.data.index),
            self.address.eq(Cat(Const(0, beats_log2(self._config.beat_bytes)), read_port.data.start)),
        ]
