"""An accelerator in cocotb with its memories and its driver, compared with the program in the interpreter."""

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
from edgedec.hw.config import READ_BURSTS
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
from edgedec.sim.verify.benches.workloads import (
    BenchPass,
    InterpretedPass,
    ReadRange,
    Workload,
    commit_readings,
    readings,
    workload,
)
from edgedec.sim.verify.coverage import Coverage

__all__ = ["ADDRESS", "AcceleratorBench"]

U8 = NDArray[np.uint8]

ADDRESS = 0x1F_0000_0000  # above 32 bits
_NS = 4  # nanoseconds of a cycle
_LONGEST = 60_000  # most cycles of a pass
_STANDSTILL = 100  # cycles, enough to write a register
_FEW_ADDRESSES = 2  # addresses that a memory with pauses queues, fewer than the accelerator has under way


class _Reads(FaultyReadRam):
    """A memory for reads, which can stall once, and which can wait before each burst.

    Members:
        left: number of beats until the memory stalls for ``_STANDSTILL`` cycles; None: it never stalls.
        latency: number of cycles from the end of a burst, or from an address that comes later, to the next burst.
    """

    memory: U8
    left: int | None = None
    latency = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._next_address = self.ar_channel.recv
        self.ar_channel.recv = self._late_address

    async def _late_address(self) -> Any:
        address = await self._next_address()
        for _ in range(self.latency):
            await RisingEdge(self.clock)
        return address

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
    """Return the slice of the memory.

    Raises:
        ValueError: the address is outside the memory; the bus models answer with an error.
    """
    at = address - ADDRESS
    if not 0 <= at <= memory.size - length:
        raise ValueError(f"{address:#x} is outside the memory")
    return slice(at, at + length)


class Reached(Exception):  # noqa: N818 - nothing went wrong
    """A run has reached the point where it is abandoned; its caller must not read registers any more."""


class _Machine:
    """The machine of a MachineDevice, which is called from a thread beside the simulation.

    A run without ``until`` always returns its largest number of cycles; the accelerator's counters have the actual number.
    """

    def __init__(self, dut: Any, bus: Any) -> None:
        self._dut, self._bus = dut, bus
        self.until: Callable[[], bool] | None = None  # condition that ends a run with Reached

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


