"""An accelerator, its memories and its driver in cocotb, beside the same program in the interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import cocotb
import numpy as np
from cocotb.task import bridge, resume
from cocotb.triggers import First, RisingEdge, Timer
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiReadBus, AxiWriteBus
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.hw.compiler.program import laid_out
from edgedec.runtime.driver.driver import Driver
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.machine.device import MachineDevice
from edgedec.sim.verify.benches.common import (
    FaultyReadRam,
    FaultyWriteRam,
    pauses,
    start,
    watch_channel,
    watch_read,
    watch_write,
)
from edgedec.sim.verify.benches.observer import Observer
from edgedec.sim.verify.benches.workloads import Pass, Ran, Reading, Workload, commit_readings, readings, workload
from edgedec.sim.verify.coverage import Coverage

__all__ = ["ADDRESS", "Bench"]

U8 = NDArray[np.uint8]

ADDRESS = 0x1F_0000_0000  # above 32 bits
_NS = 4  # of a cycle
_LONGEST = 60_000  # cycles that a pass may take
_STANDSTILL = 100  # cycles: time enough to write a register


class _Reads(FaultyReadRam):
    """Members:
    left: beats until the memory stands still for a while; None: it never does.
    """

    memory: U8
    left: int | None = None

    async def _read(self, address: int, length: int) -> bytes:
        if self.left is not None:
            for _ in range(_STANDSTILL if not self.left else 0):
                await RisingEdge(self.clock)
            self.left -= 1
        return await super()._read(address, length)

    def read(self, address: int, length: int) -> bytes:
        return self.memory[_inside(self.memory, address, length)].tobytes()


class _Writes(FaultyWriteRam):
    memory: U8

    def write(self, address: int, data: bytes) -> None:
        self.memory[_inside(self.memory, address, len(data))] = np.frombuffer(data, np.uint8)


def _inside(memory: U8, address: int, length: int) -> slice:
    """Raises ValueError, which the bus models answer with an error."""
    at = address - ADDRESS
    if not 0 <= at <= memory.size - length:
        raise ValueError(f"{address:#x} is nobody's")
    return slice(at, at + length)


class Reached(Exception):  # noqa: N818 - nothing went wrong
    """A run came to where it was to be left: its caller must not go on reading registers."""


class _Machine:
    """What a MachineDevice is made of, from a thread beside the simulation.

    A run without ``until`` says it took all cycles that it may take: the accelerator's own counters tell how many it were.
    """

    def __init__(self, dut: Any, bus: Any) -> None:
        self._dut, self._bus = dut, bus
        self.until: Callable[[], bool] | None = None  # a run is left as soon as this is true, by Reached

    def read_register(self, offset: int) -> int:
        answer = resume(self._bus.read)(offset, 4)
        assert answer.resp == 0
        return int.from_bytes(answer.data, "little")

    def write_register(self, offset: int, value: int) -> None:
        assert resume(self._bus.write)(offset, value.to_bytes(4, "little")).resp == 0

    def run(self, max_cycles: int) -> int:
        return int(resume(self._run)(max_cycles))

    async def _run(self, max_cycles: int) -> int:
        if self.until is not None:
            for cycle in range(max_cycles):
                await RisingEdge(self._dut.clk)
                if self.until():
                    raise Reached
                if int(self._dut.interrupt.value):
                    return cycle + 1
            return max_cycles
        if not int(self._dut.interrupt.value):
            await First(RisingEdge(self._dut.interrupt), Timer(_NS * max_cycles, unit="ns"))
        await RisingEdge(self._dut.clk)
        return max_cycles


class Bench:
    """A program beside the same one in the interpreter; noise where nothing was written."""

    dut: Any
    kind: str
    rng: random.Random
    work: Workload
    interpreter: Interpreter
    memory: U8
    reads: Any
    writes: Any
    observer: Observer
    coverage: Coverage
    driver: Driver
    device: MachineDevice
    machine: _Machine

    @classmethod
    async def begin(cls, dut: Any, kind: str, *, reads: float = 0.0, writes: float = 0.0, seed: object = 0) -> Bench:
        self = cls()
        self.kind, self.dut, self.work = kind, dut, workload(kind)
        self.rng = random.Random(f"{kind} {reads} {writes} {seed}")
        self.interpreter, self.coverage = Interpreter(self.work.program), Coverage()
        self.memory = np.frombuffer(self.rng.randbytes(1 << 17), np.uint8).copy()
        self.reads = _Reads(AxiReadBus.from_prefix(dut, "read0_"), dut.clk, dut.rst, size=1 << 40)
        self.writes = _Writes(AxiWriteBus.from_prefix(dut, "write_"), dut.clk, dut.rst, size=1 << 40)
        self.reads.memory = self.writes.memory = self.memory
        bus = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "registers_"), dut.clk, dut.rst)
        await start(dut)
        self.pace(reads, writes)
        watch_read(dut, "read0")
        watch_write(dut, "write")
        for letter, signals in (("b", ("bresp",)), ("r", ("rdata", "rresp"))):
            cocotb.start_soon(watch_channel(dut, "registers", letter, signals))
        self.observer = Observer(dut)
        cocotb.start_soon(self.observer.watch())
        self.machine = _Machine(dut, bus)
        await bridge(self._open)()
        return self

    def _open(self) -> None:
        program = self.work.program
        self.device = MachineDevice("bench", self.machine, self.memory, clock_hz=1e9 / _NS, address=ADDRESS)
        self.driver = Driver(self.device, program, self.work.embedding, max_cycles=_LONGEST)
        self.interpreter.cache[:] = self.cache
        sizes = {("kv" if name == "cache" else name): size for name, size in program.sizes.items()}
        self.observer.places = {name: (ADDRESS + self.start(name), size) for name, size in sizes.items()}

    def start(self, name: str) -> int:
        """Byte of the memory at which a buffer begins, by the name that the observer has for it."""
        return self.driver.registers.read(f"{name}_address") - ADDRESS

    def pace(self, reads: float, writes: float) -> None:
        """Chances of a pause in each cycle of each channel."""
        for channel in (self.reads.ar_channel, self.reads.r_channel):
            channel.set_pause_generator(pauses(self.rng, reads))
        for channel in (self.writes.aw_channel, self.writes.w_channel, self.writes.b_channel):
            channel.set_pause_generator(pauses(self.rng, writes))

    @property
    def cache(self) -> U8:
        """As it lies in memory: with one port as in logical order."""
        return self.driver.regions["cache"].array[: self.work.program.cache_bytes]

    def forward(self, given: Pass) -> Any:
        """The pass, on the accelerator."""
        self.driver.length = given.committed
        ids, slots = np.array(given.ids, np.int32), np.arange(len(given.ids))
        return self.driver.forward(
            ids,
            positions=np.array(given.places, np.int32),
            visible=np.array(given.masks)[:, None] >> slots & 1 == 1,
            logits=given.logits,
        )

    def check(self, given: Pass) -> int:
        """The pass on both; everything must be the same. Returns its cycles."""
        program = self.work.program
        Ran.through(self.interpreter, self.work, given)
        self.observer.begin(readings(program, given.committed, given.logits))
        before = self.elsewhere()
        report = self.forward(given)
        assert report.beats == len(self.observer.owners), "not as many beats were taken as the program reads"
        self.observer.end(self.coverage, program, given)
        assert np.array_equal(self.cache, self.interpreter.cache), "the cache"
        assert self.elsewhere() == before, "something else was written"
        rows = np.arange(len(given.ids), dtype=np.int32)
        if given.logits:
            host = self.work.host
            found, wanted = self.driver.results(rows), host.results(self.interpreter.output, rows)
            for name in ("ids", "logits", "mantissa", "exponent"):
                assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
        if given.logits == 2:
            whole, expected = self.driver.logits(rows), host.logits(self.interpreter.output, rows)
            assert np.array_equal(whole.values, expected.values), "whole rows"
        return int(report.cycles)

    def commit(self, given: Pass, kept: Sequence[int]) -> None:
        """Keeps slots of the pass that was checked last."""
        program = self.work.program
        self.interpreter.commit(given.committed, sum(1 << slot for slot in kept))
        self.observer.begin(commit_readings(program, given.committed, kept))
        report = self.driver.commit(np.array(kept, np.int32))
        if report is not None:
            assert report.beats == len(self.observer.owners)
            self.observer.end(self.coverage, program, None)
        assert np.array_equal(self.cache, self.interpreter.cache), "the cache after a commit"

    def elsewhere(self) -> bytes:
        """What no pass may write: program and image, and what lies behind all buffers."""
        program = self.work.program
        starts, end = laid_out(program.sizes, program.config.ports)
        return self.memory[: starts["cache"]].tobytes() + self.memory[end:].tobytes()

    def failure(self, given: Pass) -> tuple[int, int, int]:
        """Cause, descriptor and address of a pass that must fail."""
        self.observer.begin(readings(self.work.program, given.committed, given.logits))
        try:
            self.forward(given)
        except DeviceError:
            return self.error()
        raise AssertionError("the pass came to its end")

    def leave(
        self, begin: Callable[[], object], expected: Sequence[Reading], beats: int, *, still: bool
    ) -> Reading | None:
        """Begins a program, and resets it softly when so many of its beats have come.

        Args:
            still: the memory stands still behind them; otherwise some more come until the reset is there.

        Returns:
            The range whose beats were coming.
        """
        self.observer.begin(expected)
        self.machine.until = lambda: self.observer.got >= beats
        self.reads.left = beats if still else None
        try:
            begin()
        except Reached:
            reached = self.observer.now()
        else:
            raise AssertionError("the program came to its end")
        finally:
            self.machine.until = None
        self.driver.reset()
        self.reads.left = None
        return reached

    def error(self) -> tuple[int, int, int]:
        registers = self.driver.registers
        cause, descriptor = (registers.read_field("error", field) for field in ("cause", "descriptor"))
        return cause, descriptor, registers.read("error_address")

    def ring(self, doorbell: str, *, cycles: int = _LONGEST, **fields: int) -> tuple[int, int, int]:
        """A program with these pass parameters: what the error register says then."""
        self.observer.begin([])
        registers = self.driver.registers
        registers.write_fields("pass_parameters", **fields)
        registers.write_fields("interrupt_status", done=1, error=1, committed=1)
        registers.write_fields("control", **{doorbell: 1})
        self.machine.run(cycles)
        assert registers.read_field("status", "error") == 1, "it did not fail"
        return self.error()

    def recover(self, given: Pass) -> None:
        """A soft reset, and then a pass as if nothing had been."""
        self.driver.reset()
        self.go_on(given)

    def go_on(self, given: Pass) -> None:
        """A pass behind a soft reset, as if nothing had been."""
        assert self.error() == (0, 0, 0)
        self.check(given)

    async def drive(self, scenario: Callable[..., None], *arguments: Any) -> None:
        """Runs it in a thread beside the simulation. What it covered counts if it passes."""
        await bridge(scenario)(self, *arguments)
        self.coverage.save()
