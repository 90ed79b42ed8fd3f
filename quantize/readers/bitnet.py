"""Unpack natively ternary tensors of the Hugging Face BitNet format (``quant_method`` "bitnet"), one at a time.

A packed linear is ``X.weight`` uint8 [ceil(out / 4), in] with ``X.weight_scale``: bits 2i+1:2i of packed row r are row
r + i * ceil(out / 4), as trit + 1. The linear class ``bitlinear`` divides by the scale. ``autobitlinear`` multiplies by it,
including the bias, and in mode ``online`` has float weights that are rounded to ternary when loaded. All of them are loaded
as float32 [out, in] with one nonzero magnitude. As an extension of edgedec, scales [out, groups] give one magnitude per row
and ``group_size`` columns.

Source: ``integrations/bitnet.py`` and ``quantizers/quantizer_bitnet.py`` of transformers 5.23; 2402.17764 (absmean).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.graph.ops import Embed, Linear
from edgedec.quantize.methods.float_bits import pieces
from edgedec.quantize.methods.native import absmean_ternary
from edgedec.quantize.readers.checkpoint import Makers, TensorInfo, Trits, model_graph
from edgedec.quantize.readers.safetensors_file import StoredTensor, TensorEntry, load_bytes, load_entry
from edgedec.quantize.readers.untrusted import shown

__all__ = ["read_bitnet_tensors"]

F32 = NDArray[np.float32]

_GROUP_SIZES = (32, 64, 128)
_SCALE = "_scale"  # suffix of X.weight in the name of its scale
# transformers accepts a regular expression here; one from an untrusted file could run forever.
_PLAIN = re.compile(r"\w+(\.\w+)*\.?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """A validated ``quantization_config``."""

    divides: bool  # linear_class bitlinear
    online: bool
    group_size: int
    kept: tuple[str, ...]  # modules that stay float

    def converts(self, module: str) -> bool:
        """Return what ``should_convert_module`` of transformers returns for plain names."""
        return not any(
            module == kept or module.startswith(kept.rstrip(".") + ".") or module.endswith(kept) for kept in self.kept
        )


@dataclass(frozen=True, kw_only=True)
class _StoredMatrix:
    """A matrix with scales in the file, either packed or as float trits that are multiplied by the scale."""

    name: str
    entry: TensorEntry
    scale: TensorEntry
    divides: bool
    info: TensorInfo
    group_size: int

    @property
    def where(self) -> str:
        return f"{self.entry.path}: tensor {self.name!r}"

    def load_bias(self, name: str, entry: TensorEntry) -> F32:
        """Load a bias times the scale, because ``AutoBitLinear`` adds the bias before it multiplies by the scale."""
        values: F32 = load_entry(name, entry).astype(np.float32)
        with np.errstate(all="ignore"):  # NaN and infinity are refused later
            values *= self._factors()[0, 0]
        return values

    def __call__(self) -> F32:
        """Load scale * trit as float32 [out, in]; every product is exact."""
        values = load_entry(self.name, self.entry).astype(np.float32, copy=False)
        return self._scaled(values, self._factors())

    def _scaled(self, values: F32, factors: F32) -> F32:
        width = self.group_size or self.info.shape[1]
        with np.errstate(all="ignore"):  # NaN and infinity are refused later
            for group in range(factors.shape[1]):
                values[:, group * width : (group + 1) * width] *= factors[:, group : group + 1]
        return values

    def _factors(self) -> F32:
        """Load and check the factors, [out, groups] or [1, 1]."""
        name = self.name + _SCALE
        factors = load_entry(name, self.scale).astype(np.float32)
        if self.divides:
            with np.errstate(all="ignore"):
                factors = np.float32(1) / factors
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise BundleError(
                f"{self.scale.path}: tensor {name!r}: a scale must be positive and finite; the file is damaged"
            )
        return factors if factors.ndim == 2 else factors.reshape(1, 1)


@dataclass(frozen=True, kw_only=True)
class _PackedMatrix(_StoredMatrix):
    """A matrix with four codes in a byte."""

    def __call__(self) -> F32:
        return self._scaled(self._unpacked().astype(np.float32), self._factors())

    def trits(self) -> Trits:
        factors = self._factors()
        return Trits(self._unpacked(), factors if self.group_size else factors[0, 0], self.group_size)

    def _unpacked(self) -> NDArray[np.int8]:
        """Return trits [out, in]. Up to three rows after them are padding and must have code 0."""
        codes = load_bytes(self.name, self.entry)
        rows, (outputs, inputs) = len(codes), self.info.shape
        trits = np.empty((outputs, inputs), np.int8)
        for some in pieces(rows, inputs):
            four = codes[some]
            if (four & four >> 1 & 0x55).any():
                raise BundleError(f"{self.where}: a packed code is 3, which no trit has; the file is damaged")
            for quarter in range(4):
                part = (four >> 2 * quarter & 3).view(np.int8)
                first = quarter * rows + some.start
                inside = part[: max(0, outputs - first)]
                np.subtract(inside, np.int8(1), out=trits[first : first + len(inside)])
                if part[len(inside) :].any():
                    raise BundleError(
                        f"{self.where}: the rows after the last one are not empty; it belongs to another model"
                    )
        return trits


@dataclass(frozen=True, kw_only=True)
class _OnlineMatrix:
    """A float matrix that the model's class rounds to ternary whenever it runs the matrix."""

    name: str
    entry: TensorEntry

    def __call__(self) -> F32:
        ternary = self.trits()
        return ternary.trits * np.float32(ternary.scales)

    def trits(self) -> Trits:
        where = f"{self.entry.path}: tensor {self.name}"
        try:
            return Trits(*absmean_ternary(StoredTensor(name=self.name, entry=self.entry), where))
        except FloatingPointError:
            raise BundleError(f"{where} holds NaN or infinity; the checkpoint is damaged") from None