class AcceleratorBench:
    """A program on the accelerator and in the interpreter; the rest of the memory holds noise."""

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
    async def begin(
        cls, dut: Any, kind: str, *, reads: float = 0.0, writes: float = 0.0, seed: object = 0
    ) -> AcceleratorBench:
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
        """Return the first byte of a buffer in the memory, by the observer's name of the buffer."""
        return self.driver.regions["cache" if name == "kv" else name].address - ADDRESS

    def pace(self, reads: float, writes: float) -> None:
        """Set the chance of a pause in each cycle of each channel.

        Without pauses of reads, the memory has room for every address that the accelerator may have under way, so that
        only the accelerator itself delays a beat.
        """
        for channel in (self.reads.ar_channel, self.reads.r_channel):
            channel.set_pause_generator(pauses(self.rng, reads))
        self.reads.ar_channel.queue_occupancy_limit = _FEW_ADDRESSES if reads else READ_BURSTS
        for channel in (self.writes.aw_channel, self.writes.w_channel, self.writes.b_channel):
            channel.set_pause_generator(pauses(self.rng, writes))

    @property
    def cache(self) -> U8:
        """The cache in memory; with one port this is the logical order."""
        return self.driver.regions["cache"].array[: self.work.program.cache_bytes]

    def forward(self, case: BenchPass) -> Any:
        """Run the pass on the accelerator."""
        self.driver.length = case.committed
        ids, slots = np.array(case.ids, np.int32), np.arange(len(case.ids))
        return self.driver.forward(
            ids,
            positions=np.array(case.places, np.int32),
            visible=np.array(case.masks)[:, None] >> slots & 1 == 1,
            logits=case.logits,
        )

    def check(self, case: BenchPass) -> int:
        """Run the pass on both, compare everything, and return the number of cycles."""
        program = self.work.program
        InterpretedPass.through(self.interpreter, self.work, case)
        self.observer.begin(readings(program, case.committed, case.logits))
        before = self.elsewhere()
        report = self.forward(case)
        assert report.beats == len(self.observer.owners), (
            "the number of beats differs from those that the program reads"
        )
        self.observer.end(self.coverage, program, case)
        assert np.array_equal(self.cache, self.interpreter.cache), "the cache"
        assert self.elsewhere() == before, "memory outside the buffers was written"
        rows = np.arange(len(case.ids), dtype=np.int32)
        if case.logits:
            host = self.work.host
            actual, expected = self.driver.results(rows), host.results(self.interpreter.output, rows)
            for name in ("ids", "logits", "mantissa", "exponent", "sums"):
                assert np.array_equal(getattr(actual, name), getattr(expected, name)), name
        if case.logits == 2:
            whole, reference = self.driver.logits(rows), host.logits(self.interpreter.output, rows)
            assert np.array_equal(whole.values, reference.values), "whole rows"
        return int(report.cycles)

    def commit(self, case: BenchPass, kept: Sequence[int]) -> None:
        """Commit slots of the last checked pass on both, and compare."""
        program = self.work.program
        self.interpreter.commit(case.committed, sum(1 << slot for slot in kept))
        self.observer.begin(commit_readings(program, case.committed, kept))
        report = self.driver.commit(np.array(kept, np.int32))
        if report is not None:
            assert report.beats == len(self.observer.owners)
            self.observer.end(self.coverage, program, None)
        assert np.array_equal(self.cache, self.interpreter.cache), "the cache after a commit"

    def elsewhere(self) -> bytes:
        """Return the bytes that no pass may write: program, image, and the memory after all buffers."""
        program = self.work.program
        starts, end = laid_out(program.sizes, program.config.ports)
        return self.memory[: starts["cache"]].tobytes() + self.memory[end:].tobytes()

    def failure(self, case: BenchPass) -> tuple[int, int, int]:
        """Return cause, descriptor and address of a pass that must fail."""
        self.observer.begin(readings(self.work.program, case.committed, case.logits))
        try:
            self.forward(case)
        except DeviceError:
            return self.error()
        raise AssertionError("the pass did not fail")

    def leave(
        self, begin: Callable[[], object], expected: Sequence[ReadRange], beats: int, *, still: bool
    ) -> ReadRange | None:
        """Start a program, and reset it softly after a number of its beats.

        Args:
            begin: starts the program.
            expected: ranges that the program reads.
            beats: number of beats before the reset.
            still: the memory stalls after these beats; otherwise more beats arrive until the reset takes effect.

        Returns:
            The range of the next beat.
        """
        self.observer.begin(expected)
        self.machine.until = lambda: self.observer.got >= beats
        self.reads.left = beats if still else None
        try:
            begin()
        except Reached:
            reached = self.observer.now()
        else:
            raise AssertionError("the program was not abandoned")
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
        """Start a program that must fail, with these pass parameters, and return its error."""
        self.observer.begin([])
        registers = self.driver.registers
        registers.write_fields("pass_parameters", **fields)
        registers.write_fields("interrupt_status", done=1, error=1, committed=1)
        registers.write_fields("control", **{doorbell: 1})
        self.machine.run(cycles)
        assert registers.read_field("status", "error") == 1, "it did not fail"
        return self.error()

    def recover(self, case: BenchPass) -> None:
        """Reset softly, and check that a pass works."""
        self.driver.reset()
        self.go_on(case)

    def go_on(self, case: BenchPass) -> None:
        """Check after a soft reset that the error is cleared and a pass works."""
        assert self.error() == (0, 0, 0)
        self.check(case)

    async def drive(self, scenario: Callable[..., None], *arguments: Any) -> None:
        """Run a scenario in a thread beside the simulation, and save its coverage if it passes."""
        await bridge(scenario)(self, *arguments)
        self.coverage.save()
