"""The dispatcher, which passes commands to the units in order."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.instruction_layouts import layout
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.shallow_fifo import ShallowFifo
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.program_memory import index_bits
from edgedec.hw.isa.instructions import INSTRUCTION_BYTES, Opcode

__all__ = ["UNITS", "Dispatcher", "command"]

UNITS = {  # output of the dispatcher for each kind of command
    "loads": Opcode.LOAD,
    "vectors": Opcode.VECTOR,
    "matrices": Opcode.MATRIX,
    "attends": Opcode.ATTEND,
    "copies": Opcode.COPY,
}
_QUEUED = 16  # commands that may wait
_SETTLED = 4  # cycles that idle must hold after the last command; more than the registers that may delay it


def command(config: AcceleratorConfig) -> data.StructLayout:
    """Return the layout of an instruction with its number."""
    return data.StructLayout({"bits": unsigned(8 * INSTRUCTION_BYTES), "index": index_bits(config)})


class Dispatcher(CostedComponent):
    """Queue 16 commands, and offer one command at a time to its unit.

    Parameters:
        config: configuration of the accelerator, of which instructions matters.

    Members:
        commands: In(stream ``command(config)``). STOP, and the commands of ``UNITS``.
        idle: In(1). No unit has work. It must become low at the latest in the fourth cycle after the transfer of a
            command other than COPY, and stay low until the command is completely executed.
        writes_idle: In(1). No write is pending, and all writes are answered. The same holds for it and COPY.
        stopped: In(1). Offer nothing.
        loads, vectors, matrices, attends, copies: Out(streams layout(Opcode)). At most one of them offers a command.
        issued: Out(1). High in the cycle in which a unit takes a command.
        index: Out. Number of the last issued command, from the next cycle on; 0 before the first one.
        ended: Out(1). High for one cycle when STOP is reached with units and writes idle.
        quiet: Out(1). No command is queued or offered, and the units are idle.

    Latency: 2 cycles from a command to its unit; 5 from ``idle`` if it waits.
    Throughput: one command in 2 cycles.
    Source: derived here.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._command = command(config)
        self._config = config
        super().__init__(
            lambda: {
                "commands": In(stream.Signature(self._command)),
                "idle": In(1),
                "writes_idle": In(1),
                "stopped": In(1),
                **{name: Out(stream.Signature(layout(opcode))) for name, opcode in UNITS.items()},
                "issued": Out(1),
                "index": Out(self._command["index"].shape),
                "ended": Out(1),
                "quiet": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        config = self._config
        width = command(config).size
        return small_queue(width, _QUEUED) + Resources(lut=30, ff=width + index_bits(config) + 6 + 2 + 6)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = ShallowFifo(shape=self._command, depth=_QUEUED)
        now = Signal(self._command, reset_less=True)
        busy = Signal()
        units = [getattr(self, name) for name in UNITS]
        # goal: unit of the command, one-hot; free: the command need not wait any more.
        goal = Signal(len(units))
        stop = Signal()
        free = Signal()
        calm, written = self._calm(m, self.idle), self._calm(m, self.idle & self.writes_idle)
        self._check(m)
        connect(m, flipped(self.commands), queue.input)
        m.d.comb += [
            queue.output.ready.eq(~busy),
            *(Value.cast(unit.payload).eq(now.bits) for unit in units),
            *(unit.valid.eq(bit & free & ~self.stopped) for unit, bit in zip(units, goal, strict=True)),
            self.issued.eq(Cat(unit.valid & unit.ready for unit in units).any()),
            self.ended.eq(stop & written & ~self.stopped),
            self.quiet.eq(calm & ~busy & ~queue.output.valid),
        ]
        with m.If(busy & calm):
            m.d.sync += free.eq(1)
        with m.If(self.issued | self.ended):
            m.d.sync += [busy.eq(0), goal.eq(0), stop.eq(0), free.eq(0)]
        with m.If(self.issued):
            m.d.sync += self.index.eq(now.index)
        with m.If(queue.output.valid & ~busy):
            due = queue.output.p
            head = data.View(layout(Opcode.STOP), due.bits)
            m.d.sync += [
                now.eq(due),
                busy.eq(1),
                free.eq(~head.wait),
                goal.eq(Cat(head.opcode == opcode for opcode in UNITS.values())),
                stop.eq(head.opcode == Opcode.STOP),
            ]
        return m

    def _check(self, m: Module) -> None:
        """Assert that ``idle`` becomes low after a command, or ``writes_idle`` after a copy."""
        cycles = Signal(range(_SETTLED + 1))  # cycles since the command, 0 without one
        worked = Signal()
        copies = Signal()
        works = ~Mux(copies, self.writes_idle, self.idle)
        with m.If(self.issued):
            m.d.sync += [cycles.eq(1), worked.eq(0), copies.eq(self.copies.valid)]
        with m.Elif(cycles != 0):
            m.d.sync += [cycles.eq(Mux(cycles == _SETTLED, 0, cycles + 1)), worked.eq(worked | works)]
            with m.If(cycles == _SETTLED):
                contract(m, worked | works, "Idle becomes low within four cycles of a command")

    def _calm(self, m: Module, idle: Value) -> Value:
        """Return whether ``idle`` has held for ``_SETTLED`` cycles after the last command."""
        calm = Signal(_SETTLED)
        m.d.sync += calm.eq(Mux(idle & ~self.issued, Cat(1, calm), 0))
        return calm[-1]
