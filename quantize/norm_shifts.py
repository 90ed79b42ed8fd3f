"""Move factors from matrices into the norm before them, so that the float16 scales of int4 can hold the matrices.

A norm's weight divided by a factor and every matrix that reads its output times that factor are the same function, exactly
if the factor is a power of two. Checkpoints differ in where they keep it, and float16 holds scales from 2^-14 to 65504 with
all of their bits. A norm whose weights are all equal is a factor that was moved there, so it moves back as it is, rounded to
float32's 24 bits; a power of two would give the scales other bits, and after rounding to float16 other weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.graph import Graph
from edgedec.graph.ops import Linear, RmsNorm
from edgedec.quantize.readers.checkpoint import Checkpoint, Maker, Makers
from edgedec.schemes import Int4Scheme

__all__ = ["norm_shifts", "scaled"]

F32 = NDArray[np.float32]

# Exponents of the largest magnitude of a group that a float16 scale holds: a scale is 1/64 to 1/7 of that magnitude.
_LEAST, _MOST = -8, 17


@dataclass(frozen=True)
class _Scaled:
    """Loads a tensor times ``factor``, float32. It can be sent to other processes if ``make`` can."""

    make: Maker
    factor: float

    def __call__(self) -> NDArray[Any]:
        return _times(self.make(), self.factor)


def _times(values: NDArray[Any], factor: float) -> F32:
    with np.errstate(over="ignore"):
        product: F32 = np.multiply(values, factor, dtype=np.float64).astype(np.float32)
    return product


class _Range(NamedTuple):
    """The powers of two, ``low`` to ``high``, with which all scales of a matrix are normal float16; none if low > high."""

    low: int
    high: int

    @property
    def nearest(self) -> int:
        """The power nearest to 0, because the inputs of the matrix are divided by it."""
        return min(max(0, self.low), max(self.low, self.high))


def _range(matrix: F32) -> _Range:
    starts = np.arange(0, matrix.shape[1], Int4Scheme.GROUP)
    groups = np.maximum.reduceat(np.abs(matrix), starts, axis=1)
    exponents = np.frexp(groups[groups > 0])[1]
    if not len(exponents):
        return _Range(-(1 << 10), 1 << 10)
    return _Range(_LEAST + 1 - int(exponents.min()), _MOST - int(exponents.max()))


def _best(ranges: list[_Range], norm: F32) -> float:
    """Return the factor that most matrices allow; 1 if no other is allowed by more."""
    common = _Range(max(one.low for one in ranges), min(one.high for one in ranges))
    magnitudes = np.unique(np.abs(norm))
    equal = [float(magnitudes[0])] if len(magnitudes) == 1 and magnitudes[0] > 0 else []
    powers = [2.0**power for power in (common.nearest, *(one.nearest for one in ranges))]
    allowed = {
        factor: sum(one.low <= np.log2(factor) <= one.high for one in ranges) for factor in (1.0, *equal, *powers)
    }
    return max(allowed, key=allowed.__getitem__)


def norm_shifts(graph: Graph, matrices: Collection[str], load: Callable[[str], F32]) -> dict[str, float]:
    """Return the factors of tensors; a tensor that stays as it is, is left out.

    Args:
        graph: the model, before linears are fused.
        matrices: names of the matrices that become int4.
        load: function from a name to the tensor, float32.
    """
    factors: dict[str, float] = {}
    norms = [op for op in graph.operations if isinstance(op, RmsNorm)]
    for norm in norms:
        readers = [op for op in graph.operations if norm.outputs[0] in op.inputs]
        weights = [name for op in readers if isinstance(op, Linear) for name in op.weights]
        alone = sum(other.weight == norm.weight for other in norms) == 1
        if norm.offset or not alone or not weights or not all(isinstance(op, Linear) for op in readers):
            continue
        if not set(weights) <= set(matrices):
            continue
        before = load(norm.weight)
        factor = _best([_range(load(name)) for name in weights], before)
        if factor != 1 and np.array_equal(_times(_times(before, 1 / factor), factor), before):
            factors |= {norm.weight: 1 / factor, **dict.fromkeys(weights, factor)}
    return factors


def scaled(checkpoint: Checkpoint, factors: Mapping[str, float]) -> Checkpoint:
    """Return a checkpoint whose tensors of these names are multiplied, as float32."""
    read = checkpoint.read_tensor
    known: Mapping[str, Maker] = read.by_name if isinstance(read, Makers) else {}
    moved = {name: _Scaled(known.get(name) or _One(read, name), factor) for name, factor in factors.items()}
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
