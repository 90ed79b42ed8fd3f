"""A controller for SDR SDRAM with AXI4 read and write ports."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.isa.registers import CAPTURE_PHASES, NOMINAL_PHASE
from edgedec.hw.memory.axi import Response, axi4_read, axi4_write
from edgedec.hw.system.sdram.chip import SdramChip
from edgedec.hw.system.sdram.segments import Segments
from edgedec.hw.system.sdram.sequencer import Sequencer, pins

__all__ = ["SdramController"]

_READ_BEATS, _READ_CHUNK = 512, 128  # beats of a read port's queue; beats of its longest segment
_WRITE_BEATS, _WRITE_CHUNK = 128, 32  # likewise for a write port
_ANSWERS = 32  # answers of a write port that may wait


class SdramController(CostedComponent):
    """Serve bytes 0 .. chip.bytes - 1 of the bus; a burst beyond is answered DECERR.

    Bursts must be INCR bursts of whole beats at addresses that are multiples of a beat, with id 0, as edgedec's masters
    issue them. Ports take turns, segment by segment. No port waits for another port's master: a segment begins once
    there is room for all beats that it reads, or all beats that it writes have arrived. Every read requested after a
    write was answered sees that write.

    Parameters:
        chip, clock_hz, registers: see ``Sequencer``.
        data_bytes: bytes of each port: 4, 8 or 16.
        reads, writes: numbers of ports of each kind, 1 to 4.
        address_bits: bits of an address on the bus.

    Members:
        read0 ..: In(AXI4 read channels).
        write0 ..: In(AXI4 write channels).
        phase: In(4). See ``Sequencer``.
        ready: Out(1). The chip is initialized; requests wait until then.
        pins: Out(pins(chip)).

    Latency: 11 cycles more than that of the Sequencer for an idle read.
    Throughput: one beat in data_bytes / 2 cycles, less the time of refreshes.
    Source: derived here.
    """

    def __init__(
        self,
        *,
        chip: SdramChip,
        clock_hz: float,
        data_bytes: int,
        reads: int = 2,
        writes: int = 2,
        address_bits: int = 40,
        registers: int = 0,
    ) -> None:
        check("reads", reads, 1, 4)
        check("writes", writes, 1, 4)
        self._chip, self._data_bytes, self._reads, self._writes = chip, data_bytes, reads, writes
        self._sequencer = Sequencer(
            chip=chip, clock_hz=clock_hz, data_bytes=data_bytes, ports=max(reads, writes), registers=registers
        )
        self._read_queues = [Fifo(shape=8 * data_bytes + 2, depth=_READ_BEATS, style="block") for _ in range(reads)]
        self._write_queues = [Fifo(shape=9 * data_bytes, depth=_WRITE_BEATS, style="block") for _ in range(writes)]
        self._answers = [Fifo(shape=1, depth=_ANSWERS, style="distributed") for _ in range(writes)]
        chunks = {f"reading{n}": _READ_CHUNK for n in range(reads)} | {
            f"writing{n}": _WRITE_CHUNK for n in range(writes)
        }
        self._cutters = {
            name: Segments(
                memory_bytes=chip.bytes,
                data_bytes=data_bytes,
                chunk=min(chunk, chip.row_bytes // data_bytes),
                address_bits=address_bits,
            )
            for name, chunk in chunks.items()
        }
        read = axi4_read(address_bits=address_bits, data_bytes=data_bytes)
        write = axi4_write(address_bits=address_bits, data_bytes=data_bytes)
        super().__init__(
            lambda: {
                **{f"read{n}": In(read) for n in range(reads)},
                **{f"write{n}": In(write) for n in range(writes)},
                "phase": In(range(CAPTURE_PHASES), init=NOMINAL_PHASE),
                "ready": Out(1),
                "pins": Out(pins(chip)),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; that of the controller's own logic is not calibrated."""
        reads, writes = self._reads, self._writes
        own = Resources(lut=40, ff=12) * reads + Resources(lut=50, ff=16) * writes
        arbiter = Resources(lut=20 * (reads + writes) + 9 * self._data_bytes, ff=3)
        queues = (*self._read_queues, *self._write_queues, *self._answers)
        return total(part.resources for part in (self._sequencer, *self._cutters.values(), *queues)) + own + arbiter

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.sequencer = chip = self._sequencer
        connect(m, chip.pins, flipped(self.pins))
        m.d.comb += [self.ready.eq(chip.ready), chip.phase.eq(self.phase)]
        queues = self._write_queues
        aw_done = [self._read(m, n) for n in range(self._reads)]
        aw_done += [self._write(m, n, queue) for n, queue in enumerate(queues)]
        self._give_write_data(m, queues)
        self._arbitrate(m, aw_done)
        return m

    def _cutter(self, m: Module, name: str) -> Segments:
        m.submodules[name] = cutter = self._cutters[name]
        return cutter

    def _read(self, m: Module, n: int) -> tuple[Segments, Any, Any]:
        """Connect a read port's queue. Return its segments, whether there is room for the next, and its start signal."""
        bus, cutter = getattr(self, f"read{n}"), self._cutter(m, f"reading{n}")
        m.submodules[f"read_queue{n}"] = queue = self._read_queues[n]
        room = Signal(range(_READ_BEATS + 1), init=_READ_BEATS)
        fits = Signal()
        begun = Signal()
        chip_read = self._sequencer.read
        read_data = Signal(8 * self._data_bytes)
        bad = Signal()
        read_beat = Signal(8 * self._data_bytes + 2)
        selected = Signal()
        m.d.sync += [
            read_beat.eq(Cat(chip_read.p.data, chip_read.p.bad, chip_read.p.last)),
            selected.eq(chip_read.valid & (chip_read.p.port == n)),
        ]
        m.d.comb += [
            cutter.bursts.p.address.eq(bus.araddr),
            cutter.bursts.p.len.eq(bus.arlen),
            cutter.bursts.valid.eq(bus.arvalid),
            bus.arready.eq(cutter.bursts.ready),
            queue.input.payload.eq(read_beat),
            queue.input.valid.eq(selected),
            Cat(read_data, bad, bus.rlast).eq(queue.output.payload),
            bus.rdata.eq(read_data),
            bus.rresp.eq(Mux(bad, Response.DECERR, Response.OKAY)),
            bus.rvalid.eq(queue.output.valid),
            queue.output.ready.eq(bus.rready),
        ]
        beats = cutter.segments.p.beats
        # A segment that fits now also fits later, because only this port's own segments take room.
        freed = Signal()
        m.d.sync += [
            freed.eq(bus.rvalid & bus.rready),
            fits.eq((room >= beats) & cutter.segments.valid & ~begun),
            room.eq(room + freed - Mux(begun, beats, 0)),
        ]
        return cutter, fits, begun

    def _write(self, m: Module, n: int, queue: Fifo) -> tuple[Segments, Any, Any]:
        """Connect a write port's queues. Return its segments, whether the next has its data, and its start signal."""
        bus, cutter = getattr(self, f"write{n}"), self._cutter(m, f"writing{n}")
        m.submodules[f"write_queue{n}"] = queue
        data_level = Signal(range(_WRITE_BEATS + 4))
        fits = Signal()
        begun = Signal()
        pending = Signal(range(_ANSWERS + 1))
        m.submodules[f"answers{n}"] = kept = self._answers[n]
        aw_done = Signal()
        b_done = Signal()
        room = Signal()
        bad = Signal()
        written = self._sequencer.written
        selected = Signal()
        m.d.comb += [
            cutter.bursts.p.address.eq(bus.awaddr),
            cutter.bursts.p.len.eq(bus.awlen),
            cutter.bursts.valid.eq(bus.awvalid & room),
            bus.awready.eq(cutter.bursts.ready & room),
            queue.input.payload.eq(Cat(bus.wdata, bus.wstrb)),
            queue.input.valid.eq(bus.wvalid),
            bus.wready.eq(queue.input.ready),
            kept.input.valid.eq(selected),
            kept.input.payload.eq(bad),
            bus.bvalid.eq(kept.output.valid),
            bus.bresp.eq(Mux(kept.output.payload, Response.DECERR, Response.OKAY)),
            kept.output.ready.eq(bus.bready),
        ]
        beats = cutter.segments.p.beats
        w_done = Signal()
        m.d.sync += [
            selected.eq(written.valid & (written.p.port == n)),
            bad.eq(written.p.bad),
            w_done.eq(bus.wvalid & bus.wready),
            fits.eq((data_level >= beats) & cutter.segments.valid & ~begun),
            data_level.eq(data_level + w_done - Mux(begun, beats, 0)),
            aw_done.eq(bus.awvalid & bus.awready),
            b_done.eq(bus.bvalid & bus.bready),
            pending.eq(pending + aw_done - b_done),
            room.eq(pending < _ANSWERS - 3),  # ``pending`` is late, so some more bursts may have begun
        ]
        return cutter, fits, begun

    def _give_write_data(self, m: Module, queues: list[Fifo]) -> None:
        chip = self._sequencer
        for n, queue in enumerate(queues):
            take = chip.write_take[n]
            m.d.comb += queue.output.ready.eq(take)
            with m.If(take):
                m.d.comb += Cat(chip.write_data, chip.write_strobes).eq(queue.output.payload)

    def _arbitrate(self, m: Module, aw_done: list[tuple[Segments, Any, Any]]) -> None:
        """Select the next port, after the last one, that has a segment; then issue the segment."""
        work, count = self._sequencer.work, len(aw_done)
        last = Signal(count, init=1)
        begins = Signal(count)
        free = Signal()
        wants = Cat(fits for _, fits, _ in aw_done)
        m.d.comb += free.eq((~work.valid | work.ready) & ~begins.any())
        with m.If(work.ready):
            m.d.sync += work.valid.eq(0)
        for n, (cutter, _, begun) in enumerate(aw_done):
            # If the last port was ``before``, the ports between it and this one come first.
            turn = Cat(
                last[before]
                & ~Cat(
                    wants[between % count] for between in range(before + 1, before + (n - before - 1) % count + 1)
                ).any()
                for before in range(count)
            ).any()
            m.d.sync += begins[n].eq(free & wants[n] & turn)
            offered, writes = cutter.segments, n >= self._reads
            m.d.comb += [begun.eq(begins[n]), offered.ready.eq(begun)]
            with m.If(begun):
                m.d.sync += [
                    work.valid.eq(1),
                    *(work.p[name].eq(offered.p[name]) for name in ("address", "beats", "bad", "final")),
                    work.p.write.eq(writes),
                    work.p.port.eq(n - self._reads if writes else n),
                    last.eq(1 << n),
                ]
