"""The device ``sim``: the accelerator's RTL, cycle by cycle, with a model of the board's memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.device import LoopAccess
from edgedec.hw.config import AcceleratorConfig
from edgedec.progress import Progress, silent
from edgedec.sim.cxxrtl.accelerator import accelerator_library
from edgedec.sim.cxxrtl.simulation import Simulation
from edgedec.sim.machine.device import MachineDevice

__all__ = ["TAPS", "SimulatedDevice", "open_device"]

TAPS = True  # it writes tapped vectors


class SimulatedDevice(MachineDevice):
    """The RTL in a library as a device.

    Members:
        simulation: access to injected faults, recorded ports and counts of the buses.
    """

    loop_access = LoopAccess()

    def __init__(self, simulation: Simulation, contents: NDArray[np.uint8], clock_hz: float) -> None:
        super().__init__("sim", simulation, contents, clock_hz=clock_hz)
        self.simulation = simulation


def open_device(
    config: AcceleratorConfig,
    *,
    memory: str = "ddr",
    bytes_per_second: int = 13_300_000_000,
    memory_bytes: int = 1 << 30,
    trace: bool = False,
    cache: Path | None = None,
    progress: Progress = silent,
) -> SimulatedDevice:
    """Build the RTL of ``config`` as a library, which takes minutes the first time, and open it as a device.

    Args:
        memory: ``ddr`` is the memory of the KV260, ``flat`` moves ``bytes_per_second``, ``ideal`` has no limit.
        memory_bytes: size of the memory that the ports see; untouched pages take no memory of the host.
        trace: add the ports that edgedec.sim.verify.verification records.
        cache: folder of the libraries.
        progress: called with the progress of the build.

    Raises:
        ToolError: yosys or a C++ compiler is missing or fails.
        UsageError: ``memory`` is unknown.
    """
    library = accelerator_library(config, trace=trace, cache=cache, progress=progress)
    contents = np.zeros(memory_bytes, np.uint8)
    clock_hz = int(config.clock_hz)
    simulation = Simulation(library, contents, memory=memory, bytes_per_second=bytes_per_second, clock_hz=clock_hz)
    return SimulatedDevice(simulation, contents, clock_hz)
