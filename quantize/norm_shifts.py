"""Move powers of two from matrices into the norm before them, so that the float16 scales of int4 can hold the matrices.

A norm's weight times 2^-n and every matrix that reads its output times 2^n are the same function, exactly. Checkpoints
differ in where they keep that factor, and float16 holds scales from 2^-14 to 65504 with all of their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.graph import Graph
from edgedec.ops import Linear, RmsNorm
from edgedec.quantize.readers.checkpoint import Checkpoint, Maker, Makers
from edgedec.schemes import Int4Scheme

__all__ = ["norm_shifts", "shifted"]

F32 = NDArray[np.float32]

# Exponents of the largest magnitude of a group that a float16 scale holds: a scale is 1/64 to 1/7 of that magnitude.
_LEAST, _MOST = -8, 17


@dataclass(frozen=True)
class _Shifted:
    """Loads a tensor times 2^``exponent``, float32. It can be sent to other processes if ``make`` can."""

    make: Maker
    exponent: int

    def __call__(self) -> NDArray[Any]:
        values: F32 = np.ldexp(self.make().astype(np.float32), self.exponent)
        return values


class _Range(NamedTuple):
    """The shifts ``low`` to ``high`` with which all scales of a matrix are normal float16; there are none if low > high."""

    low: int
    high: int

    @property
    def nearest(self) -> int:
        """The shift nearest to 0, because the inputs of the matrix are shifted back."""
        return min(max(0, self.low), max(self.low, self.high))


def _range(matrix: F32) -> _Range:
    starts = np.arange(0, matrix.shape[1], Int4Scheme.GROUP)
    groups = np.maximum.reduceat(np.abs(matrix), starts, axis=1)
    exponents = np.frexp(groups[groups > 0])[1]
    if not len(exponents):
        return _Range(-(1 << 10), 1 << 10)
    return _Range(_LEAST + 1 - int(exponents.min()), _MOST - int(exponents.max()))


def _best(ranges: list[_Range]) -> int:
    """Return the shift that most matrices allow; 0, no shift, if no other is allowed by more."""
    common = _Range(max(one.low for one in ranges), min(one.high for one in ranges))
    shifts = [0, common.nearest, *(one.nearest for one in ranges)]
    return max(shifts, key=lambda shift: sum(one.low <= shift <= one.high for one in ranges))


def norm_shifts(graph: Graph, matrices: Collection[str], load: Callable[[str], F32]) -> dict[str, int]:
    """Return by how many powers of two tensors are to be shifted; a tensor that stays as it is, is left out.

    Args:
        graph: the model, before linears are fused.
        matrices: names of the matrices that become int4.
        load: function from a name to the tensor, float32.
    """
    shifts: dict[str, int] = {}
    norms = [op for op in graph.operations if isinstance(op, RmsNorm)]
    for norm in norms:
        readers = [op for op in graph.operations if norm.outputs[0] in op.inputs]
        weights = [name for op in readers if isinstance(op, Linear) for name in op.weights]
        alone = sum(other.weight == norm.weight for other in norms) == 1
        if norm.offset or not alone or not weights or not all(isinstance(op, Linear) for op in readers):
            continue
        if not set(weights) <= set(matrices):
            continue
        shift = _best([_range(load(name)) for name in weights])
        before = load(norm.weight)
        after = np.ldexp(before, -shift)
        if shift and np.isfinite(after).all() and np.array_equal(np.ldexp(after, shift), before):
            shifts |= {norm.weight: -shift, **dict.fromkeys(weights, shift)}
    return shifts


def shifted(checkpoint: Checkpoint, shifts: Mapping[str, int]) -> Checkpoint:
    """Return a checkpoint whose tensors of these names are shifted, as float32."""
    read = checkpoint.read_tensor
    known: Mapping[str, Maker] = read.by_name if isinstance(read, Makers) else {}
    moved = {name: _Shifted(known.get(name) or _One(read, name), exponent) for name, exponent in shifts.items()}
    others = {name: known.get(name) or _One(read, name) for name in checkpoint.tensors if name not in moved}
    tensors = {
        name: replace(info, dtype="float32") if name in moved else info for name, info in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors, read_tensor=Makers({**others, **moved}))


@dataclass(frozen=True)
class _One:
    """Loads one tensor of a reader."""

    read: Callable[[str], NDArray[Any]]
    name: str

    def __call__(self) -> NDArray[Any]:
        return self.read(self.name)
