"""Run passes of a whole model on the RTL, and keep the state in a file after each layer, to go on from there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.shapes import token_ids, write_bundle
from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.graph.ops import Attention, Embed
from edgedec.hw.compiler.program import Program, compile_model, laid_out
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Opcode
from edgedec.progress import Progress, silent
from edgedec.reference.integer_profile.calibrate import calibrate_graph
from edgedec.reference.integer_profile.model import IntegerModel, prepare_graph, profile_graph
from edgedec.runtime.driver.driver import WHOLE_ROWS, Driver
from edgedec.runtime.driver.report import PassReport, issued
from edgedec.sim.cxxrtl.simulation import Simulation
from edgedec.sim.interpreter.attention import KvMemory
from edgedec.sim.machine.device import MachineDevice
from edgedec.sim.verify.verification import TRACED_BITS, Verified

__all__ = ["WholePass", "layer_ends", "random_model"]

_SLICE = 10_000  # cycles between two looks at the instructions that have ended
_CALIBRATED = 16  # tokens of the text with which the random model is calibrated
_LAYER = re.compile(r"\blayers\.(\d+)\.")

U8 = NDArray[np.uint8]


def random_model(shape: Mapping[str, Any], folder: Path, context: int, progress: Progress = silent) -> IntegerModel:
    """Return a model of a shape with random weights, which differ from layer to layer; its bundle is kept in ``folder``."""
    if not folder.exists():
        write_bundle(folder, shape, progress)
    bundle = Bundle.open(folder)
    graph = profile_graph(bundle)
    progress("calibrate", 0, 1)
    windows = [token_ids(_CALIBRATED, shape["vocab_size"])]
    return prepare_graph(graph, bundle.weight, calibrate_graph(graph, bundle.weight, windows, context=context))


def layer_ends(program: Program) -> list[int]:
    """Return, for each layer, how many instructions of a pass with logits have ended when the layer has."""
    ends: dict[int, int] = {}
    for count, number in enumerate(issued(program, commits=False, logits=True), 1):
        if found := _LAYER.search(program.names[number]):
            ends[int(found[1])] = count
    return [ends[layer] for layer in sorted(ends)]


class WholePass:
    """Passes of a model on one library of its accelerator, each compared with the interpreter and the integer model.

    Args:
        library: the accelerator's RTL of ``config`` with trace ports, see edgedec.sim.cxxrtl.accelerator.
        memory: "ddr", "flat" or "ideal" of Simulation.
    """

    def __init__(
        self, model: IntegerModel, config: AcceleratorConfig, library: Path, *, memory: str = "ddr", past: int = 0
    ) -> None:
        self.model, self.program = model, compile_model(model, config)
        self._library, self._memory, self._past = library, memory, past

    def run(
        self, slots: int, state: Path | None = None, *, progress: Progress = silent, most_layers: int | None = None
    ) -> tuple[PassReport, Mapping[str, int]] | None:
        """Run a pass of ``slots`` tokens after the past, and compare the output of every instruction.

        The keys and values of the past are random. With ``state``, the file has what is needed to go on after the last whole
        layer; it is removed at the end.

        Args:
            most_layers: stop when this many layers have ended since the start, as an interrupted run does.

        Returns:
            The counters of the pass and the numbers of equal values, or None if it was stopped.

        Raises:
            DeviceError: the RTL differs from the interpreter or from the integer model.
            UsageError: the state is of another program, pass or library.
        """
        config = self.program.config
        contents = np.zeros(laid_out(self.program.sizes, config.ports)[1], np.uint8)
        simulation = Simulation(self._library, contents, memory=self._memory, clock_hz=int(config.clock_hz))
        device = MachineDevice("sim", simulation, contents, clock_hz=int(config.clock_hz))
        (embed,) = (op for op in self.model.graph.operations if isinstance(op, Embed))
        driver = _Kept(device, self.program, self.model.constants[embed.name].weight)
        simulation.record([f"trace_{name}" for name in TRACED_BITS])
        driver.keep = keep = _State(state, self._key(slots), driver, simulation, progress, most_layers)
        verified = Verified(driver, self.model, keep)
        self._remember(driver, verified)
        ids = token_ids(slots, self.model.vocab)
        try:
            report, _ = verified.forward(ids, logits=WHOLE_ROWS)
        except _StoppedError:
            return None
        if state is not None:
            state.unlink(missing_ok=True)
        return report, dict(verified.compared)

    def _key(self, slots: int) -> str:
        parts = (self.program.sha256, self._library.name, self._memory, str(self._past), str(slots))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def _remember(self, driver: Driver, verified: Verified) -> None:
        """Write random keys and values of the past into all three caches."""
        program, past = self.program, self._past
        if not past:
            return
        rng, cache = np.random.default_rng(1), verified.reference.cache
        memory = KvMemory(program.config.kv_layout, verified.interpreter.cache)
        cache.begin(np.arange(past, dtype=np.int32))
        attends = [op for op in self.model.graph.operations if isinstance(op, Attention)]
        reads = [one for one in program.instructions[: program.commit] if one.opcode == Opcode.CACHE]
        for op, of in zip(attends, reads, strict=True):
            shape = (2, past, program.config.kv_heads, program.config.head_dim)
            codes = rng.integers(-128, 128, shape, np.int8)
            cache.append(op.state, codes[0], codes[1])
            rows = program.config.cache_rows(of["ring"])
            for part, place, head in np.ndindex(*shape[:3]):
                start = of["start"] + (2 * head + part) * of["run"]
                memory.write(start, rows.place(place), codes[part, place, head].astype(np.int64))
        cache.commit(np.arange(past, dtype=np.int32))
        driver.length = past
        beat_bytes, kept = program.config.beat_bytes, verified.interpreter.cache
        for name, beats in program.cache_regions.items():
            driver.regions[name].put(kept[beats.start * beat_bytes : beats.stop * beat_bytes])


class _StoppedError(Exception):
    """The run was stopped on purpose."""


class _Kept(Driver):
    """A driver whose passes go on from a kept state."""

    keep: _State

    def finish(self) -> PassReport:
        self.keep.advance()
        return super().finish()


class _State:
    """The state of a simulation in a file, and what was recorded until then."""

    def __init__(
        self,
        path: Path | None,
        key: str,
        driver: Driver,
        simulation: Simulation,
        progress: Progress,
        most_layers: int | None,
    ) -> None:
        self._path, self._key, self._driver, self._simulation = path, key, driver, simulation
        self._progress, self._most = progress, most_layers
        self._items: dict[str, list[NDArray[np.uint32]]] = {name: [] for name in TRACED_BITS}
        self._ends = layer_ends(driver.program)

    def recorded(self, port: str) -> NDArray[np.uint32]:
        """Return all recorded values of the pass, see ``edgedec.sim.verify.verification.TraceRecorder``."""
        self._drain()
        return np.concatenate(self._items[port])

    def _drain(self) -> None:
        for name, kept in self._items.items():
            kept.append(self._simulation.recorded(f"trace_{name}"))

    def advance(self) -> None:
        """Run until the pass ends, and keep the state after each layer."""
        if self._path is not None and self._path.exists():
            self._restore(self._path)
        done, ended = self._layers(), 0
        while not self._simulation.interrupt and done < len(self._ends):
            self._simulation.run(_SLICE)
            if (now := self._layers()) == done:
                continue
            ended += now - done
            done = now
            self._progress("layers", done, len(self._ends))
            if self._path is not None:
                self._save(self._path)
            if self._most is not None and ended >= self._most:
                raise _StoppedError

    def _layers(self) -> int:
        count = self._simulation.peek("counters.descriptors")
        return sum(end <= count for end in self._ends)

    def _save(self, path: Path) -> None:
        self._drain()
        arrays: dict[str, NDArray[Any]] = {
            "key": np.frombuffer(self._key.encode(), np.uint8),
            "simulation": np.frombuffer(self._simulation.save(), np.uint8),
            **{f"region {name}": self._driver.regions[name].array for name in self._written},
            **{f"recorded {name}": np.concatenate(kept) for name, kept in self._items.items()},
        }
        with new_file(path) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @property
    def _written(self) -> list[str]:
        """Names of the regions that the accelerator writes."""
        return [*self._driver.program.cache_regions, "output"]

    def _restore(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as kept:
            if kept["key"].tobytes().decode() != self._key:
                raise UsageError(
                    f"{path} is the state of another pass, program or simulation; remove it to start again"
                )
            self._simulation.restore(kept["simulation"].tobytes())
            for name in self._written:
                self._driver.regions[name].array[:] = kept[f"region {name}"]
            self._drain()
            for name in TRACED_BITS:
                self._items[name] = [kept[f"recorded {name}"]]
