"""Find in the logic of a design every place where a value of one clock is read by another, and check how it is done.

A simulator has two values for a bit, and all registers see the same one, so it cannot show that a register was metastable
or that two registers took different values. The structure shows it: what another clock's register reads must go through a
synchronizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Const, Fragment, Instance, MemoryInstance, Signal, Value
from amaranth.hdl._ast import Assign, Operator, Slice, Switch

__all__ = ["ASYNCHRONOUS", "Crossings", "crossings"]

ASYNCHRONOUS = "no clock"  # the clock of pins and of cells whose outputs belong to no clock
# Cells whose ports belong to a clock, each with the input of that clock, and those of their ports that do not belong to it.
_CLOCKED = {
    "FD1S3AX": ("CK", set[str]()),
    "IFS1P3DX": ("SCLK", {"D"}),
    "ODDRX1F": ("SCLK", set[str]()),
    "OFS1P3DX": ("SCLK", set[str]()),
    "PS7": ("MAXIGP0ACLK", {"FCLKCLK", "FCLKRESETN"}),
}


@dataclass
class Crossings:
    """The places of a design where the clock changes.

    Members:
        synchronizers: bits and registers of each chain that takes a value of another clock, by its place in the design.
        resets: registers of each chain that releases a reset with its clock.
        memories: places of memories that one clock writes and another reads.
        faults: values that cross without any of these, each with what is wrong.
    """

    synchronizers: dict[str, tuple[int, int]] = field(default_factory=dict)
    resets: dict[str, int] = field(default_factory=dict)
    memories: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass
class _Driven:
    """An assignment to a signal: the place, the clock's domain or None, the value, the conditions and the target."""

    place: str
    domain: Any
    value: Value
    conditions: list[Any]
    target: Value


class _Design:
    def __init__(self, design: Any, platform: Any, inputs: Iterable[Signal]) -> None:
        self.drivers: dict[Any, list[_Driven]] = {}
        self.readers: dict[Any, list[_Driven]] = {}
        self.cells: list[tuple[str, Any]] = []
        self.stores: list[tuple[str, Any]] = []
        self.outputs: dict[int, tuple[Any, Any]] = {}  # cell or memory that drives a signal, and its port
        self.origins: dict[Any, frozenset[Any]] = {}
        self.inputs = {id(signal) for signal in inputs}
        self.signals: dict[int, Signal] = {}
        self._walk(Fragment.get(design, platform).prepare().fragment, "")

    def _walk(self, fragment: Any, place: str) -> None:
        for domain, statements in fragment.statements.items():
            clock = None if domain == "comb" else fragment.domains[domain]
            self._statements(statements, place, clock, [])
        if isinstance(fragment, MemoryInstance):
            self.stores.append((place, fragment))
            for port in fragment._read_ports:
                for signal in port._data._rhs_signals():
                    self.outputs[id(signal)] = (fragment, port)
                    self.signals[id(signal)] = signal
        elif isinstance(fragment, Instance):
            self.cells.append((place, fragment))
            for name, (value, kind) in fragment.ports.items():
                for signal in value._lhs_signals() if kind == "o" and isinstance(value, Value) else ():
                    self.outputs[id(signal)] = (fragment, name)
        elif (pin := getattr(fragment, "i", None)) is not None:  # an input buffer
            for signal in pin._lhs_signals():
                self.inputs.add(id(signal))
        for number, (part, name, _) in enumerate(fragment.subfragments):
            self._walk(part, f"{place}.{name or number}".lstrip("."))

    def _statements(self, statements: Any, place: str, domain: Any, conditions: list[Any]) -> None:
        for statement in statements:
            if isinstance(statement, Switch):
                for _, inner, *_ in statement.cases:
                    self._statements(inner, place, domain, [*conditions, statement.test])
            elif isinstance(statement, Assign):
                driven = _Driven(place, domain, statement.rhs, conditions, statement.lhs)
                for signal in statement._lhs_signals():
                    self.drivers.setdefault(id(signal), []).append(driven)
                    self.signals[id(signal)] = signal
                for value in (statement.rhs, *conditions):
                    for signal in value._rhs_signals():
                        self.readers.setdefault(id(signal), []).append(driven)

    def clock(self, domain: Any) -> Any:
        """Return the signal at which a domain's clock begins."""
        return id(self.alias(domain.clk))

    def alias(self, value: Any) -> Any:
        """Return what a value is a copy of: a register, a pin, or logic."""
        while True:
            if isinstance(value, Slice) and isinstance(self.alias(value.value), Signal):
                return self.alias(value.value)
            if isinstance(value, Operator) and value.operator in ("~", "^", "u", "s"):
                operands = [operand for operand in value.operands if not isinstance(operand, Const)]
                if len(operands) == 1:  # an inverter has no hazard
                    value = operands[0]
                    continue
            drivers = self.drivers.get(id(value), [])
            if len(drivers) != 1 or drivers[0].domain is not None or drivers[0].conditions:
                return value
            if drivers[0].target is not value:
                return value
            value = drivers[0].value

    def origin(self, value: Any) -> frozenset[Any]:
        """Return the clocks of the registers, and pins, on which a value depends."""
        return frozenset[Any]().union(*(self._origin_of(signal) for signal in value._rhs_signals()))

    def _origin_of(self, signal: Signal) -> frozenset[Any]:
        key = id(signal)
        if key not in self.origins:
            self.origins[key] = frozenset()  # a loop of wires adds nothing
            self.origins[key] = self._computed(signal)
        return self.origins[key]

    def _computed(self, signal: Signal) -> frozenset[Any]:
        key = id(signal)
        if key in self.inputs:
            return frozenset([ASYNCHRONOUS])
        if key in self.outputs:
            cell, port = self.outputs[key]
            if isinstance(cell, MemoryInstance):
                if port._domain == "comb":
                    return self.origin(port._addr)
                return frozenset([self.clock(cell.domains[port._domain])])
            clock, free = _CLOCKED.get(cell.type, (None, set()))
            if clock is None or port in free:
                return frozenset([ASYNCHRONOUS])
            return frozenset([id(self.alias(cell.ports[clock][0]))])
        drivers = self.drivers.get(key, [])
        if drivers and drivers[0].domain is not None:
            return frozenset([self.clock(drivers[0].domain)])
        return frozenset[Any]().union(
            *(self.origin(value) for driven in drivers for value in (driven.value, *driven.conditions))
        )


