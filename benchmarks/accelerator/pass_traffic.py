"""Estimate whole passes with a memory model: every read and write of a program, without the RTL, in seconds of run time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from benchmarks.accelerator.speed_figures import PassCase
from edgedec.hw.compiler.cycles import is_weights, timetable
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import READ_BURSTS, AcceleratorConfig
from edgedec.hw.isa.instructions import Base, Instruction, Opcode, When
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.hw.isa.striping import physical_address
from edgedec.sim.ddr.library import FOLDER
from edgedec.sim.ddr.memory import DdrMemory
from edgedec.sim.ddr.parameters import KV260, DdrParameters
from edgedec.sim.ddr.reader import Range, Write, read
from edgedec.sim.interpreter.attention import run_ranges

__all__ = ["Traffic", "memory_model_text"]

_LEAD = 16  # slices; edgedec.hw.memory.prefetcher


def memory_model_text() -> bytes:
    """Return the text of the memory model's C++ without comments and spaces, for a hash of it."""
    files = sorted(FOLDER.glob("*.[ch]pp"))
    return b"\0".join("".join(re.sub(r"//.*", "", path.read_text("utf-8")).split()).encode() for path in files)


class Traffic:
    """Cycles of passes of the whole model from a model of its memory traffic.

    The reads of a pass, and the writes of keys and values, run through the DDR model or a flat memory. The times at which
    the reader waits for a result are those that edgedec.hw.compiler.cycles computes with an ideal memory. The RTL of one
    and two layers took the same time within 3 % (docs/reports/accelerator.md). Nothing of the RTL runs here, so the
    figures are called modelled.

    Args:
        layers: layers of the model; None: as many as the shape has.
        lead: slices that a port may be ahead of the slowest one; None: as many as its queue holds.
        parameters: parameters of the memory.
    """

    kind = "modelled (all reads and writes of all layers on the memory model; waits for results by the cycle model)"
    others = True

    def __init__(
        self,
        shape: Mapping[str, Any],
        config: AcceleratorConfig,
        *,
        layers: int | None = None,
        lead: int | None = _LEAD,
        parameters: DdrParameters = KV260,
        outstanding: int | None = None,
    ) -> None:
        self._lead, self._parameters, self._outstanding = lead, parameters, outstanding
        self._config, self._program = config, shape_program(shape_graph(shape, layers=layers), config)
        self._places = _places(self._program)
        self.cycles = lru_cache(maxsize=None)(self._cycles)

    def prepare(self, cases: Sequence[PassCase], jobs: int) -> None:
        """Count these passes, ``jobs`` passes at a time."""
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self.cycles, dict.fromkeys(cases)))

    def fingerprint(self, cases: Sequence[PassCase]) -> str:
        """Return a hash of what the cycles of these passes are computed from: it changes if one of the results may change.

        These are the program, the ranges with their waits and the writes of each pass, the memory's parameters, and the text
        of the memory model without comments. It takes a second where the passes take a minute.
        """
        fixed = (
            self._parameters.values(),
            self._config.clock_hz,
            self._limits(),
            self._lead,
            read.__kwdefaults__,
        )
        parts = [self._program.code, repr(fixed).encode()]
        for case in cases:
            parts.append(repr((case, self._timetable(case), self._starts(case))).encode())
        written = dict.fromkeys((case.slots, case.committed, case.logits) for case in cases)
        for slots, committed, logits in written:
            case = PassCase(slots=slots, committed=committed, logits=logits)
            parts.append(repr([(one.due, one.address) for one in self._writes(case)]).encode())
        return hashlib.sha256(b"\0".join([*parts, memory_model_text()])).hexdigest()[:16]

    def beats(self, case: PassCase) -> float:
        """Return the beats of the read stream."""
        return float(sum(beats for beats, _ in self._timetable(case)[0]))

    def _timetable(self, case: PassCase) -> tuple[list[tuple[int, int]], int]:
        return timetable(self._program, slots=case.slots, committed=case.committed, logits=case.logits)

    def _cycles(self, case: PassCase) -> float:
        times, tail = self._timetable(case)
        starts = self._starts(case)
        ranges = [
            Range(start=start, beats=beats, wait=wait) for start, (beats, wait) in zip(starts, times, strict=True)
        ]
        parameters = self._parameters if case.bandwidth is None else self._parameters.flat(int(case.bandwidth))
        if case.other is not None:
            parameters = parameters.with_other_master()
        writes = list(self._writes(case))
        reading = read(DdrMemory(parameters), ranges, writes, **self._limits(), lead=self._lead, other=case.other)
        return float(reading.cycles + tail)

    def _limits(self) -> dict[str, int]:
        """Return the limits of the accelerator's prefetcher, as arguments of ``read``."""
        config = self._config
        return {
            "depth": config.prefetch_beats,
            "burst_beats": config.burst_beats,
            "outstanding": self._outstanding or READ_BURSTS,
        }

    def _executed(self, case: PassCase) -> Iterator[Instruction]:
        """Yield the instructions that a pass executes; some depend on whether logits are computed."""
        skipped = When.WITHOUT_LOGITS if case.logits else When.WITH_LOGITS
        return (one for one in self._program.instructions[: self._program.commit] if one["when"] != skipped)

    def _starts(self, case: PassCase) -> list[int]:
        """Return the first beats of all ranges, in order."""
        starts, before = [self._places["program"]], False  # before: the last instruction reads weights
        for one in self._executed(case):
            continues, before = before and is_weights(one), is_weights(one)
            if continues:
                continue
            if one.opcode == Opcode.READ:
                starts.append(self._places["image" if one["base"] == Base.IMAGE else "input"] + one["start"])
            elif one.opcode == Opcode.CACHE and case.committed:
                rows = [SequenceRows(slots=case.slots, committed=case.committed)]
                starts += [self._places["cache"] + start for start, _ in run_ranges(one, self._config, rows)]
        return starts

    def _writes(self, case: PassCase) -> Iterator[Write]:
        """Yield the writes of each slot's keys and then values in chunks, head by head while attention reads."""
        layout, config, taken = (
            self._config.kv_layout,
            self._config,
            -(-len(self._program.code) // self._config.beat_bytes),
        )
        for one in self._executed(case):
            if one.opcode == Opcode.READ:
                taken += one["beats"]
            elif one.opcode == Opcode.CACHE:
                rows = config.cache_rows(one["ring"])
                run = rows.beats(case.committed)
                streamed = one["group"] // config.together(one["group"], case.slots)  # times that a group's run is read
                for head in range(one["heads"] // one["group"]):
                    due = taken + 2 * head * streamed * run
                    for row in (2 * head, 2 * head + 1):
                        first = self._places["cache"] + one["start"] + row * one["run"]
                        for chunk in range(layout.chunks):
                            for position in range(case.committed, case.committed + case.slots):
                                group, place = divmod(rows.place(position), layout.positions)
                                at = (first + group * layout.chunks + chunk) * config.beat_bytes + place * layout.chunk
                                where = physical_address(at, ports=config.ports, port_bytes=config.port_bytes)
                                yield Write(due=due, address=where // config.port_bytes * config.port_bytes)
                taken += 2 * one["heads"] // one["group"] * streamed * run


def _places(program: Program) -> dict[str, int]:
    """Return the first beats of the buffers. The image has no bytes here, so its size is that of the part that is read."""
    reads = [one for one in program.instructions if one.opcode == Opcode.READ and one["base"] == Base.IMAGE]
    size = max(one["start"] + one["beats"] for one in reads) * program.config.beat_bytes
    starts, _ = laid_out({**program.sizes, "image": size}, program.config.ports)
    return {name: start // program.config.beat_bytes for name, start in starts.items()}
