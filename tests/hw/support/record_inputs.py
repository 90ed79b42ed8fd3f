"""Record what the benches of Amaranth's simulator give a component, cycle by cycle: a plug-in of pytest.

    RECORDED_INPUTS=FOLDER RECORDED_MODULE=edgedec.hw.blocks.fifo .venv/bin/pytest -p tests.hw.support.record_inputs FILE

FOLDER gets a file ``HASH.il`` for each configuration of the module's components that is simulated by itself in the one
domain "sync", with ``HASH.json`` (class, arguments, ports) and ``HASH.N.trace`` for each simulation.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Cat, Const, Value
from amaranth.lib.wiring import Component, In
from amaranth.sim import Simulator

from edgedec.hw.emit.rtlil import to_rtlil
from edgedec.sim.verify.axi_monitor import Watched
from edgedec.sim.verify.verilated import TOP, words

FOLDER, MODULE = "RECORDED_INPUTS", "RECORDED_MODULE"
MOST_CYCLES = 20_000  # cycles of a configuration


class Recorder:
    """The recorded configurations of the components of a module."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._kinds = dict[str, tuple[str, str]]()  # class and arguments -> hash, description
        self._texts = dict[str, str]()
        self._traces = dict[str, list[bytearray]]()
        self._cycles = dict[str, int]()

    def watches(self, toplevel: Any) -> Any:
        """Return the component of a simulation if it is of the module, else None."""
        unit = toplevel._inner if isinstance(toplevel, Watched) else toplevel
        return unit if type(unit).__module__ == self.module and hasattr(unit, "_made_from") else None

    async def record(self, ctx: Any, unit: Any) -> None:
        ports = _ports(unit)
        key = self._kind(unit, ports)
        trace = bytearray()
        self._traces[key].append(trace)
        sides = [[value for value, flow in ports.values() if (flow is In) == side] for side in (True, False)]
        sizes = [4 * words({str(n): len(value) for n, value in enumerate(side)}) for side in sides]
        async for _, _, given, found in ctx.tick().sample(*(Cat(side) for side in sides)):
            if self._cycles[key] >= MOST_CYCLES:
                return
            self._cycles[key] += 1
            trace += int(given).to_bytes(sizes[0], "little") + int(found).to_bytes(sizes[1], "little")

    def _kind(self, unit: Any, ports: dict[str, tuple[Any, Any]]) -> str:
        arguments, options = unit._made_from
        name = (
            f"{type(unit).__name__}({', '.join([*map(repr, arguments), *(f'{k}={v!r}' for k, v in options.items())])})"
        )
        if name not in self._kinds:
            text = to_rtlil(type(unit)(*arguments, **options), name=TOP)
            key = hashlib.sha256(text.encode()).hexdigest()[:16]
            widths = [
                {one: len(value) for one, (value, flow) in ports.items() if (flow is In) == side}
                for side in (True, False)
            ]
            self._kinds[name] = key, json.dumps({"name": name, "inputs": widths[0], "outputs": widths[1]})
            self._texts[key] = text
            self._traces.setdefault(key, [])
            self._cycles.setdefault(key, 0)
        return self._kinds[name][0]

    def save(self, folder: Path) -> None:
        for key, described in self._kinds.values():
            (folder / f"{key}.il").write_text(self._texts[key], "utf-8")
            (folder / f"{key}.json").write_text(described, "utf-8")
            for number, trace in enumerate(trace for trace in self._traces[key] if trace):
                (folder / f"{key}.{number}.trace").write_bytes(trace)


def _ports(unit: Any) -> dict[str, tuple[Any, Any]]:
    """Return each port that RTLIL has, by its name there, with its direction."""
    found = {}
    for path, member, value in unit.signature.flatten(unit):
        value = Value.cast(value)
        if not isinstance(value, Const):
            found["__".join(map(str, path))] = value, member.flow
    return found


_recorder = Recorder(os.environ.get(MODULE, ""))


def pytest_configure() -> None:
    begin, clocked, simulate = Component.__new__, Simulator.add_clock, Simulator.__init__

    def new(cls: type, *arguments: Any, **options: Any) -> Any:
        unit = begin(cls) if begin is object.__new__ else begin(cls, *arguments, **options)
        unit._made_from = arguments, options
        return unit

    def init(self: Any, toplevel: Any) -> None:
        self._recorded_unit, self._clocks = _recorder.watches(toplevel), 0
        simulate(self, toplevel)

    def add_clock(self: Any, *arguments: Any, **options: Any) -> None:
        clocked(self, *arguments, **options)
        self._clocks += 1
        if self._recorded_unit is not None and self._clocks == 1 and options.get("domain", "sync") == "sync":
            self.add_testbench(partial(_recorder.record, unit=self._recorded_unit), background=True)

    Component.__new__ = new
    Simulator.__init__, Simulator.add_clock = init, add_clock


def pytest_sessionfinish(session: pytest.Session) -> None:
    _recorder.save(Path(os.environ[FOLDER]))
