"""Read the metadata ``prism.hadamard.*``, which say that weights of the file are stored rotated.

A folded weight is W diag(signs) H, where H is block-diagonal with normalized Walsh-Hadamard matrices in Sylvester's order.
Its input must be multiplied by the signs and transformed before the product. Rows of an inverse weight, the embedding, are
e diag(signs) H; after the lookup they must be transformed and then multiplied by the signs. Without that the output is
unrelated to the model's, so metadata that do not fit the tensors are refused.

Source: ``llama-model.cpp`` and ``llama-graph.cpp`` of PrismML's llama.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.manifest import ROTATED_WEIGHTS
from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import hadamard_signs
from edgedec.graph.ops import Hadamard
from edgedec.quantize.readers.checkpoint import TensorInfo
from edgedec.quantize.readers.gguf.header import GgufHeader, GgufTensor, Value
from edgedec.quantize.readers.gguf.i2s import I2_S
from edgedec.quantize.readers.untrusted import shown

__all__ = ["AXIS", "PREFIX", "TRANSFORM", "Rotations", "read_rotations"]

PREFIX = "prism.hadamard."
TRANSFORM, AXIS = "normalized-sylvester-walsh-hadamard", "input-last-dimension"
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_DELTA_NETS = "qwen35"  # the architecture that is read and has gated delta nets
_TEXTS = {
    "transform": (TRANSFORM,),
    "axis": (AXIS,),
    "sign_mode": ("identity", "explicit"),
}
_SIGNS = ("sign_widths", "sign_values")
_KEYS = {*_TEXTS, *_SIGNS, "version", "block_size", "weight_names", "inverse_weight_names", "gdn_v_grouped"}


@dataclass(frozen=True)
class _SignsSource:
    """Loads a vector of signs (``Maker``)."""

    signs: NDArray[np.float32]

    def __call__(self) -> NDArray[np.float32]:
        return self.signs.copy()


@dataclass(frozen=True, kw_only=True)
class Rotations:
    """The rotations of a file.

    Members:
        block: columns of a block.
        folded: llama.cpp's names of weights whose inputs are rotated.
        inverse: llama.cpp's names of weights whose rows are rotated back after the lookup.
        signs: float32 [width], 1 and -1, for each width of a folded weight; empty: the transform has no signs.
        grouped: the outputs of gated delta nets are folded in the checkpoint's order of heads, not in llama.cpp's.
    """

    block: int
    folded: frozenset[str]
    inverse: frozenset[str]
    signs: Mapping[int, NDArray[np.float32]]
    grouped: bool

    def configuration(self, sources: Mapping[str, str]) -> dict[str, Any]:
        """Return the entry of the configuration; ``sources`` maps names of weights to llama.cpp's names of their tensors."""
        folded = sorted(name for name, tensor in sources.items() if tensor in self.folded - {EMBEDDING})
        if EMBEDDING in self.folded:  # a head without a tensor of its own
            folded.append("lm_head.weight")
        inverse = sorted(name for name, tensor in sources.items() if tensor in self.inverse)
        return {
            ROTATED_WEIGHTS: {
                "block_size": self.block,
                "signs": bool(self.signs),
                "weights": folded,
                "inverse_weights": inverse,
            }
        }

    def turns(self, tensor: str) -> bool:
        """Return whether a tensor, by llama.cpp's name, is stored rotated."""
        return tensor in self.folded or tensor in self.inverse

    def tensors(self, widths: Collection[int]) -> dict[str, tuple[TensorInfo, _SignsSource]]:
        """Return the signs of some widths as tensors of the checkpoint, and the functions that load them."""
        return {
            hadamard_signs(width): (TensorInfo(shape=signs.shape, dtype="float32"), _SignsSource(signs))
            for width, signs in self.signs.items()
            if width in widths
        }


def read_rotations(header: GgufHeader) -> Rotations | None:
    """Return the rotations of a file, or None if it has no such metadata.

    Raises:
        BundleError: the metadata contradict themselves or the tensors.
        UnsupportedError: the version or a key is not known, or heads are permuted that the architecture does not have.
    """
    keys = {key.removeprefix(PREFIX): value for key, value in header.metadata.items() if key.startswith(PREFIX)}
    if not keys:
        return None
    _check_kinds(header, keys)
    block = keys.get("block_size")
    if type(block) is not int or not 2 <= block <= Hadamard.MOST_BLOCK or block & (block - 1):
        _refuse(header, "block_size", f"a power of two from 2 to {Hadamard.MOST_BLOCK}", block)
    folded = _weights(header, "weight_names", keys.get("weight_names"), block)
    inverse = _weights(header, "inverse_weight_names", keys.get("inverse_weight_names", []), block)
    if not folded and not inverse:
        raise BundleError(f"{header.path}: {PREFIX}weight_names is empty, but the other keys describe a rotation")
    _check_embedding(header, folded, inverse)
    widths = {tensor.shape[-1] for tensor in (*folded.values(), *inverse.values())}
    explicit = keys["sign_mode"] == "explicit"
    return Rotations(
        block=block,
        folded=frozenset(folded),
        inverse=frozenset(inverse),
        signs=_read_signs(header, keys, widths, block) if explicit else {},
        grouped=bool(keys.get("gdn_v_grouped", False)),
    )


