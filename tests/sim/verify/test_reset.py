"""Reset the compiled accelerator alone within passes: the memory answers old bursts, and fresh tokens are right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib.wiring import Component, connect, flipped

from edgedec.graph.ops import Embed
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import compile_model, laid_out
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

ROUNDS, RESET_CYCLES = 40, 3
SELECT, CONTROL = (REGISTER_MAP[name].offset for name in ("descriptor_select", "control"))


class Resettable(Component):  # type: ignore[misc]  # Amaranth has no types
    """An accelerator that is reset some cycles after their number, and bit 31, was written to ``descriptor_select``."""

    def __init__(self, config: AcceleratorConfig) -> None:
        self._accelerator = Accelerator(config)
        super().__init__(dict(self._accelerator.signature.members.items()))

    def elaborate(self, platform: Any) -> Module:
        m, left, reset = Module(), Signal(32), Signal()
        m.submodules.accelerator = ResetInserter(reset)(self._accelerator)
        for name in self._accelerator.signature.members:
            inner = getattr(self._accelerator, name)
            if name == "interrupt":
                m.d.comb += self.interrupt.eq(inner)
            else:
                connect(m, flipped(getattr(self, name)), inner)
        bus = self.registers
        m.d.comb += reset.eq((left != 0) & (left <= RESET_CYCLES))
        with m.If(bus.awvalid & bus.awready & (bus.awaddr == SELECT) & bus.wdata[31]):
            m.d.sync += left.eq(bus.wdata[:31])
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        return m


@pytest.mark.parametrize("memory", ["ddr", "flat"])
def test_tokens_after_a_reset_in_mid_burst_equal_the_integer_model(memory: str) -> None:
    """Begin a pass, reset after a random number of its cycles, begin anew at once, and compare all logits of two tokens."""
    model = prepared(*float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False}))
    config = config_for(
        model, beat_bytes=16, ports=2, slots=1, context=64, prefetch_beats=64, top_k=4, ultra=False, clock_hz=250e6
    )
    program, rng = compile_model(model, config), random.Random(memory)
    contents = np.zeros(laid_out(program.sizes, config.ports)[1], np.uint8)
    simulation = Simulation(build(Resettable(config)), contents, memory=memory)
    device = SimulatedDevice(simulation, contents, 250_000_000)
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    weight, whole = model.constants[embed.name].weight, 0
    busy = list[bool]()
    for number in range(ROUNDS):
        sequence = model.open()
        with Driver(device, program, weight) as driver:
            for position, token in enumerate((number, 14)):
                array = np.array([token], np.int32)
                expected = sequence.forward(
                    array, positions=np.array([position], np.int32), visible=np.ones((1, 1), dtype=np.bool_)
                )
                whole = driver.forward(array, logits=WHOLE_ROWS).cycles
                assert np.array_equal(driver.logits(np.zeros(1, np.int32)).values, expected.values)
                for holder in (driver, sequence):
                    holder.commit(np.zeros(1, np.int32))
            after = rng.randrange(RESET_CYCLES + 20, whole + 200)  # the end of a pass writes results
            simulation.write_register(SELECT, 1 << 31 | after)
            simulation.write_register(CONTROL, 1)
            while after > 0:
                after -= simulation.run(after)  # it stops at the interrupt of the pass before
            busy.append(not simulation.idle)
    assert sum(busy) > ROUNDS / 2, "too few resets were in the middle of a burst"
