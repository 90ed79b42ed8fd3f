"""Reset what stands between the compiled accelerator and its memory, alone and within passes: the documented end is seen.

AXI cannot repeat a burst, so a pass that waits for a forgotten one never ends. What must hold is that the host is told
within its limit, that a soft reset says that it does not help, and that a reset of the accelerator does.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, ResetInserter, Signal
from amaranth.lib.wiring import Component, connect, flipped

from edgedec.errors import DeviceError
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import Program, compile_model, laid_out
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.driver.driver import WHOLE_ROWS, Driver
from edgedec.schemes import TernaryScheme
from edgedec.sim.verify.cocotb_runner import missing_tools
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared

if missing_tools():
    pytest.skip(f"missing: {missing_tools()}", allow_module_level=True)

from edgedec.hw.accelerator import Accelerator
from edgedec.sim.cxxrtl.library import build
from edgedec.sim.cxxrtl.simulation import Simulation
from edgedec.sim.devices.sim import SimulatedDevice

pytestmark = pytest.mark.nightly  # the library takes minutes, once

RESET_CYCLES, WATCHDOG, SELECT = 3, 3000, REGISTER_MAP["descriptor_select"].offset
_COUNT_BITS = 27
# Bits of ``descriptor_select`` that say what is reset; the cycles until then are in the lower ones.
ACCELERATOR, TOGETHER, DURING_READS, DURING_A_WRITE, AT_REST = (1 << bit for bit in range(_COUNT_BITS, 32))


class WithInterconnect(Component):  # type: ignore[misc]  # Amaranth has no types
    """An accelerator behind an interconnect that forgets its bursts when it is reset.

    The interconnect takes one write at a time. It ends the bursts that the memory knows: it drops the beats of reads, and
    completes writes with beats without strobes. ``descriptor_select`` says what is reset, and when: the accelerator, alone
    or together with the interconnect, after a number of cycles, and the interconnect alone at the next moment after it at
    which reads, or a write, or neither are in progress.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._accelerator = Accelerator(config)
        super().__init__(dict(self._accelerator.signature.members.items()))

    def elaborate(self, platform: Any) -> Module:
        m, left, what = Module(), Signal(_COUNT_BITS), Signal(32 - _COUNT_BITS)
        accelerator, reset, forget = self._accelerator, Signal(), Signal()
        m.submodules.accelerator = ResetInserter(reset)(accelerator)
        connect(m, flipped(self.registers), accelerator.registers)
        m.d.comb += self.interrupt.eq(accelerator.interrupt)
        bus = self.registers
        with m.If(bus.awvalid & bus.awready & (bus.awaddr == SELECT) & (bus.wdata[_COUNT_BITS:] != 0)):
            m.d.sync += [left.eq(bus.wdata), what.eq(bus.wdata[_COUNT_BITS:])]
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        reading = Cat(self._read(m, name, forget) for name in self.signature.members if name.startswith("read")).any()
        writing, steady = self._write(m, forget)
        alone, together, during_reads, during_a_write, at_rest = what
        moment = (during_reads & reading & ~writing) | (during_a_write & writing) | (at_rest & ~reading & ~writing)
        now = (left == 0) & moment & steady
        m.d.comb += [
            reset.eq((alone | together) & (left != 0) & (left <= RESET_CYCLES)),
            forget.eq(now | (reset & together)),
        ]
        with m.If(now):
            m.d.sync += what.eq(0)
        return m

    def _read(self, m: Module, name: str, forget: Signal) -> Signal:
        """Connect a read port, and return whether a burst is in progress."""
        manager, memory = getattr(self._accelerator, name), getattr(self, name)
        asked, known, stale = Signal(8), Signal(8), Signal(8)
        for field in ("addr", "len", "size", "burst", "id", "cache", "prot", "valid"):
            m.d.comb += getattr(memory, f"ar{field}").eq(getattr(manager, f"ar{field}"))
        for field in ("id", "data", "resp", "last"):
            m.d.comb += getattr(manager, f"r{field}").eq(getattr(memory, f"r{field}"))
        ended = memory.rvalid & memory.rready & memory.rlast
        m.d.comb += [
            manager.arready.eq(memory.arready),
            manager.rvalid.eq(memory.rvalid & (stale == 0)),
            memory.rready.eq(manager.rready | (stale != 0)),
            asked.eq(known + (memory.arvalid & memory.arready) - ended),
        ]
        m.d.sync += known.eq(asked)
        with m.If(forget):
            m.d.sync += stale.eq(asked)
        with m.Elif(ended & (stale != 0)):
            m.d.sync += stale.eq(stale - 1)
        going = Signal(name=f"{name}_going")
        m.d.comb += going.eq((known != 0) & (stale == 0))
        return going

    def _write(self, m: Module, forget: Signal) -> tuple[Any, Any]:
        """Connect the write port, and return whether a burst lacks data, and whether nothing is offered to the memory."""
        manager, memory = self._accelerator.write, self.write
        busy, stale, left = Signal(), Signal(), Signal(9)
        for field in ("addr", "len", "size", "burst", "id", "cache", "prot"):
            m.d.comb += getattr(memory, f"aw{field}").eq(getattr(manager, f"aw{field}"))
        m.d.comb += [
            memory.awvalid.eq(manager.awvalid & ~busy),
            manager.awready.eq(memory.awready & ~busy),
            memory.wvalid.eq((left != 0) & (manager.wvalid | stale)),
            memory.wdata.eq(manager.wdata),
            memory.wlast.eq(left == 1),
            manager.wready.eq(memory.wready & (left != 0) & ~stale),
            manager.bid.eq(memory.bid),
            manager.bresp.eq(memory.bresp),
            manager.bvalid.eq(memory.bvalid & ~stale),
            memory.bready.eq(manager.bready | stale),
        ]
        with m.If(~stale):
            m.d.comb += memory.wstrb.eq(manager.wstrb)
        with m.If(memory.awvalid & memory.awready):
            m.d.sync += [busy.eq(1), left.eq(memory.awlen + 1)]
        with m.If(memory.wvalid & memory.wready):
            m.d.sync += left.eq(left - 1)
        with m.If(forget & busy):
            m.d.sync += stale.eq(1)
        with m.If(memory.bvalid & memory.bready):
            m.d.sync += [busy.eq(0), stale.eq(0)]
        return (left != 0) & ~stale, ~memory.awvalid & ~(memory.wvalid & ~memory.wready) & ~memory.bvalid