def _check_kinds(header: GgufHeader, keys: Mapping[str, Value]) -> None:
    """Check that the metadata describe the rotation that the operation ``hadamard`` computes."""
    unknown = sorted(keys.keys() - _KEYS)
    if unknown:
        raise UnsupportedError(
            f"{header.path}: {PREFIX}{unknown[0]} is not known, and leaving it out could change the model; "
            "use a file whose weights are not rotated"
        )
    version = keys.get("version")
    if type(version) is not int or version != 1:  # an array has no truth
        raise UnsupportedError(f"{header.path}: {PREFIX}version {shown(version)} is not known; known: 1")
    for key, allowed in _TEXTS.items():
        value = keys.get(key)
        if not isinstance(value, str) or value not in allowed:
            _refuse(header, key, f"one of {', '.join(allowed)}", value)
    if keys["sign_mode"] == "identity":
        for key in _SIGNS:
            if key in keys:
                raise BundleError(f"{header.path}: {PREFIX}{key} says signs, but {PREFIX}sign_mode is identity")
    grouped = keys.get("gdn_v_grouped", False)
    if type(grouped) is not bool:
        _refuse(header, "gdn_v_grouped", "a truth value", grouped)
    architecture = header.metadata.get("general.architecture")
    if grouped and architecture != _DELTA_NETS:
        raise UnsupportedError(
            f"{header.path}: {PREFIX}gdn_v_grouped permutes the heads of gated delta nets, which {shown(architecture)} does "
            "not have"
        )
    if any(tensor.kind == I2_S for tensor in header.tensors.values()):
        raise UnsupportedError(
            f"{header.path}: has rotated weights and tensors of the type I2_S, whose layout is determined from weights that "
            "are not rotated; save them as TQ2_0"
        )


def _check_embedding(header: GgufHeader, folded: Mapping[str, GgufTensor], inverse: Mapping[str, GgufTensor]) -> None:
    """Check that only the embedding is rotated back, and that it is the input of a product only as the head."""
    for name in inverse:
        if name != EMBEDDING:
            raise BundleError(
                f"{header.path}: {PREFIX}inverse_weight_names names {name!r}, but only rows of {EMBEDDING!r} are looked up"
            )
    tied = HEAD not in header.tensors
    if tied and (EMBEDDING in folded) != (EMBEDDING in inverse):
        key = "weight_names" if EMBEDDING in inverse else "inverse_weight_names"
        raise BundleError(
            f"{header.path}: {EMBEDDING!r} is the embedding and the head, and is stored once, but {PREFIX}{key} does not "
            "name it; use a file that names it in both lists, or has a head of its own"
        )
    if not tied and EMBEDDING in folded:
        raise BundleError(
            f"{header.path}: {PREFIX}weight_names names {EMBEDDING!r}, which no product reads, because there is {HEAD!r}"
        )


def _refuse(header: GgufHeader, key: str, expected: str, value: object) -> NoReturn:
    raise BundleError(f"{header.path}: {PREFIX}{key} must be {expected}, not {shown(value)}")


def _weights(header: GgufHeader, key: str, names: Value | None, block: int) -> dict[str, GgufTensor]:
    """Return the matrices of a list of names, whose rows must divide into blocks."""
    if isinstance(names, np.ndarray) and not names.size:
        names = []  # the elements of an empty array may have any type
    if not isinstance(names, list):
        _refuse(header, key, "a list of names of tensors", names)
    tensors: dict[str, GgufTensor] = {}
    for name in names:
        tensor = header.tensors.get(name)
        if tensor is None:
            raise BundleError(f"{header.path}: {PREFIX}{key} names {shown(name)}, which the file does not have")
        if name in tensors:
            raise BundleError(f"{header.path}: {PREFIX}{key} names a tensor twice, {shown(name)}")
        if len(tensor.shape) != 2 or tensor.shape[1] % block:
            raise BundleError(
                f"{header.path}: {PREFIX}{key} names {name!r} of shape {tensor.shape}, whose rows are no multiple of the "
                f"block of {block}"
            )
        tensors[name] = tensor
    return tensors


def _integers(header: GgufHeader, keys: Mapping[str, Value], key: str) -> NDArray[Any]:
    values = keys.get(key)
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        _refuse(header, key, "an array of integers", values)
    return values


def _read_signs(
    header: GgufHeader, keys: Mapping[str, Value], widths: Iterable[int], block: int
) -> dict[int, NDArray[np.float32]]:
    """Return the vector of signs of each of ``widths``. The file has one for each width, one after the other."""
    listed, signs = _integers(header, keys, "sign_widths").tolist(), _integers(header, keys, "sign_values")
    if len(set(listed)) < len(listed) or any(width < block or width % block for width in listed):
        _refuse(header, "sign_widths", f"different multiples of the block of {block}", listed)
    if sum(listed) != signs.size:
        raise BundleError(
            f"{header.path}: {PREFIX}sign_values has {signs.size} values, but {PREFIX}sign_widths says {sum(listed)}"
        )
    if not (np.abs(signs.astype(np.int64)) == 1).all():
        raise BundleError(f"{header.path}: {PREFIX}sign_values must be 1 and -1")
    missing = sorted(set(widths) - set(listed))
    if missing:
        raise BundleError(
            f"{header.path}: {PREFIX}sign_widths has no signs for the {missing[0]} columns of a rotated weight"
        )
    starts = dict(zip(listed, np.cumsum([0, *listed[:-1]]).tolist(), strict=True))
    return {width: signs[starts[width] : starts[width] + width].astype(np.float32) for width in sorted(widths)}