def read_bitnet_tensors(
    config_path: Path, config: Mapping[str, Any], quantization: Mapping[str, Any], entries: Mapping[str, TensorEntry]
) -> tuple[dict[str, TensorInfo], Callable[[str], NDArray[Any]]]:
    """Return the tensors that the files represent, and the function that loads one of them.

    Scales do not appear as tensors.

    Raises:
        BundleError: ``quantization`` and the tensors contradict each other.
        UnsupportedError: the variant of the format is not supported.
    """
    layout = _layout(config_path, quantization)
    graph = model_graph(config_path, config)
    linears = {name for op in graph.operations if isinstance(op, Linear) for name in op.weights}
    converted = {name for name in linears if layout.converts(name.removesuffix(".weight"))}
    if layout.online and config.get("tie_word_embeddings") and layout.converts("lm_head"):
        raise UnsupportedError(
            f"{config_path}: modules_to_not_convert does not list lm_head, which is tied to the embedding, so that one "
            "matrix is rounded as the head and not as the embedding; save the two separately"
        )
    converted -= {op.weight for op in graph.operations if isinstance(op, Embed)}  # a tied head is an embedding
    tensors: dict[str, TensorInfo] = {}
    makers: dict[str, Callable[[], NDArray[Any]]] = {}
    scaled_biases: dict[str, _StoredMatrix] = {}
    for name, entry in entries.items():
        where = f"{entry.path}: tensor {name!r}"
        if name.endswith(f".weight{_SCALE}"):
            if name.removesuffix(_SCALE) not in entries:
                raise BundleError(f"{where} is the scale of a weight that is missing; the checkpoint is incomplete")
            continue
        scale = entries.get(name + _SCALE)
        packed = entry.info.dtype == "U8" and name.endswith(".weight")
        if scale is None and (packed or (name in converted and not layout.online)):
            raise BundleError(f"{where} should be ternary but has no {name + _SCALE}; the checkpoint is incomplete")
        if layout.online and (scale is not None or packed):
            raise BundleError(f"{where} is packed or scaled, which quantization_mode online does not have")
        if scale is not None and name not in converted:
            raise BundleError(f"{where} is packed or scaled, but is not a linear that the configuration converts")
        if scale is not None:
            matrix = _stored_matrix(name, entry, scale, layout, graph.weights[name].shape)
            tensors[name], makers[name] = matrix.info, matrix
            if not layout.divides and (bias := name.removesuffix("weight") + "bias") in entries:
                scaled_biases[bias] = matrix
        elif name in converted:
            tensors[name], makers[name] = replace(entry.info, dtype="float32"), _OnlineMatrix(name=name, entry=entry)
        else:
            tensors[name], makers[name] = entry.info, StoredTensor(name=name, entry=entry)
    for name, matrix in scaled_biases.items():
        if matrix.group_size:
            raise UnsupportedError(f"{matrix.where}: a bias together with scales per group is not supported")
        tensors[name] = replace(tensors[name], dtype="float32")
        makers[name] = partial(matrix.load_bias, name, entries[name])
    return tensors, Makers(makers)


