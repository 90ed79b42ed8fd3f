"""The accelerator's RTL, clock by clock, beside a model of the board's memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.config import AcceleratorConfig
from edgedec.progress import Progress, silent
from edgedec.sim.cxxrtl.accelerator import accelerator_library
from edgedec.sim.cxxrtl.simulation import Simulation
from edgedec.sim.machine.device import MachineDevice

__all__ = ["SimulatedDevice", "open_device"]


class SimulatedDevice(MachineDevice):
    """Members:
    simulation: for faults on purpose, for recorded ports and counts of the buses.
    """

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
    """Builds the RTL of ``config`` as a library, minutes at the first time, and switches it on.

    Args:
        memory: ``ddr`` is the KV260's, ``flat`` moves ``bytes_per_second``, ``ideal`` has no such limit.
        memory_bytes: that the ports see; what nobody has touched takes none of the host's.
        trace: with the ports that edgedec.sim.verify.verification looks at.
        cache: folder of the libraries.
        progress: of the build.

    Raises:
        ToolError: yosys or a C++ compiler is missing or fails.
        UsageError: no such memory.
    """
    library = accelerator_library(config, trace=trace, cache=cache, progress=progress)
    contents = np.zeros(memory_bytes, np.uint8)
    clock_hz = int(config.clock_hz)
    simulation = Simulation(library, contents, memory=memory, bytes_per_second=bytes_per_second, clock_hz=clock_hz)
    return SimulatedDevice(simulation, contents, clock_hz)
