"""Memory in block RAM with AXI4 ports."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from edgedec.hw.blocks.collisions import collision_free
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.pipeline import carried, check, copies, delayed
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.memory.axi import BOUNDARY_BYTES, Response, axi4_read, axi4_write, beats_log2, check_data_bytes

__all__ = ["BLOCK_BYTES", "OnChipMemory", "banks", "blocks"]

BLOCK_BYTES = 2048  # bytes of a block of 18 kbit; strobes are for bytes, so its ninth bits stay unused
_DEEPEST = 1 << 14  # words of a block that is one bit wide; deeper banks would need multiplexers
_QUEUE = 16  # beats that a read port may request: more than are in progress, and the depth of a distributed RAM
_MOST_BEATS = 256  # beats of a burst
_STAGES = 4  # registers from the start of a beat to its data


def banks(memory_bytes: int, data_bytes: int) -> list[tuple[int, int]]:
    """Return first word and words of each bank: powers of two, the largest first, so that no part of a block is unused."""
    result, first = [], 0
    for depth in (1 << bits for bits in reversed(range(beats_log2(_DEEPEST) + 1))):
        while memory_bytes // data_bytes - first >= depth:
            result.append((first, depth))
            first += depth
    return result


def blocks(memory_bytes: int, data_bytes: int) -> int:
    """Return the number of blocks of 18 kbit."""
    return sum(data_bytes * -(-words // BLOCK_BYTES) for _, words in banks(memory_bytes, data_bytes))


@dataclass(frozen=True, kw_only=True)
class _PortRequest:
    """The request of a port for its next beat.

    Members:
        wants: the beat can begin.
        begun: the beat begins.
        address: address in words.
        final: the beat is the last one of its burst.
        bad: the burst is outside of the memory.
        data, strobes: data of a write; None for a read.
    """

    wants: Signal
    begun: Signal
    address: Signal
    final: Value
    bad: Signal
    data: Signal | None = None
    strobes: Signal | None = None


class OnChipMemory(CostedComponent):
    """Serve bytes 0 .. memory_bytes - 1 of the bus; a burst beyond is answered SLVERR and has no other effect.

    Bursts must be INCR bursts of whole beats at addresses that are multiples of a beat, with id 0, as edgedec's masters
    issue
    them. Ports take turns, beat by beat: a port waits for at most one beat of each other port, and never for another
    port's master. Every read requested after a write was answered sees that write.

    Parameters:
        memory_bytes: size, a multiple of 4 KiB, so that a burst is completely inside or outside.
        data_bytes: bytes of each port.
        reads, writes: numbers of ports of each kind, 1 to 4.
        address_bits: bits of an address on the bus.

    Members:
        read0 ..: In(AXI4 read channels).
        write0 ..: In(AXI4 write channels).

    Latency: 9 cycles from ARVALID to RVALID of an idle read.
    Throughput: one beat per cycle for all ports together; one write burst of one beat in two cycles.
    Source: derived here.
    """

    def __init__(
        self, *, memory_bytes: int, data_bytes: int, reads: int = 2, writes: int = 2, address_bits: int = 40
    ) -> None:
        check_data_bytes(data_bytes)
        check("reads", reads, 1, 4)
        check("writes", writes, 1, 4)
        check("address_bits", address_bits, 12, 64)
        if memory_bytes < BOUNDARY_BYTES or memory_bytes % BOUNDARY_BYTES or memory_bytes >> address_bits:
            raise ValueError(
                f"memory_bytes must be a multiple of {BOUNDARY_BYTES} below 2^address_bits, not {memory_bytes!r}"
            )
        self._bytes, self._data_bytes, self._reads, self._writes = memory_bytes, data_bytes, reads, writes
        self._queues = [Fifo(shape=8 * data_bytes + 2, depth=_QUEUE, style="distributed") for _ in range(reads)]
        read = axi4_read(address_bits=address_bits, data_bytes=data_bytes)
        write = axi4_write(address_bits=address_bits, data_bytes=data_bytes)
        super().__init__(
            lambda: {**{f"read{n}": In(read) for n in range(reads)}, **{f"write{n}": In(write) for n in range(writes)}}
        )

    @property
    def resources(self) -> Resources:
        data_bytes, writes = self._data_bytes, self._writes
        address = (self._bytes // data_bytes - 1).bit_length()
        count = len(banks(self._bytes, data_bytes))
        queues = total(queue.resources for queue in self._queues)
        read = Resources(lut=70, ff=address + 15)
        write = Resources(lut=70, ff=address + 9 * data_bytes + 13)
        arbiter = Resources(lut=48 + 9 * data_bytes * (writes - 1), ff=address + 9 * data_bytes + 12)
        outputs = Resources(lut=4 * data_bytes * max(2, count) + 6 * count, ff=(8 * data_bytes + 3) * count)
        near = Resources(ff=data_bytes * (address + 8) + (2 * data_bytes + 1) * count)
        memory = Resources(bram18=blocks(self._bytes, data_bytes))
        return queues + read * self._reads + write * writes + arbiter + outputs + near + memory

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        queues = self._queues
        port_requests = [self._read(m, n, queue) for n, queue in enumerate(queues)]
        port_requests += [self._write(m, n) for n in range(self._writes)]
        any_wants, selected = self._arbitrate(m, port_requests)
        result = self._banks(m, port_requests, any_wants, selected)
        tag = {
            "port": selected,
            "final": _of(port_requests, selected, "final"),
            "bad": _of(port_requests, selected, "bad"),
            "valid": any_wants,
        }
        port, final, bad, valid = (carried(m, Const(1), value, _STAGES) for value in tag.values())
        for n, queue in enumerate(queues):
            m.d.comb += [
                queue.input.payload.eq(Cat(result, bad, final)),
                queue.input.valid.eq(valid & (port == n)),
            ]
        return m

    def _walk(self, m: Module, letter: str, bus: Any, begun: Signal) -> tuple[Signal, Signal, Signal]:
        """Return a burst's address in words, its beats left, and whether it is outside. Bursts may follow without a gap."""
        address = Signal(range(self._bytes // self._data_bytes))
        left = Signal(range(_MOST_BEATS + 1))
        bad = Signal()
        burst_address, ready = getattr(bus, f"a{letter}addr"), getattr(bus, f"a{letter}ready")
        m.d.comb += ready.eq((left == 0) | ((left == 1) & begun))
        with m.If(begun):
            m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
        with m.If(getattr(bus, f"a{letter}valid") & ready):
            m.d.sync += [
                address.eq(burst_address[beats_log2(self._data_bytes) :]),
                left.eq(getattr(bus, f"a{letter}len") + 1),
                bad.eq(burst_address >= self._bytes),
            ]
        return address, left, bad

    def _read(self, m: Module, n: int, queue: Fifo) -> _PortRequest:
        """Request the beats of a read port when its queue has room for them."""
        bus = getattr(self, f"read{n}")
        begun = Signal(name=f"read_begun{n}")
        wants = Signal(name=f"read_wants{n}")
        address, left, bad = self._walk(m, "r", bus, begun)
        m.submodules[f"queue{n}"] = queue
        room = Signal(range(_QUEUE + 1), init=_QUEUE)
        refused = Signal()
        m.d.sync += room.eq(room - begun + (bus.rvalid & bus.rready))
        m.d.comb += [
            wants.eq((left != 0) & (room != 0)),
            Cat(bus.rdata, refused, bus.rlast).eq(queue.output.payload),
            bus.rresp.eq(Mux(refused, Response.SLVERR, Response.OKAY)),
            bus.rvalid.eq(queue.output.valid),
            queue.output.ready.eq(bus.rready),
        ]
        return _PortRequest(wants=wants, begun=begun, address=address, final=left == 1, bad=bad)

    def _write(self, m: Module, n: int) -> _PortRequest:
        """Hold a beat of data in a register until its turn; the last beat also waits until the previous answer is taken."""
        bus = getattr(self, f"write{n}")
        begun = Signal(name=f"write_begun{n}")
        wants = Signal(name=f"write_wants{n}")
        address, left, bad = self._walk(m, "w", bus, begun)
        held = Signal()
        data = Signal.like(bus.wdata)
        strobes = Signal.like(bus.wstrb)
        final = left == 1
        m.d.comb += [
            wants.eq(held & (left != 0) & ~(final & bus.bvalid)),
            bus.wready.eq(~held | begun),
        ]
        with m.If(bus.wready):
            m.d.sync += [held.eq(bus.wvalid), data.eq(bus.wdata), strobes.eq(bus.wstrb)]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(begun & final):
            m.d.sync += [bus.bvalid.eq(1), bus.bresp.eq(Mux(bad, Response.SLVERR, Response.OKAY))]
        return _PortRequest(wants=wants, begun=begun, address=address, final=final, bad=bad, data=data, strobes=strobes)

    def _arbitrate(self, m: Module, port_requests: Sequence[_PortRequest]) -> tuple[Signal, Signal]:
        """Return whether there is a beat, and its port: the first port after the last one that has a beat."""
        last = Signal(range(len(port_requests)))
        selected = Signal(range(len(port_requests)))
        any_wants = Signal()
        wants = Cat(one.wants for one in port_requests)
        m.d.comb += any_wants.eq(wants.any())
        with m.Switch(last):
            for before in range(len(port_requests)):
                with m.Case(before):
                    for step in reversed(range(1, len(port_requests) + 1)):
                        with m.If(wants[(before + step) % len(port_requests)]):
                            m.d.comb += selected.eq((before + step) % len(port_requests))
        for n, one in enumerate(port_requests):
            m.d.comb += one.begun.eq(any_wants & (selected == n))
        with m.If(any_wants):
            m.d.sync += last.eq(selected)
        return any_wants, selected

    def _banks(self, m: Module, port_requests: Sequence[_PortRequest], any_wants: Signal, selected: Signal) -> Value:
        """Return the data that was read, _STAGES cycles later.

        There are two registers before the blocks, their own, and one after each bank. The second one is there for each
        byte of a word: the blocks of a large memory lie all over the device, so those of a byte get their address and
        their enables from registers that can lie beside them.
        """
        writes = port_requests[self._reads :]
        address = Signal.like(port_requests[0].address)
        data = Signal(8 * self._data_bytes)
        strobes = Signal(self._data_bytes)
        writing = Signal()
        bank_address, bad = _of(port_requests, selected, "address"), _of(port_requests, selected, "bad")
        m.d.sync += [address.eq(bank_address), writing.eq(selected >= self._reads)]
        for n, one in enumerate(writes):
            with m.If(selected == self._reads + n):
                m.d.sync += [data.eq(one.data), strobes.eq(one.strobes)]
        near_addresses = copies(m, address, self._data_bytes, name="near_address")
        near_data = carried(m, Const(1), data)
        result: Value = Const(0, 8 * self._data_bytes)
        for n, (first, words) in enumerate(banks(self._bytes, self._data_bytes)):
            inside = beats_log2(words)
            here = Signal(name=f"here{n}")
            m.d.sync += here.eq(any_wants & ~bad & (bank_address[inside:] == first >> inside))
            reading = here & ~writing
            near_reading = copies(m, reading, self._data_bytes, name=f"near_reading{n}")
            near_writing = Signal(self._data_bytes, name=f"near_writing{n}")
            m.d.sync += near_writing.eq(Mux(here & writing, strobes, 0))
            words_read = []
            for byte, (near_address, enable) in enumerate(zip(near_addresses, near_reading, strict=True)):
                blocks_of_byte = Memory(shape=8, depth=words, init=[], attrs={"ram_style": "block"})
                m.submodules[f"bank{n}_byte{byte}"] = blocks_of_byte
                write, read = blocks_of_byte.write_port(), blocks_of_byte.read_port()
                m.d.comb += [
                    write.addr.eq(near_address[:inside]),
                    write.data.eq(near_data.word_select(byte, 8)),
                    write.en.eq(near_writing[byte]),
                    read.addr.eq(near_address[:inside]),
                    read.en.eq(enable),
                ]
                # A beat reads or writes, so the ports of a block never meet.
                collision_free(m, blocks_of_byte, write, read, used=enable, name="memory in block RAM")
                words_read.append(read.data)
            kept = carried(m, Const(1), Cat(words_read))
            ours = delayed(m, Const(1), reading, 3)
            result = result | Mux(ours, kept, 0)
        return result


def _of(port_requests: Sequence[_PortRequest], selected: Signal, name: str) -> Value:
    return Array(getattr(one, name) for one in port_requests)[selected]
