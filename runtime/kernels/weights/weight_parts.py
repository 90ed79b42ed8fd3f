"""The parts of a model's weights that can be read while a pass computes, and the choice of those that stay in memory.

A *part* is some rows of one matrix: one range of a file. Parts are listed in the order in which a pass uses them. A *split*
pins some of them, and streams the others through a window of equal slots (``weight_stream.py``). It is computed from the
manifest alone, so that a plan and a run have the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import ALIGNMENT
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Linear
from edgedec.onnx.grid_layout import grid_layout
from edgedec.runtime.kernels.weights.layout_cache import layout_entries
from edgedec.schemes import Int4Scheme, Int8Scheme, Scheme, TernaryScheme

__all__ = ["PAGE_BYTES", "PartSizes", "WeightPart", "WeightSplit", "packed_names", "split_weights", "weight_parts"]

PAGE_BYTES = 4096  # kAlignment of weight_stream.hpp
LEAST_SLOTS, MOST_SLOTS = 2, 8  # one part is used while the next one is read; more slots are for uneven speeds
_TILE_ROWS = 16  # kTileRows of ternary.hpp; parts of int8 matrices are multiples of it, too
_PART_BYTES, _LEAST_PART_BYTES = 1 << 20, 128 << 10  # sizes of a part that all disks read at nearly their full speed
_PARTS = 128  # parts of a small model, so that its window is a small share of it
_LEAST_BYTES = 64 << 10  # size of the smallest matrix that is streamed
_WINDOW_SHARE = 8  # the window takes at most this fraction of the memory, unless it has the fewest slots
_OBJECT_BYTES = 1 << 10  # bytes of a part's objects


@dataclass(frozen=True, kw_only=True)
class WeightPart:
    """Rows [first, end) of a matrix, and their place.

    Members:
        matrix: name of the matrix.
        packed: True if its place is in the file of the kernels' layout, False if it is in the bundle's own file.
    """

    matrix: str
    first: int
    end: int
    packed: bool
    codes_offset: int
    codes_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes in memory, if the part is pinned."""
        return _aligned(self.codes_bytes)

    @property
    def read_bytes(self) -> int:
        """Bytes of the pages that it lies in, which are read."""
        return _pages(self.codes_offset, self.codes_bytes)


