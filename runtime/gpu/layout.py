"""The layout of a program before its limits are known: dispatches, values and buffers with sizes as functions of the limits.

A planner asks for the sizes of hundreds of limits, so the layout of a bundle is made once, and no shader is written for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.graph.ops import Operation
from edgedec.memory.byte_sizes import format_bytes
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of
from edgedec.runtime.gpu.device import Adapter
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.rows import Columns
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.gpu.program import TOP_K, Kind, When
from edgedec.runtime.protocols import Limits
from edgedec.runtime.run_sizes import cache_rows, run_rows, usual_result_rows

__all__ = ["MOST_MOVES", "BufferPlan", "Dispatch", "ProgramLayout", "Sizes", "ValuePlace", "check_bindings", "sizes_of"]

MOST_MOVES = 512  # pairs of rows that one submission moves


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The numbers on which the sizes of buffers depend.

    Members:
        rows, results: N and R, most rows and result rows of a submission.
        positions: most rows of a sequence.
        cache_blocks: blocks of the cache.
        table_blocks: most entries of the block tables of a submission.
    """

    rows: int
    results: int
    positions: int
    cache_blocks: int
    table_blocks: int


def sizes_of(limits: Limits, result_rows: int | None = None) -> Sizes:
    """Return the sizes of a run within ``limits``; ``result_rows`` as in ``TargetModule.footprint``."""
    rows, several = run_rows(limits), bool(limits.cache_rows or limits.batch_rows)
    each = blocks_of(limits.positions)
    return Sizes(
        rows=rows,
        results=(None if several else result_rows) or usual_result_rows(limits),
        positions=limits.positions,
        cache_blocks=blocks_of(cache_rows(limits)),
        table_blocks=each * rows if several else each,
    )


def check_bindings(layout: ProgramLayout, sizes: Sizes, adapter: Adapter) -> None:
    """Check that the device can give every buffer to a kernel.

    Raises:
        UnsupportedError: it cannot; the message names the buffer, the limit and a context that fits.
    """
    name, plan = max(layout.buffers.items(), key=lambda item: item[1].words(sizes))
    most, needs = adapter.binding_bytes, 4 * plan.words(sizes)
    if needs <= most:
        return
    share = most / needs
    positions = int(sizes.positions * share) // BLOCK_ROWS * BLOCK_ROWS
    smaller = replace(sizes, positions=positions, cache_blocks=int(sizes.cache_blocks * share))
    fits = positions and 4 * plan.words(smaller) <= most
    raise UnsupportedError(
        f"device gpu: the buffer {name} ({plan.item}) needs {format_bytes(needs)}, and {adapter.label} lets a kernel read "
        f"{format_bytes(most)} at once; try {f'--ctx-size {positions}, or ' if fits else ''}--device cpu"
    )


@dataclass(frozen=True, kw_only=True)
class BufferPlan:
    """A buffer of the program.

    Members:
        words: its size in words of 4 bytes.
        kind, item: see ``program.GpuBuffer``.
        make: makes the contents of a constant.
    """

    words: Callable[[Sizes], int]
    kind: Kind
    item: str
    make: Callable[[Bundle, Sizes], NDArray[Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class ValuePlace:
    """The place of a value of the graph.

    Members:
        buffer: name of its buffer, or of its slot until slots are assigned.
        columns: its columns in the buffer's rows.
        width: number of columns.
        results: True if it has a row for each result row only.
    """

    buffer: str
    columns: Columns
    width: int
    results: bool


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """A step whose kernel is not built yet.

    Members:
        name: the operations of the graph.
        build: makes the kernel.
        buffers: names of its buffers after the header.
        when: see ``program.Step``.
    """

    name: str
    build: Callable[[ShaderOptions, Sizes], Kernel]
    buffers: tuple[str, ...]
    when: When = "pass"


@dataclass(kw_only=True)
class ProgramLayout:
    """The program of a bundle for any limits.

    Members:
        operations: the operations of the graph.
        embedding: name of the embedding's weight.
        embeds_only: True if the embedding is not on the device.
        vocab, width: logits of a row, columns of an embedding.
        ids: ids of the tokenizer.
        buffers: all buffers by name, activations as slots.
        dispatches: all steps.
        taps: places of the values that passes can return, by name.
    """

    operations: tuple[Operation, ...]
    embedding: str
    embeds_only: bool
    vocab: int
    width: int
    ids: int
    buffers: dict[str, BufferPlan] = field(default_factory=dict)
    dispatches: list[Dispatch] = field(default_factory=list)
    taps: Mapping[str, ValuePlace] = field(default_factory=dict)

    @property
    def top_k(self) -> int:
        """Likeliest tokens that the device finds for each row."""
        return min(TOP_K, self.ids)

    def item_bytes(self, sizes: Sizes) -> dict[str, int]:
        """Return the bytes of the buffers by item of the memory plan."""
        items: dict[str, int] = {}
        for plan in self.buffers.values():
            items[plan.item] = items.get(plan.item, 0) + 4 * plan.words(sizes)
        return items
