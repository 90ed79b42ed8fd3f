"""Run an accelerator and its memory in Amaranth's simulator, as a device for the driver."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedec.hw.accelerator import Accelerator
from edgedec.hw.config import AcceleratorConfig
from edgedec.sim.machine.device import MachineDevice
from tests.hw.support.bench_streams import checked_simulator
from tests.hw.support.fake_axi_memory import AxiMemory

__all__ = ["simulated"]


class _Machine:
    """An accelerator whose clock runs only in a call: a register access, or a wait for the interrupt."""

    def __init__(self, config: AcceleratorConfig, memory: bytearray) -> None:
        self.top = Accelerator(config)
        self._call: tuple[str, int, int] | None = None
        self._answer = 0
        self._simulator = checked_simulator(self.top)
        self._simulator.add_clock(1e-6)
        shared: dict[str, Any] = {"memory": memory, "data_bytes": config.port_bytes, "latency": 4}
        for port in range(config.ports):
            reads = AxiMemory(getattr(self.top, f"read{port}"), **shared)
            self._simulator.add_testbench(reads.serve_reads, background=True)
        writes = AxiMemory(self.top.write, **shared)
        self._simulator.add_testbench(writes.serve_writes, background=True)
        self._simulator.add_testbench(self._serve)

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


def simulated(config: AcceleratorConfig, memory_bytes: int) -> MachineDevice:
    """Return a device with ``memory_bytes`` bytes of memory."""
    memory = bytearray(memory_bytes)
    machine = _Machine(config, memory)
    return MachineDevice("bench", machine, np.frombuffer(memory, np.uint8), clock_hz=config.clock_hz)
