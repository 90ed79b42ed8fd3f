"""Memory in block RAM behind AXI4 ports."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from edgedec.hw.axi import BOUNDARY_BYTES, Response, axi4_read, axi4_write, beats_log2, check_data_bytes
from edgedec.hw.component import CostedComponent
from edgedec.hw.fifo import Fifo
from edgedec.hw.pipeline import carried, check, delayed
from edgedec.hw.resources import Resources, total

__all__ = ["BLOCK_BYTES", "OnChipMemory", "banks", "blocks"]

BLOCK_BYTES = 2048  # of a block of 18 kbit: strobes are for bytes, so its ninth bits stay empty
_DEEPEST = 1 << 14  # words of a block, one bit wide: deeper banks would need multiplexers of their own
_QUEUE = 16  # beats that a read port has asked for at most: more than are on the way, and what a distributed RAM holds
_MOST_BEATS = 256  # of a burst
_STAGES = 3  # from a beat that is begun to its data


def banks(memory_bytes: int, data_bytes: int) -> list[tuple[int, int]]:
    """First word and words of each: powers of two, the largest first, so that no part of a block is left over."""
    found, first = [], 0
    for depth in (1 << bits for bits in reversed(range(beats_log2(_DEEPEST) + 1))):
        while memory_bytes // data_bytes - first >= depth:
            found.append((first, depth))
            first += depth
    return found


def blocks(memory_bytes: int, data_bytes: int) -> int:
    """Of 18 kbit."""
    return sum(data_bytes * -(-words // BLOCK_BYTES) for _, words in banks(memory_bytes, data_bytes))


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A port's next beat, and what it says to whoever may have it.

    Members:
        wants: it can be begun. begun: it is.
        address: in words. final: of its burst. bad: outside of the memory.
        data, strobes: of a write; None of a read.
    """

    wants: Signal
    begun: Signal
    address: Signal
    final: Value
    bad: Signal
    data: Signal | None = None
    strobes: Signal | None = None