def _stored_matrix(
    name: str, entry: TensorEntry, scale: TensorEntry, layout: _Layout, shape: tuple[int, ...]
) -> _StoredMatrix:
    where = f"{entry.path}: tensor {name!r}"
    outputs, inputs = shape
    packed = entry.info.dtype == "U8"
    if layout.divides and not packed:
        raise BundleError(f"{where} is {entry.info.dtype}; linear_class bitlinear has packed weights, which are U8")
    expected = (-(-outputs // 4), inputs) if packed else shape
    if entry.info.shape != expected:
        raise BundleError(f"{where} is {entry.info.shape}, the configuration says {expected}")
    grouped = (outputs, -(-inputs // layout.group_size)) if layout.group_size else None
    if scale.info.shape not in ((), (1,), grouped):
        raise BundleError(
            f"{scale.path}: tensor {name + _SCALE!r} is {scale.info.shape}, it must be (1,)"
            + (f" or {grouped}" if grouped else "; scales per group need group_size in quantization_config")
        )
    group_size = layout.group_size if scale.info.shape == grouped else 0
    info = TensorInfo(shape=shape, dtype="float32")
    kind = _PackedMatrix if packed else _StoredMatrix
    return kind(name=name, entry=entry, scale=scale, divides=layout.divides, info=info, group_size=group_size)


def _layout(path: Path, quantization: Mapping[str, Any]) -> _Layout:
    def choice(key: str, allowed: tuple[Any, ...]) -> Any:
        value = quantization.get(key, allowed[0])
        if type(value) is not type(allowed[0]) or value not in allowed:
            raise BundleError(f"{path}: quantization_config: {key} must be one of {allowed}, not {shown(value)}")
        return value

    divides = choice("linear_class", ("bitlinear", "autobitlinear")) == "bitlinear"
    # transformers reads the mode only for the class autobitlinear.
    online = choice("quantization_mode", ("offline", "online")) == "online" and not divides
    group_size = choice("group_size", (0, *_GROUP_SIZES))
    if group_size and (divides or online):
        raise BundleError(f"{path}: quantization_config: group_size needs linear_class autobitlinear, mode offline")
    if choice("use_rms_norm", (False, True)):
        raise UnsupportedError(
            f"{path}: quantization_config: use_rms_norm, a norm inside each linear, is not supported; "
            "known: the sub-norms of model_type 'bitnet'"
        )
    kept = quantization.get("modules_to_not_convert")
    if kept is None:
        kept = ["lm_head"]
    if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
        raise BundleError(
            f"{path}: quantization_config: modules_to_not_convert must be a list of names, not {shown(kept)}"
        )
    for name in kept:
        if not _PLAIN.fullmatch(name):
            raise UnsupportedError(
                f"{path}: quantization_config: modules_to_not_convert: {shown(name)} is not a plain module name"
            )
    return _Layout(divides=divides, online=online, group_size=group_size, kept=tuple(kept))
