"""Check the metadata ``prism.hadamard.*``, which say that weights of the file are stored rotated.

A folded weight is W diag(signs) H, where H is block-diagonal with normalized Walsh-Hadamard matrices in Sylvester's order.
Its input must be multiplied by the signs and transformed before the product; rows of an inverse weight, an embedding, must
be transformed after the lookup. Without that the output is unrelated to the model's, so such files are refused until
edgedec has the operation.

Source: ``llama-model.cpp`` and ``llama-graph.cpp`` of PrismML's llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf.header import GgufHeader, GgufTensor, Value
from edgedec.quantize.readers.untrusted import shown

__all__ = ["check_hadamard"]

_PREFIX = "prism.hadamard."
_TEXTS = {
    "transform": ("normalized-sylvester-walsh-hadamard",),
    "axis": ("input-last-dimension",),
    "sign_mode": ("identity", "explicit"),
}
_KEYS = {
    *_TEXTS,
    *("version", "block_size", "weight_names", "inverse_weight_names", "sign_widths", "sign_values", "gdn_v_grouped"),
}
_MAX_BLOCK = 1 << 16


def check_hadamard(header: GgufHeader) -> None:
    """Check the metadata of a file with rotated weights, and refuse it. A file without such metadata passes.

    Raises:
        BundleError: the metadata contradict themselves or the tensors.
        UnsupportedError: the file has rotated weights.
    """
    keys = {key.removeprefix(_PREFIX): value for key, value in header.metadata.items() if key.startswith(_PREFIX)}
    if not keys:
        return
    unknown = sorted(keys.keys() - _KEYS)
    if unknown:
        raise UnsupportedError(
            f"{header.path}: {_PREFIX}{unknown[0]} is not known, and leaving it out could change the model; "
            "use a file whose weights are not rotated"
        )
    for key, allowed in _TEXTS.items():
        value = keys.get(key, allowed[0])
        if not isinstance(value, str) or value not in allowed:
            _refuse(header, key, f"one of {', '.join(allowed)}", value)
    version = keys.get("version", 1)
    if type(version) is not int or version != 1:  # an array has no truth
        raise UnsupportedError(f"{header.path}: {_PREFIX}version {shown(version)} is not known; known: 1")
    block = keys.get("block_size")
    if type(block) is not int or not 2 <= block <= _MAX_BLOCK or block & (block - 1):
        _refuse(header, "block_size", f"a power of two from 2 to {_MAX_BLOCK}", block)
    folded = _weights(header, "weight_names", keys.get("weight_names"), block)
    inverse = _weights(header, "inverse_weight_names", keys.get("inverse_weight_names", []), block)
    if not folded and not inverse:
        raise BundleError(f"{header.path}: {_PREFIX}weight_names is empty, but the other keys describe a rotation")
    widths = {tensor.shape[-1] for tensor in (*folded, *inverse)}
    if keys.get("sign_mode", "identity") == "explicit":
        _check_signs(header, keys, widths, block)
    raise UnsupportedError(
        f"{header.path}: {len(folded) + len(inverse)} of its weights are stored rotated ({_PREFIX}*, blocks of {block}), "
        f"{(*folded, *inverse)[0].name!r} among them; that needs the operation hadamard, which turns the values that such "
        "a weight reads and which edgedec does not have; use a file whose weights are not rotated"
    )


def _refuse(header: GgufHeader, key: str, expected: str, value: object) -> NoReturn:
    raise BundleError(f"{header.path}: {_PREFIX}{key} must be {expected}, not {shown(value)}")


def _weights(header: GgufHeader, key: str, names: Value | None, block: int) -> list[GgufTensor]:
    """Return the matrices of a list of names, whose rows must divide into blocks."""
    if isinstance(names, np.ndarray) and not names.size:
        names = []  # the elements of an empty array may have any type
    if not isinstance(names, list):
        _refuse(header, key, "a list of names of tensors", names)
    if len(set(names)) < len(names):
        raise BundleError(f"{header.path}: {_PREFIX}{key} names a tensor twice")
    tensors = []
    for name in names:
        tensor = header.tensors.get(name)
        if tensor is None:
            raise BundleError(f"{header.path}: {_PREFIX}{key} names {shown(name)}, which the file does not have")
        if len(tensor.shape) != 2 or tensor.shape[1] % block:
            raise BundleError(
                f"{header.path}: {_PREFIX}{key} names {name!r} of shape {tensor.shape}, whose rows are no multiple of the "
                f"block of {block}"
            )
        tensors.append(tensor)
    return tensors


def _integers(header: GgufHeader, keys: dict[str, Value], key: str) -> NDArray[Any]:
    values = keys.get(key)
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        _refuse(header, key, "an array of integers", values)
    return values


def _check_signs(header: GgufHeader, keys: dict[str, Value], widths: Iterable[int], block: int) -> None:
    """Check that there is one vector of signs for each width."""
    listed, signs = _integers(header, keys, "sign_widths").tolist(), _integers(header, keys, "sign_values")
    if len(set(listed)) < len(listed) or any(width < block or width % block for width in listed):
        _refuse(header, "sign_widths", f"different multiples of the block of {block}", listed)
    if sum(listed) != signs.size:
        raise BundleError(
            f"{header.path}: {_PREFIX}sign_values has {signs.size} values, but {_PREFIX}sign_widths says {sum(listed)}"
        )
    if not (np.abs(signs.astype(np.int64)) == 1).all():
        raise BundleError(f"{header.path}: {_PREFIX}sign_values must be 1 and -1")
    missing = sorted(set(widths) - set(listed))
    if missing:
        raise BundleError(
            f"{header.path}: {_PREFIX}sign_widths has no signs for the {missing[0]} columns of a rotated weight"
        )
