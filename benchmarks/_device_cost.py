"""What the device takes: a pass by its rows and the positions before it, and a commit by the rows that it moves.

Both are all reads and writes before the KV260's memory model (``_accelerator_traffic.py``), or the cycle model's estimate on
boards whose memory has no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._accelerator_figures import Case, Extended, Modelled, Passes
from benchmarks._accelerator_simulation import Simulated
from benchmarks._accelerator_traffic import Traffic
from edgedec.board import Board
from edgedec.hw.compiler.cycles import IDLE_READ, PREFETCH, PROGRAM_START
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Opcode
from edgedec.hw.isa.striping import physical_address
from edgedec.sim.ddr.memory import Memory
from edgedec.sim.ddr.parameters import KV260
from edgedec.sim.ddr.reader import Range, Write, read

__all__ = ["Commits", "CostCurve", "Device", "open_device_cost"]

# Tokens per second of the RTL with BitNet-0.73B's shape, by positions before the pass: docs/accelerator.md, the table that
# `benchmarks/accelerator.py --quick --simulate LIBRARY` made. The traffic model leaves out 1 to 2 % of the RTL's cycles.
RTL_TOK_S: Mapping[int, float] = {127: 79.4, 1023: 59.8}
_PASTS = (0, 127, 511)  # that are counted, and the last one that there is room for; a line lies between two of them
_ROWS = (1, 4, 8)
_WRITE_CYCLES = 2  # of a short write, at least: edgedec.hw.logits.result_writer


class CostCurve:
    """A CostModel: seconds of a pass with the logits of all its rows, between counted passes along straight lines.

    Parameters:
        passes: cycles of a pass.
        factor: by positions before the pass, multiplies these cycles.
        rows, pasts: that are counted; by default some of all that the configuration has.

    Members:
        pasts, rows: int64 [p] and [n], ascending. table: float64 [n, p], seconds.
    """

    def __init__(
        self,
        passes: Passes,
        config: AcceleratorConfig,
        *,
        factor: Callable[[int], float] = lambda past: 1.0,
        rows: Sequence[int] = _ROWS,
        pasts: Sequence[int] = _PASTS,
    ) -> None:
        last = config.context - config.slots
        self.kind = passes.kind
        self.rows = np.array(sorted({size for size in (*rows, config.slots) if size <= config.slots}))
        self.pasts = np.array(sorted({past for past in pasts if past < last} | {last}))
        self.table: NDArray[np.float64] = np.array(
            [
                [
                    factor(past) * passes.cycles(Case(slots=size, committed=past)) / config.clock_hz
                    for past in self.pasts.tolist()
                ]
                for size in self.rows.tolist()
            ]
        )

    def seconds(self, nodes: int, past: int) -> float:
        """Beyond what was counted: as long as the nearest that was."""
        by_rows = [float(np.interp(past, self.pasts, row)) for row in self.table]
        return float(np.interp(nodes, self.rows, by_rows))

    def as_json(self) -> dict[str, dict[str, float]]:
        """Milliseconds by rows, by positions before the pass."""
        return {
            str(size): {str(past): round(1e3 * seconds, 4) for past, seconds in zip(self.pasts, row, strict=True)}
            for size, row in zip(self.rows.tolist(), self.table.tolist(), strict=True)
        }


class Commits:
    """Seconds of a commit by how many rows it moves: accepted rows that rows before them were dropped from.

    Every chunk of a moved row's keys and values is a read of its group and a short write. Not compared with the RTL.

    Parameters:
        program: of the whole model.
        bandwidth_bytes_s: that the memory gives; None: the KV260's model.

    Members:
        table: float64 [slots], seconds by moved rows; none moved is no commit for the device.
    """

    def __init__(self, program: Program, bandwidth_bytes_s: float | None) -> None:
        self._program, self._config, self._rate = program, program.config, bandwidth_bytes_s
        most = program.config.slots - 2  # of eight rows the second one is dropped, six move
        self.table: NDArray[np.float64] = np.array([0.0, *map(self._seconds, range(1, most + 1))])

    def seconds(self, moved: int) -> float:
        return float(self.table[min(moved, len(self.table) - 1)])

    def _seconds(self, moved: int) -> float:
        config = self._config
        ranges, writes = [self._read_program()], list[Write]()
        taken = ranges[0].beats
        for start, to in self._groups(moved):
            ranges.append(Range(start=start, beats=self._config.kv_layout.chunks))
            for chunk, place in enumerate(to):
                writes.append(Write(due=taken + chunk + 1, address=place))
            taken += len(to)
        if self._rate is None:
            cycles = float(read(Memory(KV260), ranges, writes, depth=config.prefetch_beats).cycles)
        else:
            cycles = max(taken * config.beat_bytes * config.clock_hz / self._rate, _WRITE_CYCLES * len(writes))
        return (PROGRAM_START + PREFETCH + IDLE_READ + cycles) / config.clock_hz

    def _read_program(self) -> Range:
        return Range(start=0, beats=-(-len(self._program.code) // self._config.beat_bytes))

    def _groups(self, moved: int) -> Iterator[tuple[int, list[int]]]:
        """First beat of each group that is read, and where its chunks are written, from a pass over 127 positions of which
        slots 0, 2, 3, ... are kept.
        """
        config, layout, committed = self._config, self._config.kv_layout, 127
        base = laid_out({**self._program.sizes, "image": 1 << 28}, config.ports)[0]["cache"] // config.beat_bytes
        for one in self._program.instructions[self._program.commit :]:
            if one.opcode != Opcode.COPY:
                continue
            for rank in range(1, moved + 1):
                group, target = (committed + rank + 1) // layout.positions, committed + rank
                for run in range(2 * one["heads"]):
                    first = base + one["start"] + run * one["run"]
                    yield first + group * layout.chunks, [self._place(first, target, at) for at in range(layout.chunks)]

    def _place(self, first: int, position: int, chunk: int) -> int:
        layout, config = self._config.kv_layout, self._config
        group, lane = divmod(position, layout.positions)
        at = (first + group * layout.chunks + chunk) * config.beat_bytes + lane * layout.chunk
        where = physical_address(at, ports=config.ports, port_bytes=config.port_bytes)
        return where // config.port_bytes * config.port_bytes


@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator with a model, and what its work takes.

    Members:
        draft: passes of a draft model on the same accelerator, one row or several; None: it does not run there.
        rtl_factor: what the traffic model's cycles were multiplied with, by positions; empty: nothing.
    """

    board: str
    config: AcceleratorConfig
    passes: CostCurve
    commits: Commits
    draft: CostCurve | None
    rtl_factor: Mapping[int, float]

    @property
    def kind(self) -> str:
        if not self.rtl_factor:
            return self.passes.kind
        said = ", ".join(f"{factor:.4f} at {past} positions" for past, factor in self.rtl_factor.items())
        return f"{self.passes.kind}; multiplied by {said}, as the RTL is slower by so much with one row"