def crossings(design: Any, *, platform: Any = None, inputs: Iterable[Signal] = ()) -> Crossings:
    """Return where the clock changes in a design.

    Args:
        platform: platform for which it is elaborated.
        inputs: inputs of the design that belong to no clock; all others are constant or belong to the clock that reads them.
    """
    logic, result = _Design(design, platform, inputs), Crossings()
    for key, drivers in logic.drivers.items():
        if drivers[0].domain is not None:
            _check_register(logic, logic.signals[key], drivers, result)
    for place, memory in logic.stores:
        _check_memory(logic, place, memory, result)
    for place, cell in logic.cells:
        clock, free = _CLOCKED.get(cell.type, (None, set()))
        for name, (value, kind) in cell.ports.items():
            if (
                clock is not None
                and kind == "i"
                and isinstance(value, Value)
                and name not in free
                and not name.endswith(("CLK", "CK"))
            ):
                _same_clock(logic, f"{place}.{name}", id(logic.alias(cell.ports[clock][0])), value, result)
    for clock, place in {id(d.domain): (d.domain, d.place) for ds in logic.drivers.values() for d in ds}.values():
        if clock is not None and clock.async_reset:
            chain = [ds for ds in logic.drivers.values() if any(d.domain is clock for d in ds)]
            result.resets[place] = len(chain)
    return result


def _same_clock(logic: _Design, place: str, clock: Any, value: Any, result: Crossings) -> None:
    if logic.origin(value) - {clock}:
        result.faults.append(f"{place} reads {value!r} of another clock")


def _check_register(logic: _Design, register: Signal, drivers: list[_Driven], result: Crossings) -> None:
    domain, place = drivers[0].domain, drivers[0].place
    clock, name = logic.clock(domain), f"{drivers[0].place}.{register.name}".lstrip(".")
    if domain.rst is not None and not register.reset_less and not domain.async_reset:
        _same_clock(logic, f"{name} (reset)", clock, domain.rst, result)
    foreign = [
        driven
        for driven in drivers
        if any(logic.origin(value) - {clock} for value in (driven.value, *driven.conditions))
    ]
    if not foreign:
        return
    readers, source = logic.readers.get(id(register), []), logic.alias(foreign[0].value)
    clocks = logic.origin(foreign[0].value)
    if len(drivers) > 1 or foreign[0].conditions or foreign[0].target is not register:
        result.faults.append(f"{name} takes a value of another clock under a condition")
    elif len(clocks) != 1 or not isinstance(source, Signal) or _is_logic(logic, source):
        result.faults.append(f"{name} takes a value of another clock through logic, which has hazards")
    elif len(readers) != 1 or readers[0].conditions or readers[0].value is not register:
        result.faults.append(f"{name} is the first register of a synchronizer, and not only the second one reads it")
    elif readers[0].domain is None or logic.clock(readers[0].domain) != clock:
        result.faults.append(f"{name} takes a value of another clock, and no second register of its clock follows")
    else:
        result.synchronizers[place] = (len(register), _stages(logic, register, place))


def _stages(logic: _Design, register: Signal, place: str) -> int:
    """Return the number of registers of the chain that begins with ``register``: copies of each other in one place."""
    count, readers = 1, logic.readers.get(id(register), [])
    while len(readers) == 1 and readers[0].domain is not None and readers[0].place == place:
        count += 1
        readers = logic.readers.get(id(readers[0].target), [])
    return count


def _is_logic(logic: _Design, source: Signal) -> bool:
    """Return whether a signal is neither a register nor an input nor the output of a cell."""
    drivers = logic.drivers.get(id(source), [])
    return bool(drivers) and drivers[0].domain is None


def _check_memory(logic: _Design, place: str, memory: Any, result: Crossings) -> None:
    writers = set()
    for port in memory._write_ports:
        clock = logic.clock(memory.domains[port._domain])
        writers.add(clock)
        for value in (port._addr, port._data, port._en):
            _same_clock(logic, f"{place} (write)", clock, value, result)
    for port in memory._read_ports:
        clocks = logic.origin(port._addr)
        if port._domain != "comb":
            clock = logic.clock(memory.domains[port._domain])
            clocks = frozenset([clock])
            for value in (port._addr, port._en):
                _same_clock(logic, f"{place} (read)", clock, value, result)
        if writers and clocks - writers:
            result.memories.append(place)
