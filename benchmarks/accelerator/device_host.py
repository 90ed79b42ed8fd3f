"""Measure the driver's time for a pass on this machine, with a device that answers immediately."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from benchmarks.accelerator.device_clock import typical
from edgedec.bundle.bundle import Bundle
from edgedec.device import Kind
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.accelerator.model import AcceleratorModel
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets.accelerator import ProgramTarget
from edgedec.runtime.visibility import tree
from edgedec.schemes import FloatWeight
from edgedec.sim.machine.arena import Arena, ArenaBuffer
from edgedec.sim.machine.register_file import RegisterFile

__all__ = ["driver_costs"]

_REPEATS = 100
_MEMORY_BYTES = 1 << 29
_EVENTS = {"start": "done", "commit": "committed"}


class _Immediate:
    """A device that completes every operation immediately. Its results are zeros."""

    name = "none"
    kind: Kind = "simulated"

    def __init__(self, config: AcceleratorConfig) -> None:
        self.clock_hz = config.clock_hz
        self._arena = Arena(np.zeros(_MEMORY_BYTES, np.uint8), 0)
        self._registers = RegisterFile(REGISTER_MAP, self._pulsed)
        self._registers["configuration_hash"] = config.hash
        self._registers["counter_cycles"] = 1  # without it the driver would compute estimates, which takes time
        status = REGISTER_MAP["interrupt_status"]
        self._bits = {field.name: 1 << lsb for field, lsb in status.positions()}

    def read_register(self, offset: int) -> int:
        return self._registers.read(offset)

    def write_register(self, offset: int, value: int) -> None:
        self._registers.write(offset, value)

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> ArenaBuffer:
        return self._arena.allocate(size_bytes, alignment_bytes)

    def wait(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        return None

    def _pulsed(self, doorbell: str) -> None:
        if doorbell in _EVENTS:
            self._registers["interrupt_status"] |= self._bits[_EVENTS[doorbell]]


def driver_costs(shape: Mapping[str, Any], config: AcceleratorConfig) -> dict[tuple[str, int], float]:
    """Measure the seconds of "submit" and "result" by rows, and of "commit" by moved rows.

    They are those of the accelerator target of ``shape``, its driver and its registers, with the likeliest tokens of each
    row returned. On a board its bus and its caches add time, which cannot be measured on another machine.
    """
    program = shape_program(
        shape_graph(shape, layers=1), config, image=True
    )  # the host's work does not depend on layers
    embedding = FloatWeight(values=np.zeros((program.host.vocab, program.host.hidden), np.float32))
    words = SimpleNamespace(tokens=SimpleNamespace(size=program.host.vocab), tokenizer_hash="")
    limits = Limits(nodes=config.slots, depth=config.slots - 1, positions=config.context)
    target = ProgramTarget(
        cast(Bundle, words),
        _Immediate(config),
        AcceleratorModel(program=program, embedding=embedding),
        limits,
        bandwidth=None,
    )
    costs: dict[tuple[str, int], float] = {}
    for rows in range(1, config.slots + 1):
        costs |= _measured(target, limits, rows)
    return costs


def _measured(target: ProgramTarget, limits: Limits, rows: int) -> dict[tuple[str, int], float]:
    """Measure a tree of ``rows`` in which all nodes but the root are its children."""
    state = target.open(limits)
    parents = np.array([-1, *(0 for _ in range(rows - 1))], np.int32)
    every = np.arange(rows, dtype=np.int32)
    kept = np.array([0, *range(2, rows)], np.int32)
    seconds: dict[str, list[float]] = {"submit": [], "result": [], "commit": []}
    for _ in range(_REPEATS):
        work = Pass(
            ids=every,
            positions=state.length + np.minimum(every, 1),
            visible=tree(parents),
            logits=every,
            top_k=1,
        )
        began = time.perf_counter()
        ticket = target.submit([(state, work)])
        submitted = time.perf_counter()
        ticket.result()
        ended = time.perf_counter()
        seconds["submit"].append(submitted - began)
        seconds["result"].append(ended - submitted)
        if rows > 2:
            state.commit(kept)
            seconds["commit"].append(time.perf_counter() - ended)
        state.truncate(0)
    state.close()
    sizes = {"submit": rows, "result": rows, "commit": rows - 2}
    return {(kind, sizes[kind]): typical(samples) for kind, samples in seconds.items() if samples}
