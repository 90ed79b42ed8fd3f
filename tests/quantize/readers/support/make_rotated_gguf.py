"""Fold rotations into weights, and describe them in metadata, as the definition of ``prism.hadamard.*`` reads.

The matrices are products of Kronecker's; nothing here is shared with the operation or the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def sylvester(block: int) -> F64:
    """Return the normalized matrix [block, block] in Sylvester's order."""
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.kron(np.array([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix / np.sqrt(block)


def random_signs(widths: Iterable[int], seed: int = 0) -> dict[int, list[int]]:
    rng = np.random.default_rng(seed)
    return {width: rng.choice([-1, 1], width).tolist() for width in widths}


def folded(weight: F32, block: int, signs: Sequence[int] | None) -> F32:
    """Return W diag(signs) H, whose product with H (signs * x) is W x."""
    rows, width = weight.shape
    signed = weight.astype(np.float64) * np.asarray(signs or [1] * width)
    return (signed.reshape(rows, -1, block) @ sylvester(block)).reshape(rows, width).astype(np.float32)


def unfolded(stored: F32, block: int, signs: Sequence[int] | None) -> F32:
    """Return the W of which ``stored`` is the folded weight."""
    rows, width = stored.shape
    turned = (stored.astype(np.float64).reshape(rows, -1, block) @ sylvester(block)).reshape(rows, width)
    return (turned * np.asarray(signs or [1] * width)).astype(np.float32)


def rotation_keys(
    block: int,
    signs: Mapping[int, Sequence[int]] | None,
    weights: Sequence[str],
    inverse: Sequence[str] = (),
    **changes: Any,
) -> dict[str, Any]:
    """Return the metadata, as ``make_gguf.metadata`` takes changes; ``changes`` of them, None removes a key."""
    keys: dict[str, Any] = {
        "version": 1,
        "block_size": block,
        "transform": "normalized-sylvester-walsh-hadamard",
        "axis": "input-last-dimension",
        "sign_mode": "explicit" if signs else "identity",
        "weight_names": list(weights),
    }
    if inverse:
        keys["inverse_weight_names"] = list(inverse)
    if signs:
        keys["sign_widths"] = list(signs)
        keys["sign_values"] = [sign for vector in signs.values() for sign in vector]
    return {f"prism__hadamard__{key}": value for key, value in (keys | changes).items()}