class OnChipMemory(CostedComponent):
    """Bytes 0 .. memory_bytes - 1 of the bus; beyond, a burst is answered SLVERR and touches nothing. Bursts are INCR of
    whole beats, at addresses that are multiples of a beat, with id 0: what edgedec's masters drive.

    Ports take turns, a beat at a time: one that wants something waits for a beat of each other one at most, and for nothing
    that another one does not take or give. A write that was answered is seen by every read that is asked for afterwards.

    Parameters:
        memory_bytes: a multiple of 4 KiB, so that a burst is inside or outside as a whole.
        data_bytes: of all ports.
        reads, writes: how many ports there are of each, 1 to 4.
        address_bits: of the bus.

    Members:
        read0 ..: In(AXI4 read channels); write0 ..: In(AXI4 write channels).

    Latency: of an idle read, 8 cycles from ARVALID to RVALID.
    Throughput: a beat in a cycle, of all ports together; of write bursts of one beat, one in two cycles.
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
        memory = Resources(bram18=blocks(self._bytes, data_bytes))
        return queues + read * self._reads + write * writes + arbiter + outputs + memory

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        queues = self._queues
        asked = [self._read(m, n, queue) for n, queue in enumerate(queues)]
        asked += [self._write(m, n) for n in range(self._writes)]
        some, chosen = self._arbitrate(m, asked)
        found = self._banks(m, asked, some, chosen)
        tag = {"port": chosen, "final": _of(asked, chosen, "final"), "bad": _of(asked, chosen, "bad"), "valid": some}
        port, final, bad, valid = (carried(m, Const(1), value, _STAGES) for value in tag.values())
        for n, queue in enumerate(queues):
            m.d.comb += [
                queue.input.payload.eq(Cat(found, bad, final)),
                queue.input.valid.eq(valid & (port == n)),
            ]
        return m

    def _walk(self, m: Module, letter: str, bus: Any, begun: Signal) -> tuple[Signal, Signal, Signal]:
        """Address in words, beats that are left, and whether the burst is outside. The next one may follow at once."""
        address, left, bad = Signal(range(self._bytes // self._data_bytes)), Signal(range(_MOST_BEATS + 1)), Signal()
        given, ready = getattr(bus, f"a{letter}addr"), getattr(bus, f"a{letter}ready")
        m.d.comb += ready.eq((left == 0) | ((left == 1) & begun))
        with m.If(begun):
            m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
        with m.If(getattr(bus, f"a{letter}valid") & ready):
            m.d.sync += [
                address.eq(given[beats_log2(self._data_bytes) :]),
                left.eq(getattr(bus, f"a{letter}len") + 1),
                bad.eq(given >= self._bytes),
            ]
        return address, left, bad

    def _read(self, m: Module, n: int, queue: Fifo) -> _Asked:
        """Its beats are asked for when the queue has room for them."""
        bus, begun, wants = getattr(self, f"read{n}"), Signal(name=f"read_begun{n}"), Signal(name=f"read_wants{n}")
        address, left, bad = self._walk(m, "r", bus, begun)
        m.submodules[f"queue{n}"] = queue
        room, refused = Signal(range(_QUEUE + 1), init=_QUEUE), Signal()
        m.d.sync += room.eq(room - begun + (bus.rvalid & bus.rready))
        m.d.comb += [
            wants.eq((left != 0) & (room != 0)),
            Cat(bus.rdata, refused, bus.rlast).eq(queue.output.payload),
            bus.rresp.eq(Mux(refused, Response.SLVERR, Response.OKAY)),
            bus.rvalid.eq(queue.output.valid),
            queue.output.ready.eq(bus.rready),
        ]
        return _Asked(wants=wants, begun=begun, address=address, final=left == 1, bad=bad)

    def _write(self, m: Module, n: int) -> _Asked:
        """A register holds a beat of data until it has had its turn; the last one, until the answer before was taken."""
        bus, begun, wants = getattr(self, f"write{n}"), Signal(name=f"write_begun{n}"), Signal(name=f"write_wants{n}")
        address, left, bad = self._walk(m, "w", bus, begun)
        held, data, strobes = Signal(), Signal.like(bus.wdata), Signal.like(bus.wstrb)
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
        return _Asked(wants=wants, begun=begun, address=address, final=final, bad=bad, data=data, strobes=strobes)

    def _arbitrate(self, m: Module, asked: Sequence[_Asked]) -> tuple[Signal, Signal]:
        """Whether there is a beat, and whose: the next port, from the one behind the last on, that has one."""
        last, chosen, some = Signal(range(len(asked))), Signal(range(len(asked))), Signal()
        wants = Cat(one.wants for one in asked)
        m.d.comb += some.eq(wants.any())
        with m.Switch(last):
            for before in range(len(asked)):
                with m.Case(before):
                    for step in reversed(range(1, len(asked) + 1)):
                        with m.If(wants[(before + step) % len(asked)]):
                            m.d.comb += chosen.eq((before + step) % len(asked))
        for n, one in enumerate(asked):
            m.d.comb += one.begun.eq(some & (chosen == n))
        with m.If(some):
            m.d.sync += last.eq(chosen)
        return some, chosen

    def _banks(self, m: Module, asked: Sequence[_Asked], some: Signal, chosen: Signal) -> Value:
        """What was read, _STAGES cycles later: a register before the banks, their own, and one behind each. They either read
        or write, so one port of a block does both; with two, logic would have to see that they do not meet.
        """
        writes = asked[self._reads :]
        address, data = Signal.like(asked[0].address), Signal(8 * self._data_bytes)
        strobes, writing = Signal(self._data_bytes), Signal()
        wanted, bad = _of(asked, chosen, "address"), _of(asked, chosen, "bad")
        m.d.sync += [address.eq(wanted), writing.eq(chosen >= self._reads)]
        for n, one in enumerate(writes):
            with m.If(chosen == self._reads + n):
                m.d.sync += [data.eq(one.data), strobes.eq(one.strobes)]
        found: Value = Const(0, 8 * self._data_bytes)
        for n, (first, words) in enumerate(banks(self._bytes, self._data_bytes)):
            m.submodules[f"bank{n}"] = bank = Memory(
                shape=8 * self._data_bytes, depth=words, init=[], attrs={"ram_style": "block"}
            )
            write, read = bank.write_port(granularity=8), bank.read_port()
            inside, here, reading = beats_log2(words), Signal(name=f"here{n}"), Signal(name=f"reading{n}")
            m.d.sync += here.eq(some & ~bad & (wanted[inside:] == first >> inside))
            m.d.comb += [
                reading.eq(here & ~writing),
                write.addr.eq(address[:inside]),
                write.data.eq(data),
                write.en.eq(Mux(here & writing, strobes, 0)),
                read.addr.eq(address[:inside]),
                read.en.eq(reading),
            ]
            kept, ours = carried(m, Const(1), read.data), delayed(m, Const(1), reading, 2)
            found = found | Mux(ours, kept, 0)
        return found


def _of(asked: Sequence[_Asked], chosen: Signal, name: str) -> Value:
    return Array(getattr(one, name) for one in asked)[chosen]
