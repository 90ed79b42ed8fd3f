"""Compute the device's time for a pass, by its rows and earlier positions, and for a commit, by the rows that it moves.

Both run all reads and writes through the KV260's memory model (``pass_traffic.py``), or use the cycle model's
estimate for boards whose memory has no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accelerator.pass_simulation import Simulated
from benchmarks.accelerator.pass_traffic import Traffic
from benchmarks.accelerator.speed_docs import rtl_factors
from benchmarks.accelerator.speed_figures import CONDITIONS, Condition, Estimated, Extended, PassCase, Passes
from edgedec.board import Board
from edgedec.hw.compiler.cycles import IDLE_READ, PREFETCH, PROGRAM_START
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import READ_BURSTS, AcceleratorConfig
from edgedec.hw.isa.instructions import Opcode
from edgedec.hw.isa.striping import physical_address
from edgedec.sim.ddr.memory import DdrMemory
from edgedec.sim.ddr.parameters import KV260
from edgedec.sim.ddr.reader import Range, Write, read

__all__ = ["Commits", "CostCurve", "DeviceCosts", "open_device_cost"]

_PASTS = (0, 127, 511)  # earlier positions at which passes are counted, besides the last one possible
_ROWS = (1, 4, 8)  # rows with which passes are counted
_WRITE_CYCLES = 2  # least cycles of a short write; see edgedec.hw.logits.result_writer


class CostCurve:
    """A CostModel: seconds of a pass with the logits of all its rows, linearly interpolated between counted passes.

    Parameters:
        passes: source of the cycles of a pass.
        factor: function of the positions before the pass; the cycles are multiplied by it.
        condition: other work of the memory during the pass.
        rows: numbers of rows to count.
        pasts: numbers of earlier positions to count.

    Members:
        pasts: counted numbers of earlier positions, int64 [p], ascending.
        rows: counted numbers of rows, int64 [n], ascending.
        table: seconds, float64 [n, p].
    """

    def __init__(
        self,
        passes: Passes,
        config: AcceleratorConfig,
        *,
        factor: Callable[[int], float] = lambda past: 1.0,
        condition: Condition = CONDITIONS[0],
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
                    factor(past) * passes.cycles(_case(size, past, condition)) / config.clock_hz
                    for past in self.pasts.tolist()
                ]
                for size in self.rows.tolist()
            ]
        )

    def seconds(self, nodes: int, past: int) -> float:
        """Return the seconds of a pass. Outside the counted range it is the value of the nearest counted pass."""
        by_rows = [float(np.interp(past, self.pasts, row)) for row in self.table]
        return float(np.interp(nodes, self.rows, by_rows))

    def as_json(self) -> dict[str, dict[str, float]]:
        """Return the milliseconds by rows and by positions before the pass."""
        return {
            str(size): {str(past): round(1e3 * seconds, 4) for past, seconds in zip(self.pasts, row, strict=True)}
            for size, row in zip(self.rows.tolist(), self.table.tolist(), strict=True)
        }


def _case(rows: int, past: int, condition: Condition) -> PassCase:
    return PassCase(slots=rows, committed=past, bandwidth=condition.bandwidth, other=condition.other)


class Commits:
    """Seconds of a commit by the number of rows that it moves, that is, accepted rows after a rejected row.

    Every chunk of a moved row's keys and values takes a read of its group and a short write. The figures were not compared
    with the RTL.

    Parameters:
        program: program of the whole model.
        bandwidth_bytes_s: bandwidth of the memory; None: the KV260's memory model.

    Members:
        table: seconds by moved rows, float64 [slots]; the device needs no commit if no row moves.
    """

    def __init__(self, program: Program, bandwidth_bytes_s: float | None) -> None:
        self._program, self._config, self._rate = program, program.config, bandwidth_bytes_s
        most = program.config.slots - 2  # if the second of eight rows is dropped, six move
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
            limits: dict[str, Any] = {"burst_beats": config.burst_beats, "outstanding": READ_BURSTS}
            cycles = float(read(DdrMemory(KV260), ranges, writes, depth=config.prefetch_beats, **limits).cycles)
        else:
            cycles = max(taken * config.beat_bytes * config.clock_hz / self._rate, _WRITE_CYCLES * len(writes))
        return (PROGRAM_START + PREFETCH + IDLE_READ + cycles) / config.clock_hz

    def _read_program(self) -> Range:
        return Range(start=0, beats=-(-len(self._program.code) // self._config.beat_bytes))

    def _groups(self, moved: int) -> Iterator[tuple[int, list[int]]]:
        """Yield the first beat of each group that is read, and the addresses to which its chunks are written.

        The pass has 127 positions before it, and its slots 0, 2, 3, ... are kept.
        """
        config, layout, committed = self._config, self._config.kv_layout, 127
        base = laid_out({**self._program.sizes, "image": 1 << 28}, config.ports)[0]["cache"] // config.beat_bytes
        for one in self._program.instructions[self._program.commit :]:
            if one.opcode != Opcode.COPY:
                continue
            rows = config.cache_rows(one["ring"])
            for rank in range(1, moved + 1):
                group, target = rows.place(committed + rank + 1) // layout.positions, rows.place(committed + rank)
                for run in range(2 * one["heads"]):
                    first = base + one["start"] + run * one["run"]
                    yield first + group * layout.chunks, [self._place(first, target, at) for at in range(layout.chunks)]

    def _place(self, first: int, row: int, chunk: int) -> int:
        layout, config = self._config.kv_layout, self._config
        group, lane = divmod(row, layout.positions)
        at = (first + group * layout.chunks + chunk) * config.beat_bytes + lane * layout.chunk
        where = physical_address(at, ports=config.ports, port_bytes=config.port_bytes)
        return where // config.port_bytes * config.port_bytes


@dataclass(frozen=True, kw_only=True)
class DeviceCosts:
    """Times of an accelerator with a model.

    Members:
        board: name of the board.
        passes: seconds of passes of the model.
        commits: seconds of commits.
        draft: seconds of passes of a draft model on the same accelerator; None: it does not run there.
        rtl_factor: factors by which the traffic model's cycles were multiplied, by positions; empty: none.
        busy: seconds of passes of the model under other conditions of the memory; commits and drafts are as without.
    """

    board: str
    config: AcceleratorConfig
    passes: CostCurve
    commits: Commits
    draft: CostCurve | None
    rtl_factor: Mapping[int, float]
    busy: Mapping[str, CostCurve] = field(default_factory=dict)

    def under(self, condition: str) -> DeviceCosts:
        """Return the times under another condition of the memory, one of ``busy``."""
        return replace(self, passes=self.busy[condition])

    @property
    def kind(self) -> str:
        if not self.rtl_factor:
            return self.passes.kind
        factors = ", ".join(f"{factor:.4f} at {past} positions" for past, factor in self.rtl_factor.items())
        return f"{self.passes.kind}; multiplied by {factors}, because the RTL is slower by these factors with one row"


def open_device_cost(
    device: Board,
    config: AcceleratorConfig,
    shape: Mapping[str, Any],
    draft: Mapping[str, Any],
    *,
    library: Path | None = None,
    rtl: bool = True,
    quick: bool = False,
    conditions: Sequence[Condition] = (),
) -> DeviceCosts:
    """Compute the times of a board with this configuration.

    Args:
        shape: config.json of the target.
        draft: config.json of the draft.
        library: RTL of ``config``, with which passes of few layers are simulated, which takes many minutes.
        rtl: scale the traffic model's cycles to those that the RTL of this shape took, as far as it was simulated.
        quick: count fewer passes.
        conditions: other conditions of the memory for ``busy``; none can be counted for a board without a memory model, and
            none with ``library``.

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
        passes = Estimated(shape, config, device.bandwidth_bytes_s)
    else:
        passes = Traffic(shape, config)
        if rtl:
            factor = rtl_factors()
    steps = (list(factor), list(factor.values())) if factor else ([0], [1.0])

    def weight(past: int) -> float:
        return float(np.interp(past, *steps))

    def curve(condition: Condition) -> CostCurve:
        return CostCurve(passes, config, factor=weight, condition=condition, rows=rows, pasts=pasts)

    counted = conditions if isinstance(passes, Traffic) else ()
    own: Passes = Estimated(draft, config, device.bandwidth_bytes_s) if modelled else Traffic(draft, config)
    return DeviceCosts(
        board=device.name,
        config=config,
        passes=curve(CONDITIONS[0]),
        commits=Commits(shape_program(shape_graph(shape), config), rate),
        draft=CostCurve(own, config, rows=(1,), pasts=_PASTS[:2]),
        rtl_factor=factor,
        busy={condition.name: curve(condition) for condition in counted},
    )


def _simulated(shape: Mapping[str, Any], config: AcceleratorConfig, library: Path, rate: float | None) -> Passes:
    run = Simulated(shape, config, library, bandwidth=rate)
    return Extended(run, layers=shape["num_hidden_layers"], vocab=shape["vocab_size"], few=1, head_parts=64)