@dataclass(frozen=True, kw_only=True)
class WeightSplit:
    """The parts that are pinned, and the window for the others.

    Members:
        parts: all parts, in the order of their use.
        pinned: for each part, whether it is pinned.
        slots: number of slots of the window.
        slot_bytes: bytes of a slot, which has room for every part.
    """

    parts: Sequence[WeightPart]
    pinned: Sequence[bool]
    slots: int
    slot_bytes: int

    @cached_property
    def pinned_bytes(self) -> int:
        """Bytes of the pinned parts."""
        pinned = sum(part.nbytes for part, is_pinned in zip(self.parts, self.pinned, strict=True) if is_pinned)
        return -(-pinned // PAGE_BYTES) * PAGE_BYTES

    @property
    def window_bytes(self) -> int:
        """Bytes of the window."""
        return self.slots * self.slot_bytes

    @cached_property
    def streamed_bytes(self) -> int:
        """Bytes of the streamed parts, which each pass uses once."""
        streamed = [part for part, is_pinned in zip(self.parts, self.pinned, strict=True) if not is_pinned]
        return sum(part.codes_bytes for part in streamed)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _pages(offset: int, count: int) -> int:
    """Return the bytes of the pages that hold a range of a file."""
    return 0 if not count else (-(-(offset + count) // PAGE_BYTES) - offset // PAGE_BYTES) * PAGE_BYTES


def packed_names(graph: Graph, bundle: Bundle) -> list[str]:
    """Return the names of the matrices that are in the file of the kernels' layout, in its order."""
    return [name for name in graph.weights if isinstance(bundle.tensors[name].scheme, TernaryScheme | Int4Scheme)]


def _used(graph: Graph) -> list[tuple[str, Scheme]]:
    """Return the matrices in the order of their use: an operation has nodes for ternary, for grid and for int8 matrices."""

    def node(item: tuple[str, Scheme]) -> int:
        return 2 if isinstance(item[1], Int8Scheme) else int(grid_layout(item[1]) is not None)

    linears = (operation for operation in graph.operations if isinstance(operation, Linear))
    return [item for linear in linears for item in sorted(zip(linear.weights, linear.schemes, strict=True), key=node)]


def weight_parts(bundle: Bundle, graph: Graph) -> tuple[WeightPart, ...]:
    """Return the parts of all matrices that can be streamed: large ternary and int4 ones, and large int8 ones by rows."""
    key = "weight_parts"
    if key not in bundle.derived:  # cached, because a planner asks for many splits
        bundle.derived[key] = _make_parts(bundle, graph)
    result: tuple[WeightPart, ...] = bundle.derived[key]
    return result


def _make_parts(bundle: Bundle, graph: Graph) -> tuple[WeightPart, ...]:
    entries = layout_entries(bundle.tensors, packed_names(graph, bundle))
    wholes = []
    for name, scheme in dict(_used(graph)).items():
        tensor = bundle.tensors[name]
        if name in entries:
            entry = entries[name]
            whole = WeightPart(
                matrix=name,
                first=0,
                end=tensor.shape[0],
                packed=True,
                codes_offset=entry.codes_offset,
                codes_bytes=entry.codes_bytes,
            )
        elif isinstance(scheme, Int8Scheme) and scheme.rows:
            whole = WeightPart(
                matrix=name,
                first=0,
                end=tensor.shape[0],
                packed=False,
                codes_offset=tensor.offsets["codes"],
                codes_bytes=tensor.count,
            )
        else:
            continue
        if whole.nbytes >= _LEAST_BYTES:
            wholes.append(whole)
    size = min(_PART_BYTES, max(_LEAST_PART_BYTES, sum(whole.nbytes for whole in wholes) // _PARTS))
    return tuple(part for whole in wholes for part in _cut(whole, size))


def _cut(whole: WeightPart, size: int) -> list[WeightPart]:
    """Cut a matrix into parts of about ``size`` bytes, each of whole tiles."""
    tiles = -(-whole.end // _TILE_ROWS)
    count = min(tiles, -(-whole.nbytes // size))
    edges = [tiles * at // count for at in range(count + 1)]
    # The last tile of a packed matrix is stored whole, that of an int8 matrix has the rows that are left.
    codes = whole.codes_bytes // tiles if whole.packed else whole.codes_bytes // whole.end * _TILE_ROWS
    return [
        WeightPart(
            matrix=whole.matrix,
            first=_TILE_ROWS * begin,
            end=min(_TILE_ROWS * stop, whole.end),
            packed=whole.packed,
            codes_offset=whole.codes_offset + begin * codes,
            codes_bytes=min(stop * codes, whole.codes_bytes) - begin * codes,
        )
        for begin, stop in pairwise(edges)
    ]


@dataclass(frozen=True, kw_only=True)
class PartSizes:
    """The sizes of all parts together.

    Members:
        count: number of parts.
        stored_bytes: bytes of their codes.
        memory_bytes: bytes in memory, if all of them are pinned.
        slot_bytes: bytes of a slot of the window, which has room for every part.
    """

    count: int
    stored_bytes: int
    memory_bytes: int
    slot_bytes: int

    @classmethod
    def of(cls, parts: Sequence[WeightPart]) -> PartSizes:
        """Add up the sizes of parts."""
        return cls(
            count=len(parts),
            stored_bytes=sum(part.codes_bytes for part in parts),
            memory_bytes=sum(part.nbytes for part in parts),
            slot_bytes=max((part.read_bytes for part in parts), default=0),
        )

    @property
    def least_bytes(self) -> int:
        """Memory of the smallest window, with which no part is pinned."""
        return self.window_bytes(LEAST_SLOTS)

    def window_bytes(self, slots: int) -> int:
        """Return the bytes of a window of so many slots, and of the objects of all parts."""
        return slots * self.slot_bytes + _OBJECT_BYTES * self.count

    def divide(self, memory_bytes: int) -> tuple[int, int]:
        """Return the number of slots of the window, and the room for pinned parts in bytes, a multiple of a page.

        ``memory_bytes`` is the memory for all of it, at least ``least_bytes``.
        """
        slots = memory_bytes // _WINDOW_SHARE // max(1, self.slot_bytes)
        slots = min(MOST_SLOTS, max(LEAST_SLOTS, slots))
        return slots, (memory_bytes - self.window_bytes(slots)) // PAGE_BYTES * PAGE_BYTES


def split_weights(parts: Sequence[WeightPart], memory_bytes: int) -> WeightSplit:
    """Return the split that pins as many bytes as ``memory_bytes`` have room for beside the window.

    Pinned and streamed parts alternate as evenly as their sizes allow, so that the disk reads while pinned parts are used,
    and the window need not be large.

    Args:
        parts: all parts, in the order of their use.
        memory_bytes: bytes of memory for the parts, at least ``PartSizes.least_bytes``.
    """
    sizes = PartSizes.of(parts)
    slots, room = sizes.divide(memory_bytes)
    share = room / max(1, sizes.memory_bytes)
    pinned, credit = [False] * len(parts), 0.0
    for at, part in enumerate(parts):
        credit += share * part.nbytes
        if part.nbytes <= min(credit, room):
            pinned[at] = True
            credit, room = credit - part.nbytes, room - part.nbytes
    for at, part in enumerate(parts):  # the even distribution leaves some room
        if not pinned[at] and part.nbytes <= room:
            pinned[at] = True
            room -= part.nbytes
    return WeightSplit(parts=parts, pinned=pinned, slots=slots, slot_bytes=sizes.slot_bytes)
