"""A monitor of AXI buses: one component that names each rule of the protocol that the manager or the subordinate breaks.

Proofs assert its outputs for one side and assume them for the other (``edgedec.sim.verify.formal.obeys``); simulations look
at them in every cycle (``Watched``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from amaranth.hdl import Cat, Const, DomainRenamer, Elaboratable, Fragment, Module, Mux, Signal, Value
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import Component, In, Out, Signature

from edgedec.hw.blocks.contract import contract
from edgedec.hw.isa.checks import check
from edgedec.hw.memory.axi import BOUNDARY_BYTES, Burst, Response
from edgedec.hw.memory.reset_drain import keep_in_reset

__all__ = [
    "CAPACITY",
    "MANAGER",
    "PATIENCE",
    "RULES",
    "SUBORDINATE",
    "AxiMonitor",
    "AxiRule",
    "Kind",
    "Watched",
    "broken",
    "buses",
    "meanings",
]

Kind = Literal["read", "write"]
# Cycles after which a simulation takes a wait for READY for one that never ends. The number is chosen, not derived: the
# memories of the tests stay below it, and a slower one needs a larger number.
PATIENCE = 4096
_LONGEST = {"AXI3": 16, "AXI4": 256}  # beats
_LONGEST_OTHER = 16  # beats of a burst that does not ascend


@dataclass(frozen=True, kw_only=True)
class AxiRule:
    """A rule of the protocol.

    Members:
        name: name of the rule.
        side: side that breaks it; "monitor" if the monitor cannot follow.
        text: description of what was seen.
        source: section of ARM IHI 0022.
    """

    name: str
    side: Literal["manager", "subordinate", "monitor"]
    text: str
    source: str


def _rules() -> tuple[AxiRule, ...]:
    manager = (
        ("address_stable", "an offered address changed or vanished before it was taken", "A3.2.1"),
        ("data_stable", "an offered beat of W changed or vanished before it was taken", "A3.2.1"),
        ("boundary", "a burst crosses 4 KiB", "A3.4.1"),
        ("length", "a burst has more beats than it may have", "A3.4.1"),
        ("kind", "a burst has a reserved type, beats wider than the bus, or a WRAP that AXI does not define", "A3.4.1"),
        ("write_last", "WLAST is not at the last beat", "A3.4.1"),
        ("write_id", "WID is not the id of the burst, or bursts are interleaved on W", "A5.3"),
        ("waits", "AWVALID or WVALID waits for the other channel's READY", "A3.3.1"),
    )
    subordinate = (
        ("response_stable", "an offered answer changed or vanished before it was taken", "A3.2.1"),
        ("early", "an answer has no complete request of its id before it", "A3.3.1"),
        ("read_last", "RLAST is not at the last beat", "A3.4.1"),
        ("interleaved", "the beats of two bursts are interleaved on R", "A5.3"),
        ("response", "EXOKAY answers a request that is not exclusive", "A3.4.4"),
        ("late", "RVALID or BVALID waits for READY", "A3.3.1"),
    )
    rules = [AxiRule(name=name, side="manager", text=text, source=source) for name, text, source in manager]
    rules += [AxiRule(name=name, side="subordinate", text=text, source=source) for name, text, source in subordinate]
    text = "more bursts are under way than the monitor follows"
    return (*rules, AxiRule(name="capacity", side="monitor", text=text, source="edgedec"))


RULES = _rules()  # bit n of AxiMonitor.violations stands for RULES[n]
_NUMBER = {rule.name: number for number, rule in enumerate(RULES)}


def _mask(side: str) -> int:
    return sum(1 << number for number, rule in enumerate(RULES) if rule.side == side)


MANAGER, SUBORDINATE, CAPACITY = _mask("manager"), _mask("subordinate"), _mask("monitor")  # bits of violations


class AxiMonitor(Component):  # type: ignore[misc]  # Amaranth has no types
    """Observe the channels of one direction of a bus, and drive none of them.

    Bursts of one id are followed one by one, those of all others are counted; a proof leaves the id free. Fields that the
    bus lacks have their value in AXI4-Lite: one beat, ascending, id 0. Reads of several ids may not be interleaved, because
    none of edgedec's subordinates does it. Exclusive accesses are not supported.

    Parameters:
        bus: interface with the fields of axi4_read, axi4_write, axi_lite or their AXI3 counterparts, seen from either side.
        kind: direction that is observed.
        protocol: "AXI3" limits bursts to 16 beats; WID is checked if the bus has it.
        max_burst: longest burst in beats, if it is less than that of the protocol.
        outstanding: largest number of bursts that are followed at once.
        patience: cycles after which a VALID that comes only after READY is a violation; 0: never. It must exceed the time
            that a side needs for other reasons.

    Members:
        violations: Out(len(RULES)). Bit n: RULES[n] is broken in this cycle.
        watched_id: In. Id of the bursts that are followed one by one; steady.

    Latency: a rule is seen broken in the same cycle, or, for a burst whose data was before its address, once both are there.
    Source: AXI4 and AXI3 (ARM IHI 0022).
    """

    def __init__(
        self,
        bus: Any,
        *,
        kind: Kind,
        protocol: Literal["AXI3", "AXI4"] = "AXI4",
        max_burst: int | None = None,
        outstanding: int = 64,
        patience: int = 0,
    ) -> None:
        check("outstanding", outstanding, 1, 256)
        check("patience", patience, 0, 1 << 16)
        self._bus, self._kind, self._outstanding, self._patience = bus, kind, outstanding, patience
        self._longest = max_burst or _LONGEST[protocol]
        check("max_burst", self._longest, 1, _LONGEST[protocol])
        self._broken: dict[str, list[Value]] = {}
        letter = "r" if kind == "read" else "w"
        self._address = {name: getattr(bus, f"a{letter}{name}", None) for name in ("id", "len", "size", "burst")}
        self._bytes = len(getattr(bus, f"{letter}data")) // 8
        super().__init__({"violations": Out(len(RULES)), "watched_id": In(self._id_bits)})

    @property
    def _id_bits(self) -> int:
        identifier = self._address["id"]
        return 1 if identifier is None else len(identifier)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        letter = "r" if self._kind == "read" else "w"
        self._stable(m, f"a{letter}", "address_stable")
        self._shape(m, f"a{letter}")
        if self._kind == "read":
            self._stable(m, "r", "response_stable")
            self._read(m)
        else:
            self._stable(m, "w", "data_stable")
            self._stable(m, "b", "response_stable")
            self._write(m)
        for name, conditions in self._broken.items():
            m.d.comb += self.violations[_NUMBER[name]].eq(Cat(conditions).any())
        return m

    def _flag(self, name: str, condition: Value) -> None:
        self._broken.setdefault(name, []).append(condition.bool())

    def _field(self, name: str, default: int) -> Value:
        """Return a field of the bus, or its constant value in AXI4-Lite."""
        field = getattr(self._bus, name, None)
        return Const(default, max(default.bit_length(), 1)) if field is None else Value.cast(field)

    def _taken(self, channel: str) -> Value:
        transferred: Value = getattr(self._bus, f"{channel}valid") & getattr(self._bus, f"{channel}ready")
        return transferred

    def _stable(self, m: Module, channel: str, rule: str) -> None:
        bus = self._bus
        names = sorted(name for name in bus.signature.members if name.startswith(channel))
        names = [name for name in names if name not in (f"{channel}valid", f"{channel}ready")]
        payload = Cat(Value.cast(getattr(bus, name)) for name in names)
        offered, held = Signal(name=f"{channel}_offered"), Signal(len(payload), name=f"{channel}_held")
        valid = getattr(bus, f"{channel}valid")
        m.d.sync += offered.eq(valid & ~getattr(bus, f"{channel}ready"))
        with m.If(valid):
            m.d.sync += held.eq(payload)
        self._flag(rule, offered & (~valid | (held != payload)))

    def _shape(self, m: Module, channel: str) -> None:
        """Check length, type, size and place of the offered burst."""
        valid, address = getattr(self._bus, f"{channel}valid"), getattr(self._bus, f"{channel}addr")
        most, size = self._field(f"{channel}len", 0), self._field(f"{channel}size", self._bytes.bit_length() - 1)
        burst = self._field(f"{channel}burst", Burst.INCR)
        page = BOUNDARY_BYTES.bit_length() - 1
        first, extent, unaligned = Signal(page), Signal(page + 9), Signal()
        with m.Switch(size):
            for log2 in range(self._bytes.bit_length()):
                with m.Case(log2):
                    m.d.comb += [
                        first.eq((address[:page] >> log2) << log2),
                        extent.eq((most + 1) << log2),
                        unaligned.eq(address[:log2].any() if log2 else 0),
                    ]
        ascends, wraps = burst == Burst.INCR, burst == Burst.WRAP
        power = (most == 1) | (most == 3) | (most == 7) | (most == 15)
        self._flag("boundary", valid & ascends & (first + extent > BOUNDARY_BYTES))
        self._flag("length", valid & (most >= Mux(ascends, self._longest, min(self._longest, _LONGEST_OTHER))))
        self._flag(
            "kind", valid & ((burst > Burst.WRAP) | (size >= self._bytes.bit_length()) | (wraps & (~power | unaligned)))
        )

    def _read(self, m: Module) -> None:
        bus, watched = self._bus, self.watched_id
        m.submodules.requests = requests = SyncFIFO(width=8, depth=self._outstanding)
        asked, taken = self._taken("ar"), self._taken("r")
        number, last = self._field("rid", 0), self._field("rlast", 1)
        ours, asks_ours = number == watched, self._field("arid", 0) == watched
        index = Signal(8)
        others = Signal(range(self._outstanding + 1))
        others_ask, others_end = asked & ~asks_ours, taken & ~ours & last
        m.d.comb += [
            requests.w_data.eq(self._field("arlen", 0)),
            requests.w_en.eq(asked & asks_ours),
            requests.r_en.eq(taken & ours & last),
        ]
        m.d.sync += others.eq(others + others_ask - others_end)
        with m.If(taken & ours):
            m.d.sync += index.eq(Mux(last, 0, index + 1))
        open_ = Signal()
        open_id = Signal(len(number))
        with m.If(taken):
            m.d.sync += [open_.eq(~last), open_id.eq(number)]
        self._flag("early", bus.rvalid & Mux(ours, ~requests.r_rdy, others == 0))
        self._flag("read_last", bus.rvalid & ours & requests.r_rdy & (last != (index == requests.r_data)))
        self._flag("interleaved", bus.rvalid & open_ & (number != open_id))
        self._flag("response", bus.rvalid & (bus.rresp == Response.EXOKAY))
        full = others == self._outstanding
        self._flag("capacity", (requests.w_en & ~requests.w_rdy) | (others_ask & full & ~others_end))
        self._patient(m, "late", requests.r_rdy & ~bus.rvalid & ~bus.rready)

    def _write(self, m: Module) -> None:
        bus, watched, bits = self._bus, self.watched_id, self._id_bits
        has_id = getattr(bus, "wid", None) is not None
        m.submodules.addresses = addresses = SyncFIFO(width=8 + bits, depth=self._outstanding)
        m.submodules.data = data = SyncFIFO(width=8 + bits, depth=self._outstanding)
        asked, taken, answered = self._taken("aw"), self._taken("w"), self._taken("b")
        last, number = self._field("wlast", 1), self._field("wid", 0)
        index = Signal(8)
        first_id = Signal(bits)
        matched, known = addresses.r_rdy & data.r_rdy, addresses.r_rdy & ~data.r_rdy
        most, identifier = addresses.r_data[:8], addresses.r_data[8:]
        m.d.comb += [
            addresses.w_data.eq(Cat(_widened(self._field("awlen", 0), 8), _widened(self._field("awid", 0), bits))),
            addresses.w_en.eq(asked),
            data.w_data.eq(Cat(index, _widened(number, bits))),
            data.w_en.eq(taken & last),
            addresses.r_en.eq(matched),
            data.r_en.eq(matched),
        ]
        with m.If(taken):
            m.d.sync += [index.eq(Mux(last, 0, index + 1)), first_id.eq(number)]
        too_many = bus.wvalid & ~last & (index == self._longest - 1)
        self._flag("write_last", known & ((index > most) | (bus.wvalid & (last != (index == most)))))
        self._flag("write_last", (matched & (data.r_data[:8] != most)) | too_many)
        if has_id:
            self._flag(
                "write_id", bus.wvalid & ((known & (number != identifier)) | ((index != 0) & (number != first_id)))
            )
            self._flag("write_id", matched & (data.r_data[8:] != identifier))
        self._flag("response", bus.bvalid & (bus.bresp == Response.EXOKAY))
        self._flag("capacity", (asked & ~addresses.w_rdy) | (data.w_en & ~data.w_rdy))
        self._answers(m, matched, identifier == watched, answered)
        address_waits = bus.awvalid & ~bus.awready & ~bus.wvalid & ~data.r_rdy
        data_waits = bus.wvalid & ~bus.wready & ~bus.awvalid & ~addresses.r_rdy
        self._patient(m, "waits", address_waits | data_waits)

    def _answers(self, m: Module, matched: Value, matches_ours: Value, answered: Value) -> None:
        """Check B against the bursts of which address and all data were taken."""
        bus, answers_ours = self._bus, self._field("bid", 0) == self.watched_id
        waiting: list[Value] = []
        for name, matches, answers in (
            ("ours", matched & matches_ours, answers_ours),
            ("others", matched & ~matches_ours, ~answers_ours),
        ):
            count = Signal(range(self._outstanding + 1), name=f"{name}_written")
            m.d.sync += count.eq(count + matches - (answered & answers))
            self._flag("early", bus.bvalid & answers & (count == 0) & ~matches)
            self._flag("capacity", matches & (count == self._outstanding) & ~(answered & answers))
            waiting.append(count != 0)
        self._patient(m, "late", Cat(waiting).any() & ~bus.bvalid & ~bus.bready)

    def _patient(self, m: Module, rule: str, condition: Value) -> None:
        """Flag a rule if a condition holds for ``patience`` cycles without a break."""
        if not self._patience:
            return
        waited = Signal(range(self._patience + 1), name=f"{rule}_cycles")
        over = waited == self._patience
        with m.If(~condition):
            m.d.sync += waited.eq(0)
        with m.Elif(~over):
            m.d.sync += waited.eq(waited + 1)
        self._flag(rule, condition & over)


def _widened(value: Value, bits: int) -> Value:
    return Cat(value, Const(0, bits - len(value))) if len(value) < bits else value


def directions(name: str, bus: Any) -> dict[str, Kind]:
    """Return the directions of a bus by name; nothing if it is none of AXI."""
    fields = bus.signature.members if hasattr(bus, "signature") else {}
    reads, writes = "arvalid" in fields, "awvalid" in fields
    if reads and writes:
        return {f"{name} (reads)": "read", f"{name} (writes)": "write"}
    return {name: "read"} if reads else {name: "write"} if writes else {}


def buses(component: Any) -> dict[str, tuple[Any, Kind]]:
    """Return the AXI ports of a component by name, with the direction; a port with both directions occurs twice."""
    return {
        direction: (getattr(component, name), kind)
        for name, member in component.signature.members.items()
        if member.is_signature
        for direction, kind in directions(name, getattr(component, name)).items()
    }


class Watched(Elaboratable):  # type: ignore[misc]  # Amaranth has no types
    """A component with a monitor at each of its AXI ports, and otherwise with its own ports, signals and names.

    The buses between the parts of a system are observed, too, if it names them in ``inner_buses``. No burst may be longer
    than the component's ``burst_beats``, if it has that.

    Parameters:
        inner: the component.
        domains: clock domains of ports that are not in "sync", by name.
        contracts: a broken rule breaks a contract (``edgedec.hw.blocks.contract``), and there is no port ``violations``.
        outlives_reset: the rules hold across a reset of the component, because the other side is not reset with it.
        options: parameters of the monitors.

    Members:
        violations: Out. Bit n * len(RULES) + r: RULES[r] is broken at port n of ``names`` in this cycle.
        names: names of the observed ports.
    """

    def __init__(
        self,
        inner: Any,
        *,
        domains: Mapping[str, str] | None = None,
        contracts: bool = False,
        outlives_reset: bool = True,
        patience: int = PATIENCE,
        **options: Any,
    ) -> None:
        self._inner, self._contracts, self._domains = inner, contracts, dict(domains or {})
        self._outlives_reset = outlives_reset
        observed, limits = buses(inner), {"max_burst": getattr(inner, "burst_beats", None), **options}
        for name, (bus, domain) in getattr(inner, "inner_buses", {}).items():
            for direction, kind in directions(name, bus).items():
                observed[direction] = (bus, kind)
                self._domains[direction] = domain
        self._monitors = {
            name: AxiMonitor(bus, kind=kind, patience=patience, **limits) for name, (bus, kind) in observed.items()
        }
        self.names = tuple(observed)
        self.violations = Signal(len(RULES) * len(observed))
        if observed and not contracts:
            members = dict(inner.signature.members.items())
            self.signature = Signature({**members, "violations": Out(len(self.violations))})
        else:
            self.signature = inner.signature

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def elaborate(self, platform: Any) -> Any:
        fragment = Fragment.get(self._inner, platform)
        if not self._monitors:
            return fragment
        m = Module()
        for number, (name, monitor) in enumerate(self._monitors.items()):
            part = Module()
            part.submodules.monitor = monitor
            if self._contracts:
                for broken_rule, meaning in zip(monitor.violations, meanings([name]), strict=True):
                    contract(part, ~broken_rule, meaning)
            m.submodules[f"port{number}"] = DomainRenamer(self._domains.get(name, "sync"))(part)
        m.d.comb += self.violations.eq(Cat(monitor.violations for monitor in self._monitors.values()))
        monitors = Fragment.get(m, platform)
        if self._outlives_reset:
            keep_in_reset(monitors)
        fragment.add_subfragment(monitors, "monitors")
        return fragment


def meanings(names: Sequence[str]) -> list[str]:
    """Return what each bit of the violations of ``Watched`` means, with these names of ports."""
    return [
        f"{name}: the {rule.side} breaks {rule.name}: {rule.text} ({_source(rule)})" for name in names for rule in RULES
    ]


def _source(rule: AxiRule) -> str:
    return rule.source if rule.side == "monitor" else f"ARM IHI 0022, {rule.source}"


def broken(violations: int, names: Sequence[str]) -> str:
    """Return what the violations of ``Watched`` mean, one rule after the other; empty if there are none."""
    return "; ".join(text for bit, text in enumerate(meanings(names)) if violations >> bit & 1)
