"""Matrix products in float, and with exact integer sums for the quantized schemes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.ops import Linear
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.schemes import FloatWeight, Int4Scheme, Int4Weight, Int8Weight, TernaryWeight, Weight, fold

__all__ = ["grouped_product", "run", "soft_capped"]


def soft_capped(x: NDArray[np.float32], cap: float | None) -> NDArray[np.float32]:
    """Return cap * tanh(x / cap), or x itself without a cap."""
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))


def _integer_product(codes: NDArray[np.int8], matrix: NDArray[np.int8]) -> NDArray[np.int32]:
    """Return codes [n, in] @ matrix [out, in].T; float64 is exact because |sum| < 2^53 if in is below 2^39."""
    return (codes.astype(np.float64) @ matrix.T.astype(np.float64)).astype(np.int32)


def _ternary(codes: NDArray[np.int8], scale: NDArray[np.float32], weight: TernaryWeight) -> NDArray[np.float32]:
    """Add float32(sum) * weight scale over planes in order, and over groups in order; then apply the token's scale."""
    planes, outputs, inputs = weight.trits.shape
    size = weight.group_size or inputs
    total = np.zeros((len(codes), outputs), np.float32)
    for plane in range(planes):
        for group, start in enumerate(range(0, inputs, size)):
            columns = slice(start, start + size)
            exact = _integer_product(codes[:, columns], weight.trits[plane, :, columns])
            factor = weight.scale[plane, :, group] if weight.group_size else weight.scale
            total += exact.astype(np.float32) * factor
    return total * scale


def grouped_product(
    codes: NDArray[np.int8], scale: NDArray[np.float32], weight: Int4Weight | TernaryWeight
) -> NDArray[np.float32]:
    """Return the product with a matrix of int4 or of tied planes, float32 [n, out].

    Add float32(sum) * weight scale over groups in order; then apply the token's scale. With minima, each group also
    subtracts float32(sum of the token's codes) * minimum.
    """
    if isinstance(weight, Int4Weight):
        levels, factors, minimum, size = weight.codes, weight.scale, weight.minimum, Int4Scheme.GROUP
    else:
        levels, factors, minimum, size = fold(weight.trits), weight.scale[0], None, weight.group_size
    total = np.zeros((len(codes), len(levels)), np.float32)
    for group, start in enumerate(range(0, levels.shape[1], size)):
        columns = slice(start, start + size)
        total += _integer_product(codes[:, columns], levels[:, columns]).astype(np.float32) * factors[:, group]
        if minimum is not None:
            sums = codes[:, columns].sum(axis=1, dtype=np.int32).astype(np.float32)
            total -= sums[:, None] * minimum[:, group]
    return total * scale


def _product(inputs: Sequence[NDArray[Any]], weight: Weight) -> NDArray[np.float32]:
    if isinstance(weight, FloatWeight):
        (x,) = inputs
        matrix = weight.dense()
        return np.stack([matrix @ row for row in x]) if len(x) else np.zeros((0, len(matrix)), np.float32)
    codes, scale = inputs
    if isinstance(weight, Int8Weight):
        exact = _integer_product(codes, weight.codes)
        scaled: NDArray[np.float32] = exact.astype(np.float32) * scale * weight.scale
        return scaled
    if isinstance(weight, Int4Weight) or weight.tied:
        return grouped_product(codes, scale, weight)
    return _ternary(codes, scale, weight)


def run(op: Linear, inputs: Sequence[NDArray[Any]], context: FloatPassContext) -> tuple[NDArray[np.float32], ...]:
    outputs = []
    for name, bias in zip(op.weights, op.biases, strict=True):
        out = _product(inputs, context.weights(name))
        outputs.append(soft_capped(out + context.weights(bias).dense() if bias else out, op.soft_cap))
    return tuple(outputs)
