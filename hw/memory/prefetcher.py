"""The single in-order read stream of the accelerator, over one to four ports: weights, keys and values, constants."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, ResetInserter, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import Fifo, small_queue
from edgedec.hw.blocks.payloads import beat
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.memory.axi import BOUNDARY_BYTES, NUMBER_BITS, axi4_read, beats_log2
from edgedec.hw.memory.read_master import ReadMaster

__all__ = ["Prefetcher"]

_BOUNDARY_BITS = beats_log2(BOUNDARY_BYTES)
_QUEUED = 4  # ranges that a port may lag the fastest one
_LEAD = 16  # beats that a port may lead the slowest one; a power of two that exceeds the latency of the queues
_LATE = 3  # beats that may still arrive at a queue after its level was read: RREADY and the data are registered


class Prefetcher(CostedComponent):
    """Read ranges of beats over all ports at once: slice p of a beat comes from port p, as ``edgedec.hw.isa.striping`` lays
    it out. The ports run ahead of the reader as far as their queues are deep, but side by side.

    Every signal to or from a port is in a register, except ARREADY and RVALID, which enable those registers. A queue
    therefore asks for beats only while it has room for three more than it holds.

    A port that is 16 beats ahead of the slowest one waits for it. All ports have the rate at which the reader takes
    beats, so a lead never disappears by itself, and each disturbance adds to it. With a lead of 64 KiB of addresses, or
    of a multiple of that, two ports access different rows of the same DRAM bank, which the memory then opens and closes
    in turn (docs/accelerator.md).

    Parameters:
        beat_bytes: bytes of a beat of the stream, a power of two, 4 to 64.
        ports: number of ports, 1, 2 or 4; each has beat_bytes / ports bytes.
        address_bits: bits of an address on the bus, 16 to 64.
        count_bits: bits of a range's length in beats, 1 to 32.
        depth: beats that the queues hold, at least 8.
        style: kind of memory of the queues, see ``Fifo``.
        max_burst, outstanding: limits of each port, see ``ReadMaster``.

    Members:
        ranges: In(stream {start, beats}). The start is a logical address in beats, see ``edgedec.hw.isa.striping``.
        beats: Out(stream of beats). The beats of all ranges in order.
        error: Out(stream {port, request, response}, always ready). A response that was not OKAY; ranges are counted
            from 0 after a flush. If two ports report in one cycle, the lower one is shown. The beat is delivered
            nevertheless.
        bus0 .. bus3: Out(AXI4 read channels), one for each port.
        starved: Out(ports). The reader waited, in the cycle before, for a slice of this port that had not arrived.
        empty_cycles: Out(32) for each port. Number of cycles of ``starved``, modulo 2**32.
        clear: In(1). Set ``empty_cycles`` to 0.
        flush: In(1). Forget all ranges and beats; hold it until ``idle``, see ``ReadMaster``.
        idle: Out(1). No range is queued and no burst is in progress; beats may still wait in the queues.

    Latency: 5 cycles from a range to ARVALID, 4 from R to ``beats``.
    Throughput: one beat per cycle; one burst in two cycles.
    Source: derived here.
    """

    def __init__(
        self,
        *,
        beat_bytes: int,
        ports: int,
        address_bits: int = 40,
        count_bits: int = 24,
        depth: int = 4096,
        style: str = "ultra",
        max_burst: int = 256,
        outstanding: int = 8,
    ) -> None:
        if beat_bytes not in (4, 8, 16, 32, 64):
            raise ValueError(f"beat_bytes must be 4, 8, 16, 32 or 64, not {beat_bytes!r}")
        if ports not in (1, 2, 4):
            raise ValueError(f"ports must be 1, 2 or 4, not {ports!r}")
        check("address_bits", address_bits, 16, 64)
        check("count_bits", count_bits, 1, 32)
        check("depth", depth, 8, 1 << 16)
        self._ports, self._port_bytes = ports, beat_bytes // ports
        self._masters = [
            ReadMaster(
                address_bits=address_bits - beats_log2(ports),
                data_bytes=self._port_bytes,
                length_bits=count_bits + beats_log2(self._port_bytes),
                max_burst=max_burst,
                outstanding=outstanding,
            )
            for _ in range(ports)
        ]
        self._fifos = [Fifo(shape=8 * self._port_bytes, depth=depth, style=style) for _ in range(ports)]
        self._depth = depth
        self._range = data.StructLayout({"start": address_bits - beats_log2(beat_bytes), "beats": count_bits})
        failure = data.StructLayout({"port": 2, "request": NUMBER_BITS, "response": 2})
        bus = axi4_read(address_bits=address_bits, data_bytes=self._port_bytes)
        self._port_bits = address_bits - beats_log2(self._port_bytes) + 8 + 8 * self._port_bytes + 6
        super().__init__(
            lambda: {
                "ranges": In(stream.Signature(self._range)),
                "beats": Out(beat(beat_bytes)),
                "error": Out(stream.Signature(failure, always_ready=True)),
                **{f"bus{port}": Out(bus) for port in range(ports)},
                "starved": Out(ports),
                "empty_cycles": Out(32).array(ports),
                "clear": In(1),
                "flush": In(1),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        ports, port_bytes = self._ports, self._port_bytes
        aligned = Resources(lut=-5 * beats_log2(port_bytes))  # saved of a master by whole beats
        queue = small_queue(self._range.size, _QUEUED)
        counter = Resources(lut=36, ff=32)
        lead = Resources(lut=9, ff=_LEAD.bit_length()) if ports > 1 else Resources()
        slices = Resources(lut=60, ff=self._port_bits + self._range.size + self._depth.bit_length() + 4)
        parts = total(part.resources for part in (*self._masters, *self._fifos))
        return parts + (aligned + queue + counter + lead + slices) * ports

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        fifos = [ResetInserter(self.flush)(fifo) for fifo in self._fifos]
        width = len(self.ranges.p.as_value())
        queues = [SyncFIFO(width=width, depth=_QUEUED) for _ in range(self._ports)]
        held, idle = self._held(m), []
        for port, (queue, master, fifo) in enumerate(zip(queues, self._masters, fifos, strict=True)):
            m.submodules[f"queue{port}"] = ResetInserter(self.flush)(queue)
            m.submodules[f"master{port}"] = master
            m.submodules[f"fifo{port}"] = fifo
            idle.append(self._connect_port(m, port, queue, master, held[port]))
        room = Cat(queue.w_rdy for queue in queues).all() & ~self.flush
        all_valid = Cat(fifo.output.valid for fifo in self._fifos).all()
        m.d.comb += [
            self.ranges.ready.eq(room),
            *(queue.w_data.eq(self.ranges.p.as_value()) for queue in queues),
            *(queue.w_en.eq(self.ranges.valid & room) for queue in queues),
            self.beats.payload.eq(Cat(fifo.output.payload for fifo in self._fifos)),
            self.beats.valid.eq(all_valid & ~self.flush),
            *(fifo.output.ready.eq(all_valid & self.beats.ready) for fifo in self._fifos),
            self.idle.eq(Cat(idle).all()),
        ]
        for port, master in reversed(list(enumerate(self._masters))):
            with m.If(master.error.valid):
                m.d.comb += [
                    self.error.p.port.eq(port),
                    self.error.p.request.eq(master.error.p.request),
                    self.error.p.response.eq(master.error.p.response),
                ]
        m.d.comb += self.error.valid.eq(Cat(master.error.valid for master in self._masters).any())
        return m

    def _held(self, m: Module) -> list[Value]:
        """Return for each port whether the beats that still arrive may bring its lead to ``_LEAD``, so that it must wait."""
        if self._ports == 1:
            return [Const(0)]
        leads = [Signal(range(_LEAD + 1), name=f"lead{port}") for port in range(self._ports)]
        together = Signal()  # every port has a lead of at least one beat, so all leads can be reduced by one
        m.d.comb += together.eq(Cat(lead.any() for lead in leads).all())
        for lead, fifo in zip(leads, self._fifos, strict=True):
            with m.If(self.flush):
                m.d.sync += lead.eq(0)
            with m.Else():
                m.d.sync += lead.eq(lead + (fifo.input.valid & fifo.input.ready) - together)
        return [lead > _LEAD - _LATE for lead in leads]

    def _connect_port(self, m: Module, port: int, queue: SyncFIFO, master: ReadMaster, held: Value) -> Value:
        """Connect one port, from its queue of ranges to its queue of slices, and count its starved cycles.

        Return whether it has no range and no burst.
        """
        size, bus, inner = beats_log2(self._port_bytes), getattr(self, f"bus{port}"), master.bus
        fifo, count = self._fifos[port], self.empty_cycles[port]
        due = Signal(self.ranges.p.shape(), name=f"due{port}", reset_less=True)
        requested = Signal(name=f"requested{port}")
        with m.If(~requested | master.requests.ready):
            m.d.sync += [requested.eq(queue.r_rdy), due.eq(queue.r_data)]
        self._request_bursts(m, port, inner, bus)
        level = self._level(m, port, fifo)
        arrived = self._take_beats(m, port, bus, self._has_room(m, port, level, held))
        m.d.comb += [
            master.requests.p.address.eq(Cat(Const(0, size), due.start)),
            master.requests.p.bytes.eq(Cat(Const(0, size), due.beats)),
            master.requests.valid.eq(requested & ~self.flush),
            queue.r_en.eq(~requested | master.requests.ready),
            master.flush.eq(self.flush),
            *(getattr(inner, name).eq(signal) for name, signal in arrived.items()),
            fifo.input.payload.eq(master.beats.payload),
            fifo.input.valid.eq(master.beats.valid),
            master.beats.ready.eq(fifo.input.ready),  # always, because there was room when the beat was asked for
        ]
        idle: Value = ~queue.r_rdy & ~requested & master.idle
        expected = Signal(name=f"expected{port}")  # the port has beats for the reader, or will have
        m.d.sync += [
            expected.eq(level.any() | ~idle),
            self.starved[port].eq(self.beats.ready & ~fifo.output.valid & expected),
        ]
        with m.If(self.flush):
            m.d.sync += [requested.eq(0), expected.eq(0)]
        with m.If(self.clear):
            m.d.sync += count.eq(0)
        with m.Elif(self.starved[port]):
            m.d.sync += count.eq(count + 1)
        return idle

    def _request_bursts(self, m: Module, port: int, inner: Any, bus: Any) -> None:
        """Pass bursts to AR through a register, which is empty for a cycle between two of them."""
        # The master's addresses count only the bytes of this port; the port's number goes above a granule's bits.
        number = Const(port, beats_log2(self._ports))
        m.d.comb += inner.arready.eq(~bus.arvalid)
        with m.If(bus.arvalid):
            m.d.sync += bus.arvalid.eq(~bus.arready)
        with m.Else():
            m.d.sync += [
                bus.arvalid.eq(inner.arvalid),
                bus.araddr.eq(Cat(inner.araddr[:_BOUNDARY_BITS], number, inner.araddr[_BOUNDARY_BITS:])),
                bus.arlen.eq(inner.arlen),
            ]

    def _level(self, m: Module, port: int, fifo: Fifo) -> Signal:
        """Return the number of slices in a queue; the sum ``fifo.level`` is known later in a cycle."""
        level = Signal(range(self._depth + _LATE), name=f"level{port}")
        do_write, do_read = fifo.input.valid & fifo.input.ready, fifo.output.valid & fifo.output.ready
        with m.If(self.flush):
            m.d.sync += level.eq(0)
        with m.Elif(do_write ^ do_read):
            m.d.sync += level.eq(level + Cat(1, do_read.replicate(len(level) - 1)))  # one more, or one less
        return level

    def _has_room(self, m: Module, port: int, level: Signal, held: Value) -> Signal:
        """Return a register that says whether the port may deliver a beat."""
        room = Signal(name=f"room{port}")
        m.d.sync += room.eq(((level <= self._depth - _LATE) & ~held) | self.flush)
        return room

    def _take_beats(self, m: Module, port: int, bus: Any, room: Signal) -> dict[str, Signal]:
        """Take beats from R into a register. Return its signals by their names at the bus."""
        names = ("rdata", "rresp", "rlast")
        arrived = {name: Signal.like(getattr(bus, name), name=f"{name}{port}", reset_less=True) for name in names}
        valid = Signal(name=f"rvalid{port}")
        m.d.comb += bus.rready.eq(room)
        m.d.sync += [valid.eq(bus.rvalid & room), *(signal.eq(getattr(bus, name)) for name, signal in arrived.items())]
        return {**arrived, "rvalid": valid}
