"""Run an accelerator and its memory in Amaranth's simulator, as a device for the driver."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from amaranth.hdl import ClockDomain, Fragment, MemoryInstance, Module, Value
from amaranth.hdl._ast import Property, Switch

from edgedec.hw.accelerator import Accelerator
from edgedec.hw.config import AcceleratorConfig
from edgedec.sim.machine.device import MachineDevice
from tests.hw.support.bench_streams import checked_simulator
from tests.hw.support.fake_axi_memory import AxiMemory

__all__ = ["simulated"]


class _Machine:
    """An accelerator whose clock runs only in a call: a register access, or a wait for the interrupt."""

    def __init__(
        self, config: AcceleratorConfig, memory: bytearray, power_up: int | None, outliving: Sequence[str]
    ) -> None:
        self.top = Accelerator(config)
        self._call: tuple[str, int, int] | None = None
        self._answer = 0
        self._domain = ClockDomain("sync")
        self._state: list[Value] = []
        self._power_up, self._outliving = power_up, outliving
        self._simulator = checked_simulator(self.top, prepare=self._prepared)
        self._simulator.add_clock(1e-6)
        shared: dict[str, Any] = {"memory": memory, "data_bytes": config.port_bytes, "latency": 4}
        for port in range(config.ports):
            reads = AxiMemory(getattr(self.top, f"read{port}"), **shared)
            self._simulator.add_testbench(reads.serve_reads, background=True)
        writes = AxiMemory(self.top.write, **shared)
        self._simulator.add_testbench(writes.serve_writes, background=True)
        self._simulator.add_testbench(self._serve)

    def _prepared(self, watched: Any) -> Module:
        """Return the design with its clock's domain, whose reset is then at hand, and keep what holds state in it."""
        m, fragment = Module(), Fragment.get(watched, None)
        m.domains += self._domain
        m.submodules.top = fragment
        found = list(_state(fragment, self._outliving))
        mixed = {id(one) for domain, one in found if domain == "comb"}  # some bits are no registers
        kept = {id(one): one for _, one in found if id(one) not in mixed}
        self._state = [Value.cast(one) for one in kept.values()]
        if self._power_up is not None:  # contracts hold once the reset has ended
            for one in _contracts(fragment):
                one._test = one._test.bool() | self._domain.rst
        return m

    async def _powered_up(self, ctx: Any) -> None:
        """Give all state random values, and hold the reset for 64 cycles."""
        rng = random.Random(self._power_up)
        for one in self._state:
            ctx.set(one, rng.getrandbits(len(one)))
        ctx.set(self._domain.rst, 1)
        for _ in range(64):
            await ctx.tick()
        ctx.set(self._domain.rst, 0)
        await ctx.tick()

    def read_register(self, offset: int) -> int:
        return self._called("read", offset, 0)

    def write_register(self, offset: int, value: int) -> None:
        self._called("write", offset, value)

    def run(self, max_cycles: int) -> int:
        return self._called("run", max_cycles, 0)

    def _called(self, kind: str, number: int, value: int) -> int:
        self._call = kind, number, value
        while self._call is not None:
            self._simulator.advance()
        return self._answer

    async def _serve(self, ctx: Any) -> None:
        bus = self.top.registers
        for name in ("bready", "rready"):
            ctx.set(getattr(bus, name), 1)
        if self._power_up is not None:
            await self._powered_up(ctx)
        while True:
            if self._call is None:
                await ctx.delay(0)
                continue
            kind, number, value = self._call
            if kind == "run":
                self._answer = 0
                while self._answer < number and not ctx.get(self.top.interrupt):
                    await ctx.tick()
                    self._answer += 1
            elif kind == "write":
                for name, bits in (("awaddr", number), ("wdata", value), ("wstrb", 15), ("awvalid", 1), ("wvalid", 1)):
                    ctx.set(getattr(bus, name), bits)
                await ctx.tick().until(bus.awready)
                for name in ("awvalid", "wvalid"):
                    ctx.set(getattr(bus, name), 0)
                await ctx.tick().until(bus.bvalid)
            else:
                ctx.set(bus.araddr, number)
                ctx.set(bus.arvalid, 1)
                await ctx.tick().until(bus.arready)
                ctx.set(bus.arvalid, 0)
                (self._answer,) = await ctx.tick().sample(bus.rdata).until(bus.rvalid)
            self._call = None


def simulated(
    config: AcceleratorConfig, memory_bytes: int, *, power_up: int | None = None, outliving: Sequence[str] = ()
) -> MachineDevice:
    """Return a device with ``memory_bytes`` bytes of memory.

    Args:
        power_up: seed of random values that all state has before a first reset; without it, all begins as in a bitstream.
        outliving: parts of the accelerator that keep their first values then.
    """
    memory = bytearray(memory_bytes)
    machine = _Machine(config, memory, power_up, outliving)
    return MachineDevice("bench", machine, np.frombuffer(memory, np.uint8), clock_hz=config.clock_hz)


def _contracts(fragment: Fragment) -> Iterator[Any]:
    """Yield the assertions of a fragment and of its parts."""
    left = [one for statements in fragment.statements.values() for one in statements]
    while left:
        one = left.pop()
        if isinstance(one, Property):
            yield one
        elif isinstance(one, Switch):
            left += [inner for _, statements, _ in one.cases for inner in statements]
    for part, *_ in fragment.subfragments:
        yield from _contracts(part)


def _state(fragment: Fragment, outliving: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the signals of a fragment that are driven and the words of written memories, each with its domain.

    Those of the parts ``outliving`` are left out, and the registers of read ports, which the simulator does not let a bench
    drive.
    """
    if isinstance(fragment, MemoryInstance) and fragment._write_ports:
        yield from (("sync", fragment._data[row]) for row in range(fragment._data.depth))
    for domain, statements in fragment.statements.items():
        yield from ((domain, signal) for statement in statements for signal in statement._lhs_signals())
    for part, name, _ in fragment.subfragments:
        if name not in outliving:
            yield from _state(part, ())