def open_device_cost(
    device: Board,
    config: AcceleratorConfig,
    shape: Mapping[str, Any],
    draft: Mapping[str, Any],
    *,
    library: Path | None = None,
    rtl: bool = True,
    quick: bool = False,
) -> Device:
    """Args:
        shape, draft: of target and draft, as their config.json.
        library: RTL of ``config``; passes are simulated with it, few layers of them, which takes many minutes.
        rtl: whether the traffic model's cycles are brought to those that the RTL of this shape took.
        quick: fewer passes are counted.

    Raises:
        UnsupportedError: the configuration does not run the shape.
    """
    modelled = device.memory_model != "KV260"
    rate = device.bandwidth_bytes_s if modelled else None
    rows, pasts = ((1,), _PASTS[:2]) if quick else (_ROWS, _PASTS)
    factor: Mapping[int, float] = {}
    if library is not None:
        passes: Passes = _simulated(shape, config, library, rate)
    elif modelled:
        passes = Modelled(shape, config, device.bandwidth_bytes_s)
    else:
        passes = Traffic(shape, config)
        if rtl:
            factor = _rtl_factor(passes, config)
    steps = (list(factor), list(factor.values())) if factor else ([0], [1.0])
    own: Passes = Modelled(draft, config, device.bandwidth_bytes_s) if modelled else Traffic(draft, config)
    return Device(
        board=device.name,
        config=config,
        passes=CostCurve(passes, config, factor=lambda past: float(np.interp(past, *steps)), rows=rows, pasts=pasts),
        commits=Commits(shape_program(shape_graph(shape), config), rate),
        draft=CostCurve(own, config, rows=(1,), pasts=_PASTS[:2]),
        rtl_factor=factor,
    )


def _rtl_factor(passes: Passes, config: AcceleratorConfig) -> dict[int, float]:
    return {
        past: config.clock_hz / speed / passes.cycles(Case(slots=1, committed=past))
        for past, speed in RTL_TOK_S.items()
    }


def _simulated(shape: Mapping[str, Any], config: AcceleratorConfig, library: Path, rate: float | None) -> Passes:
    run = Simulated(shape, config, library, bandwidth=rate)
    return Extended(run, layers=shape["num_hidden_layers"], vocab=shape["vocab_size"], few=1, head_parts=64)