class Bench:
    """A driver on such an accelerator, and the integer model beside it."""

    def __init__(self) -> None:
        self.model = prepared(*float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False}))
        config = config_for(
            self.model,
            beat_bytes=16,
            ports=2,
            slots=1,
            context=64,
            prefetch_beats=64,
            top_k=4,
            ultra=False,
            clock_hz=250e6,
        )
        self.program: Program = compile_model(self.model, config)
        contents = np.zeros(laid_out(self.program.sizes, config.ports)[1], np.uint8)
        self.simulation = Simulation(build(WithInterconnect(config)), contents)
        self.device = SimulatedDevice(self.simulation, contents, 250_000_000)
        (embed,) = (op for op in self.model.graph.operations if isinstance(op, Embed))
        self.weight = self.model.constants[embed.name].weight

    def driver(self, max_cycles: int | None = None) -> Driver:
        return Driver(self.device, self.program, self.weight, max_cycles=max_cycles)

    def compare(self, driver: Driver, token: int) -> int:
        """Run a token at the first position, compare its logits, and return its cycles."""
        array, first = np.array([token], np.int32), np.zeros(1, np.int32)
        expected = self.model.open().forward(array, positions=first, visible=np.ones((1, 1), dtype=np.bool_))
        cycles = driver.forward(array, logits=WHOLE_ROWS).cycles
        assert np.array_equal(driver.logits(first).values, expected.values)
        return cycles

    def reset_after(self, cycles: int, what: int) -> None:
        self.simulation.write_register(SELECT, what | cycles)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("moment", [DURING_READS, DURING_A_WRITE], ids=["reads", "a write"])
def test_a_lost_burst_ends_in_an_error_and_a_reset_of_the_accelerator_mends_it(bench: Bench, moment: int) -> None:
    """Lose bursts at random moments; of a write, the interconnect is reset again with the accelerator."""
    rng = random.Random(moment)
    for round_ in range(6):
        driver = bench.driver()
        whole = bench.compare(driver, round_)
        if watched := round_ % 2 == 0:
            driver.registers.write("watchdog_limit", WATCHDOG)
        else:
            driver.registers.write("watchdog_limit", 0)
            driver.max_cycles = 3 * whole
        bench.reset_after(rng.randrange(RESET_CYCLES + 20, whole // 2), moment)
        before = bench.simulation.cycles
        late = "the watchdog expired" if watched else "gave no answer within"
        # Later bursts are answered, so that weights may come in the place of others, and be none.
        with pytest.raises(DeviceError, match=f"{late}|a byte of ternary weights does not encode five trits"):
            driver.forward(np.array([1], np.int32), logits=WHOLE_ROWS)
        assert bench.simulation.cycles - before < 4 * whole + WATCHDOG
        with pytest.raises(DeviceError, match="the buses are not at rest 100032 cycles after a soft reset"):
            driver.reset()
        bench.reset_after(RESET_CYCLES + 10, ACCELERATOR if moment == DURING_READS else TOGETHER)
        bench.simulation.run(RESET_CYCLES + 30)
        before = bench.simulation.cycles
        driver.reset()
        assert bench.simulation.cycles - before > 1 << 15, "the lost burst was waited for"
        driver.close()
        with bench.driver() as fresh:
            bench.compare(fresh, 7 + round_)


def test_a_reset_between_passes_changes_nothing(bench: Bench) -> None:
    with bench.driver() as driver:
        for token in range(3):
            bench.compare(driver, token)
            assert bench.simulation.idle
            bench.reset_after(RESET_CYCLES + 10, AT_REST)
            bench.simulation.run(RESET_CYCLES + 30)
