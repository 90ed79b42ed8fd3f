"""Simulate passes of an accelerator together with a model of the board's memory, as input of ``Extended``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accelerator.speed_figures import Counted, PassCase
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.runtime.driver.driver import BEST, NO_LOGITS, Driver
from edgedec.schemes import FloatWeight
from edgedec.sim.cxxrtl.simulation import Simulation
from edgedec.sim.machine.device import MachineDevice

__all__ = ["Simulated"]

_PASS_CYCLES = 50_000_000


class Simulated:
    """``measure`` of an ``Extended``.

    Args:
        library: library of the accelerator of ``config``, made by edgedec.sim.cxxrtl.library.build.
        memory: "ddr" or "ideal" of Simulation; a case with a bandwidth always has a flat memory.
        bandwidth: bytes per second of cases that have none; None: they have the memory ``memory``.
    """

    def __init__(
        self,
        shape: Mapping[str, Any],
        config: AcceleratorConfig,
        library: Path,
        *,
        memory: str = "ddr",
        bandwidth: float | None = None,
    ) -> None:
        self._shape, self._config, self._library, self._memory = shape, config, library, memory
        self._bandwidth = bandwidth
        self._programs = lru_cache(maxsize=2)(self._program)

    def __call__(self, case: PassCase, layers: int, vocab: int) -> Counted:
        """Simulate a pass of a model with this many layers and rows of the head.

        Raises:
            DeviceError: the accelerator reported an error.
        """
        program, table = self._programs(layers, vocab)
        contents = np.zeros(laid_out(program.sizes, self._config.ports)[1], np.uint8)
        bandwidth = self._bandwidth if case.bandwidth is None else case.bandwidth
        machine = Simulation(
            self._library,
            contents,
            memory=self._memory if bandwidth is None else "flat",
            bytes_per_second=int(bandwidth or 1),
            clock_hz=int(self._config.clock_hz),
        )
        device = MachineDevice("sim", machine, contents, clock_hz=int(self._config.clock_hz))
        driver = Driver(device, program, table, max_cycles=_PASS_CYCLES)
        driver.length = case.committed  # the cached keys and values are zeros
        ids = np.arange(case.slots, dtype=np.int32)
        report = driver.forward(ids, logits=BEST if case.logits else NO_LOGITS)
        return Counted(cycles=report.cycles, beats=report.beats)

    def _program(self, layers: int, vocab: int) -> tuple[Program, FloatWeight]:
        program = shape_program(shape_graph(self._shape, layers=layers, vocab=vocab), self._config, image=True)
        values = np.random.default_rng(1).standard_normal((vocab, program.host.hidden), np.float32)
        return program, FloatWeight(values=values)
