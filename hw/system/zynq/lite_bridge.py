"""The bridge from a processor's AXI3 port to register blocks with AXI4-Lite ports."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import Burst, Response, axi_lite, beats_log2
from edgedec.hw.system.zynq.axi3 import axi3

__all__ = ["LiteBridge"]

_DATA_BYTES = 4
_WORD = beats_log2(_DATA_BYTES)


class LiteBridge(CostedComponent):
    """Serve the bursts of an AXI3 manager with accesses of AXI4-Lite, one beat after the other.

    A burst of any type, length and size up to a word is served, and reads and writes run at the same time. A narrow
    write reaches the registers as its strobes; a narrow read is a read of the whole word, which register maps without
    effects of reads allow. An exclusive access is answered OKAY, which tells the manager that it was not exclusive. A
    burst lies in one window, because none crosses 4 KiB.

    A burst outside of all windows is answered DECERR, and nothing is accessed. So is, with SLVERR, a burst that AXI3
    does not define (a reserved type, beats wider than the bus, a wrapping burst of another length than 2, 4, 8 or 16),
    and a beat whose WID is not the AWID of the burst: beats of several bursts must not be interleaved. The response of
    a write is the worst of its beats.

    Parameters:
        windows: name -> (base address, bytes) of each register block. Bytes are a power of two, 4096 or more, of which
            the base address is a multiple.
        address_bits: bits of an address of the manager.
        id_bits: bits of its ids.

    Members:
        bus: In(AXI3 of 32 bits). It takes the data of a write after its address.
        one port for each window, called as it: Out(AXI4-Lite), with addresses from 0 on.

    Latency: 2 cycles from AR or from W to the access; 1 from its answer to R, or 2 to B.
    Throughput: one beat in the time of an access and 2 cycles.
    Source: ARM IHI 0022, chapters A3 and A7, issue with AXI3.
    """

    def __init__(self, windows: Mapping[str, tuple[int, int]], *, address_bits: int = 32, id_bits: int = 12) -> None:
        for name, (base, size) in windows.items():
            if size < 4096 or size & (size - 1) or base % size or base + size > 1 << address_bits:
                raise ValueError(
                    f"window {name} must be a power of two of at least 4096 bytes at a multiple of its size, not {size:#x} "
                    f"bytes at {base:#x}"
                )
        self._windows = MappingProxyType(dict(windows))
        self._address_bits, self._id_bits = address_bits, id_bits
        super().__init__(
            lambda: {
                "bus": In(axi3(address_bits=address_bits, data_bytes=_DATA_BYTES, id_bits=id_bits)),
                **{name: Out(axi_lite(address_bits=beats_log2(size))) for name, (_, size) in windows.items()},
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; not calibrated."""
        half = self._address_bits + self._id_bits + 40
        return Resources(lut=3 * half + 32 * len(self._windows), ff=4 * half)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        self._write(m)
        self._read(m)
        return m

    def _request(self, m: Module, letter: str, taken: Signal, step: Value) -> tuple[Signal, Signal, Signal, Signal]:
        """Keep a burst's address channel, and advance its address.

        Args:
            taken: high in the cycle of the address's transfer.
            step: high when a beat has ended.

        Returns:
            target: a bit for each window that has the address; valid a cycle after ``taken``.
            refused: the response for a burst without an access, OKAY if it has some; likewise.
            last: the present beat is the last one.
            address: byte address of the present beat.
        """
        bus = self.bus
        field = {name: getattr(bus, f"a{letter}{name}") for name in ("addr", "len", "size", "burst")}
        address = Signal(self._address_bits, name=f"{letter}_address")
        length = Signal(4, name=f"{letter}_length")
        left = Signal(4, name=f"{letter}_left")
        size = Signal(3, name=f"{letter}_size")
        burst = Signal(2, name=f"{letter}_burst")
        target = Signal(len(self._windows), name=f"{letter}_target")
        refused = Signal(2, name=f"{letter}_refused")
        last = Signal(name=f"{letter}_last")
        with m.If(taken):
            m.d.sync += [
                address.eq(field["addr"]),
                length.eq(field["len"]),
                left.eq(field["len"]),
                size.eq(field["size"]),
                burst.eq(field["burst"]),
            ]
        hits = Cat(
            address[beats_log2(bytes_) :] == base >> beats_log2(bytes_) for base, bytes_ in self._windows.values()
        )
        wraps = burst == Burst.WRAP
        wrong_wrap = wraps & ~Cat(length == beats - 1 for beats in (2, 4, 8, 16)).any()
        undefined = (size > _WORD) | (burst > Burst.WRAP) | wrong_wrap
        # An aligned step: the first address of an INCR burst may lie within a beat. The masks are signed, so that their
        # complements reach to the address's highest bit.
        beat = (Const(1, _DATA_BYTES) << size[:_WORD])[:_DATA_BYTES]
        following = (address & ~(beat - 1)) + beat
        inside = Cat((length << size[:_WORD])[: 4 + _WORD] | (beat - 1)[:_WORD], Const(0, 1)).as_signed()
        wrapped = (address & ~inside) | (following & inside)
        m.d.comb += [
            target.eq(hits),
            refused.eq(Mux(undefined, Response.SLVERR, Mux(hits.any(), Response.OKAY, Response.DECERR))),
            last.eq(left == 0),
        ]
        with m.If(step):
            m.d.sync += left.eq(left - 1)
            with m.If(wraps):
                m.d.sync += address.eq(wrapped)
            with m.Elif(burst == Burst.INCR):
                m.d.sync += address.eq(following)
        return target, refused, last, address

    def _write(self, m: Module) -> None:
        bus, ports = self.bus, [getattr(self, name) for name in self._windows]
        step = Signal(name="w_step")
        kept_id = Signal(self._id_bits)
        taken = Signal(name="w_taken")
        target, refused, last, address = self._request(m, "w", taken, step)
        worst = Signal(2)
        written = Signal(32)
        strobes = Signal(_DATA_BYTES)
        is_last = Signal()
        needs_address = Signal()  # the access has not handed these over
        needs_data = Signal()  # the access has not handed these over
        answer = Signal(2, name="w_answer")
        answered = Signal(name="w_answered")
        for number, port in enumerate(ports):
            m.d.comb += [
                port.awaddr.eq(Cat(Const(0, _WORD), address[_WORD : len(port.awaddr)])),
                port.awprot.eq(0),
                port.wdata.eq(written),
                port.wstrb.eq(strobes),
                port.awvalid.eq(needs_address & target[number]),
                port.wvalid.eq(needs_data & target[number]),
            ]
            with m.If(target[number]):
                m.d.comb += [answered.eq(port.bvalid), answer.eq(port.bresp)]
        m.d.comb += taken.eq(bus.awvalid & bus.awready)
        with m.FSM(name="write_state"):
            with m.State("ADDRESS"):
                m.d.comb += bus.awready.eq(1)
                m.d.sync += [kept_id.eq(bus.awid), worst.eq(Response.OKAY)]
                with m.If(bus.awvalid):
                    m.next = "DATA"
            with m.State("DATA"):
                m.d.comb += bus.wready.eq(1)
                m.d.sync += [written.eq(bus.wdata), strobes.eq(bus.wstrb), is_last.eq(last)]
                with m.If(bus.wvalid):
                    m.next = "ACCESS"
                    with m.If(bus.wid != kept_id):
                        m.d.sync += worst.eq(worst | Response.SLVERR)
                        m.next = "STEP"
                    with m.Elif(refused != Response.OKAY):
                        m.d.sync += worst.eq(worst | refused)
                        m.next = "STEP"
                    with m.Else():
                        m.d.sync += [needs_address.eq(1), needs_data.eq(1)]
            with m.State("ACCESS"):
                for number, port in enumerate(ports):
                    m.d.comb += port.bready.eq(target[number])
                    with m.If(target[number] & port.awready):
                        m.d.sync += needs_address.eq(0)
                    with m.If(target[number] & port.wready):
                        m.d.sync += needs_data.eq(0)
                with m.If(answered):
                    m.d.sync += worst.eq(worst | answer)
                    m.next = "STEP"
            with m.State("STEP"):
                m.d.comb += step.eq(1)
                m.next = "DATA"
                with m.If(is_last):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += [bus.bvalid.eq(1), bus.bid.eq(kept_id), bus.bresp.eq(worst)]
                with m.If(bus.bready):
                    m.next = "ADDRESS"

    def _read(self, m: Module) -> None:
        bus, ports = self.bus, [getattr(self, name) for name in self._windows]
        step = Signal(name="r_step")
        taken = Signal(name="r_taken")
        target, refused, last, address = self._request(m, "r", taken, step)
        answered = Signal(name="r_answered")
        value = Signal(32)
        answer = Signal(2, name="r_answer")
        asking = Signal()
        for number, port in enumerate(ports):
            m.d.comb += [
                port.araddr.eq(Cat(Const(0, _WORD), address[_WORD : len(port.araddr)])),
                port.arprot.eq(0),
                port.arvalid.eq(asking & target[number]),
            ]
            with m.If(target[number]):
                m.d.comb += [answered.eq(port.rvalid), value.eq(port.rdata), answer.eq(port.rresp)]
        m.d.comb += taken.eq(bus.arvalid & bus.arready)
        with m.FSM(name="read_state"):
            with m.State("ADDRESS"):
                m.d.comb += bus.arready.eq(1)
                m.d.sync += bus.rid.eq(bus.arid)
                with m.If(bus.arvalid):
                    m.next = "DECIDE"
            with m.State("DECIDE"):
                m.d.sync += [bus.rdata.eq(0), bus.rresp.eq(refused), bus.rlast.eq(last)]
                with m.If(refused == Response.OKAY):
                    m.d.sync += asking.eq(1)
                    m.next = "ACCESS"
                with m.Else():
                    m.next = "BEAT"
            with m.State("ACCESS"):
                for number, port in enumerate(ports):
                    m.d.comb += port.rready.eq(target[number])
                    with m.If(target[number] & port.arready):
                        m.d.sync += asking.eq(0)
                with m.If(answered):
                    m.d.sync += [bus.rdata.eq(value), bus.rresp.eq(answer)]
                    m.next = "BEAT"
            with m.State("BEAT"):
                m.d.comb += bus.rvalid.eq(1)
                with m.If(bus.rready):
                    m.d.comb += step.eq(1)
                    m.next = "DECIDE"
                    with m.If(bus.rlast):
                        m.next = "ADDRESS"
