"""Run programs on an accelerator behind the processing system's AXI3 ports, compiled: the logits are the integer model's."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.graph.ops import Embed
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.program import compile_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.runtime.driver.driver import WHOLE_ROWS, Driver
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.schemes import TernaryScheme
from edgedec.sim.verify.cocotb_runner import missing_tools
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared

if missing_tools() or find_compiler() is None:
    pytest.skip(f"missing: {missing_tools() or 'a C++ compiler'}", allow_module_level=True)

from edgedec.boards.flows.openxc7.project import accelerator_of
from edgedec.sim.cxxrtl.library import build
from edgedec.sim.cxxrtl.simulation import Simulation
from edgedec.sim.devices.sim import SimulatedDevice
from tests.hw.system.zynq.support.make_processing_system import ProcessingSystem

pytestmark = pytest.mark.nightly  # the library takes minutes, once

MEMORY_BYTES = 1 << 24
TOKENS = (7, 14, 21, 28)


@pytest.fixture(scope="module")
def model() -> IntegerModel:
    return prepared(*float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False}))


@pytest.fixture(scope="module")
def config(model: IntegerModel) -> AcceleratorConfig:
    return config_for(
        model,
        beat_bytes=8,
        ports=1,
        slots=1,
        context=64,
        prefetch_beats=64,
        top_k=4,
        ultra=False,
        burst_beats=16,
        clock_hz=50e6,
    )


@pytest.fixture(scope="module")
def simulation(config: AcceleratorConfig) -> tuple[Simulation, SimulatedDevice]:
    contents = np.zeros(MEMORY_BYTES, np.uint8)
    library = build(ProcessingSystem(config, accelerator_of(config)))
    simulation = Simulation(library, contents, memory="flat", bytes_per_second=2_100_000_000, clock_hz=50_000_000)
    return simulation, SimulatedDevice(simulation, contents, 50_000_000)


def test_tokens_through_the_bridge_equal_the_integer_model(
    model: IntegerModel, config: AcceleratorConfig, simulation: tuple[Simulation, SimulatedDevice]
) -> None:
    """Let the driver load the program, run a pass per token, wait for the interrupt, and commit; compare all logits."""
    machine, device = simulation
    cycles = 0
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    program, sequence = compile_model(model, config), model.open()
    with Driver(device, program, model.constants[embed.name].weight) as driver:
        for position, token in enumerate(TOKENS):
            array = np.array([token], np.int32)
            expected = sequence.forward(
                array, positions=np.array([position], np.int32), visible=np.ones((1, 1), dtype=np.bool_)
            )
            cycles += driver.forward(array, logits=WHOLE_ROWS).cycles
            assert np.array_equal(driver.logits(np.zeros(1, np.int32)).values, expected.values)
            for holder in (driver, sequence):
                holder.commit(np.zeros(1, np.int32))
    # Without its interrupt a pass ends no earlier than the driver's first look, after 10 ms.
    assert 0 < cycles < machine.cycles < int(0.010 * config.clock_hz)
    counts = machine.counts
    assert counts.read_beats[0] / counts.read_bursts[0] > 8
    assert counts.read_beats[0] <= 16 * counts.read_bursts[0]
