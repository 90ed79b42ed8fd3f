"""Observe the accelerator's ports: assign stalls to descriptors, and check that everything is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from cocotb.triggers import RisingEdge

from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode, Sink
from edgedec.sim.verify.benches.cells import unit_cell
from edgedec.sim.verify.benches.workloads import BenchPass, ReadRange, issued, readings
from edgedec.sim.verify.coverage import Coverage, beats_class

__all__ = ["Observer", "firsts", "units_of"]


class Observer:
    """The stalls of a program's reads and writes.

    Members:
        places: (address, size) of each buffer by name.
        owners: number of the range that each expected beat belongs to.
        got: number of received beats.
    """

    def __init__(self, dut: Any, *, beat_bytes: int = 8) -> None:
        self._dut, self._beat_bytes = dut, beat_bytes
        self.places: Mapping[str, tuple[int, int]] = {}
        self.begin([])

    def begin(self, expected: Sequence[ReadRange]) -> None:
        """Prepare for a program that reads these ranges."""
        self._expected = list(expected)
        self.owners = [number for number, reading in enumerate(expected) for _ in range(reading.beats)]
        self.got = self._asked = 0
        self._first: set[int] = set()  # first beats of bursts, which take the memory's latency
        self._stalls: list[set[str]] = [set() for _ in expected]
        self._written: dict[str, set[str]] = defaultdict(set)
        self._target = ""

    async def watch(self) -> None:
        """Observe the ports forever."""
        dut = self._dut
        names = ("arvalid", "arready", "rvalid", "rready")
        reads = [getattr(dut, f"read0__{name}") for name in names]
        writes = [getattr(dut, f"write__{name}") for name in ("awvalid", "awready", "wvalid", "wready")]
        while True:
            await RisingEdge(dut.clk)
            if not self.owners:
                continue
            self._read(*(int(signal.value) for signal in reads))
            self._write(*(int(signal.value) for signal in writes))

    def _read(self, ar_valid: int, ar_ready: int, valid: int, ready: int) -> None:
        if ar_valid:
            address, beats = int(self._dut.read0__araddr.value), int(self._dut.read0__arlen.value) + 1
            if self._asked < len(self.owners):
                self._note_address(address, ar_ready)
            if ar_ready:
                self._first.add(self._asked)
                self._asked += beats
        if self.got < min(self._asked, len(self.owners)):
            if valid and not ready:
                self._stalls[self.owners[self.got]].add("held")
            elif ready and not valid and self.got not in self._first:
                self._stalls[self.owners[self.got]].add("late")
            self.got += valid & ready

    def _note_address(self, address: int, ready: int) -> None:
        number = self.owners[self._asked]
        reading = self._expected[number]
        first = self._asked - self.owners.index(number)
        place = self.places[reading.buffer][0] + (reading.start + first) * self._beat_bytes
        assert address == place, f"{address:#x} is read, not {place:#x} of {reading}"
        if not ready:
            self._stalls[number].add("address")

    def _write(self, aw_valid: int, aw_ready: int, valid: int, ready: int) -> None:
        if aw_valid:
            self._target = self.place_of(int(self._dut.write__awaddr.value))
            assert self._target in ("kv", "output"), f"a write goes to {self._target or 'nowhere'}"
            self._written[self._target] |= set() if aw_ready else {"write"}
        if valid and self._target:
            self._written[self._target] |= set() if ready else {"write"}

    def place_of(self, address: int) -> str:
        """Return the name of the buffer that contains an address; empty if there is none."""
        return next((name for name, (start, size) in self.places.items() if start <= address < start + size), "")

    def end(self, coverage: Coverage, program: Program, case: BenchPass | None) -> None:
        """Check that the program has read everything, and count its stalls. ``case`` is the pass; None for a commit."""
        assert self.got == self._asked == len(self.owners), f"{self.got} beats were received, not {len(self.owners)}"
        units: dict[int, set[str]] = defaultdict(set)
        for reading, stalls in zip(self._expected, self._stalls, strict=True):
            wrote = self._written["kv"] if reading.destination == Destination.COPY else set()
            self._count(coverage, self.cell(reading), stalls | wrote)
            if reading.serves is not None:
                units[reading.serves] |= stalls
        if case is None:
            return
        for index, of in issued(program, case.logits):
            if of.opcode in (Opcode.LOAD, Opcode.VECTOR, Opcode.MATRIX, Opcode.ATTEND):
                stalls = units[_awaited(program, case, index, of)] | self._of_writes(of)
                self._count(coverage, unit_cell(of, program, case.committed), stalls)

    def _of_writes(self, of: Instruction) -> set[str]:
        if of.opcode == Opcode.ATTEND:
            return self._written["kv"]
        logits = of.opcode == Opcode.MATRIX and of["sink"] == Sink.LOGITS and not of["more"]
        return self._written["output"] if logits else set()

    def _count(self, coverage: Coverage, cell: tuple[str, str], stalls: set[str]) -> None:
        for stall in stalls or {"none"}:
            coverage.hit("top", *cell, stall)

    def cell(self, reading: ReadRange) -> tuple[str, str]:
        """Return kind and size of a range."""
        start = self.places[reading.buffer][0] + reading.start * self._beat_bytes
        named = {Destination.KEYS_VALUES: "CACHE", Destination.COPY: "COPY"}
        kind = named.get(reading.destination, f"READ {reading.destination.name}")
        return kind, beats_class(start, reading.beats, self._beat_bytes)

    def now(self) -> ReadRange | None:
        """Return the range of the next beat; None after the last beat."""
        return self._expected[self.owners[self.got]] if self.got < len(self.owners) else None

    def count_event(
        self, coverage: Coverage, program: Program, case: BenchPass, reading: ReadRange, event: str
    ) -> None:
        """Count an error or a reset for this range and for the units that wait for it."""
        for cell in (self.cell(reading), *units_of(program, case, reading)):
            coverage.hit("top", *cell, event)


def units_of(program: Program, case: BenchPass, reading: ReadRange) -> tuple[tuple[str, str], ...]:
    """Return kind and size of the units that wait for a range: the one that it serves, and a vector whose codes wait."""
    return tuple(
        unit_cell(of, program, case.committed)
        for index, of in issued(program, case.logits)
        if reading.serves == _awaited(program, case, index, of)
    )


def firsts(observer: Observer, program: Program, case: BenchPass) -> list[ReadRange]:
    """Return one range of a pass for each kind and size of the range and of the units that wait for it."""
    seen = dict[Any, ReadRange]()
    for reading in readings(program, case.committed, case.logits):
        seen.setdefault((observer.cell(reading), units_of(program, case, reading)), reading)
    return list(seen.values())


def _awaited(program: Program, case: BenchPass, index: int, of: Instruction) -> int:
    """Return the number of the instruction whose ranges an instruction waits for: mostly its own.

    The codes of a plain vector wait for the matrix that multiplies them.
    """
    if of.opcode != Opcode.VECTOR or of["normed"]:
        return index
    later = ((i, other) for i, other in issued(program, case.logits) if i > index)
    return next(i for i, other in later if other.opcode == Opcode.MATRIX and other["fresh"])
