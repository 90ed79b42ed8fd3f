"""Read GGUF files of llama.cpp, which hold weights, configuration and tokenizer."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.chat_templates import compose
from edgedec.quantize.readers.checkpoint import Checkpoint, Maker, Makers, TensorInfo, Trits
from edgedec.quantize.readers.gguf import i2s
from edgedec.quantize.readers.gguf.blocks import INT4, decode, int4_parts, read_codes
from edgedec.quantize.readers.gguf.delta_net import DECAY, KERNELS, DeltaNet, HeadOrder, decay_log
from edgedec.quantize.readers.gguf.hadamard import Rotations, read_rotations
from edgedec.quantize.readers.gguf.header import GgufHeader, GgufTensor
from edgedec.quantize.readers.gguf.keys import ArchitectureKeys
from edgedec.quantize.readers.gguf.models import (
    HEAD,
    ROPE_FACTORS,
    Architecture,
    RopeFactors,
    architecture,
    configuration,
)
from edgedec.quantize.readers.gguf.names import huggingface_names, layer_part
from edgedec.quantize.readers.gguf.parts import read_parts
from edgedec.quantize.readers.gguf.tokenizer import chat_templates, gguf_tokenizer, special_ids
from edgedec.quantize.readers.gguf.trits import CODES, TWO_BIT
from edgedec.quantize.readers.tokenizers.folder import end_ids, read_folder_tokenizer
from edgedec.quantize.readers.tokenizers.tokenizer_file import CheckedTokenizer, check_tokenizer

__all__ = ["read_gguf"]

log = logging.getLogger(__name__)

_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_LEAST_GROUP = 32  # columns that can have a scale of their own
_ALWAYS = "qwen2"  # the family whose queries, keys and values always have biases
_ROTATED = ("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias")


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A tensor of the model, and its source in the file.

    ``head_dim`` is nonzero if rows must be reordered into halves of heads, and ``order`` is that of the heads of a gated
    delta net. ``scale`` is a separate factor of the weight.
    """

    tensor: GgufTensor
    info: TensorInfo
    head_dim: int
    order: HeadOrder | None
    scale: GgufTensor | None

    def load(self) -> NDArray[Any]:
        values = self._scaled(_decoded(self.tensor))
        self.arrange(values)
        if self.tensor.name.endswith(f".{DECAY}"):
            return decay_log(values, f"{self.tensor.path}: tensor {self.tensor.name!r}")
        return values.reshape(self.info.shape)

    def codes(self) -> Trits:
        """Return a matrix of a ternary type as codes in -1..1, or -1..2 for types of two bits, and scales per block."""
        tensor = self.tensor
        codes, scales = read_codes(tensor.path, f"tensor {tensor.name!r}", tensor.kind, tensor.offset, tensor.shape)
        scales, group = self._scaled(scales), tensor.kind.block
        if self.order is not None and self.order.columns:
            group = math.gcd(group, self.order.width)  # columns of a block that stay together
            if group < _LEAST_GROUP:
                raise UnsupportedError(
                    f"{tensor.path}: tensor {tensor.name!r} ({tensor.kind.name}) has blocks of {tensor.kind.block} columns, "
                    f"which heads of {self.order.width} columns divide into {group}, and a group has at least "
                    f"{_LEAST_GROUP}; use another method than ternary"
                )
            scales = np.repeat(scales, tensor.kind.block // group, axis=1)
        self.arrange(codes)
        self.arrange(scales)
        return Trits(codes, scales, group)

    def _scaled(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values or scales times the separate factor, if there is one."""
        if self.scale is None:
            return values
        factor = _decoded(self.scale).astype(np.float32)
        values = values.astype(np.float32, copy=False)
        with np.errstate(all="ignore"):  # infinity is refused later
            values *= factor.reshape(-1)[0]
        return values

    def arrange(self, values: NDArray[Any]) -> None:
        """Reorder in place: neighbours, which llama.cpp rotates, become halves of a head; value heads become groups."""
        if self.order is not None:
            self.order.apply(values)
        if not self.head_dim:
            return
        for start in range(0, len(values), self.head_dim):
            head = values[start : start + self.head_dim]
            pairs = head.reshape(self.head_dim // 2, 2, *head.shape[1:])
            head[...] = pairs.swapaxes(0, 1).reshape(head.shape)  # reshape copies

    def maker(self) -> Maker:
        """Return the function that loads the tensor: an ``Int4Maker`` for 4-bit codes, a ``TernaryMaker`` for trits."""
        if self.info.int4 is not None:
            return _Int4Source(self)
        if self.tensor.kind.name in CODES and len(self.info.shape) == 2:
            return _TwoBitSource(self) if self.info.two_bit else _TernarySource(self)
        return self.load


@dataclass(frozen=True)
class _Int4Source:
    """A matrix of 4-bit codes in the file (``Int4Maker``)."""

    source: _Source

    def __call__(self) -> NDArray[Any]:
        return self.source.load()

    def int4(self) -> dict[str, NDArray[Any]]:
        tensor = self.source.tensor
        parts = int4_parts(tensor.path, f"tensor {tensor.name!r}", tensor.kind, tensor.offset, tensor.shape)
        for values in parts.values():
            self.source.arrange(values)
        return parts


@dataclass(frozen=True)
class _TernarySource:
    """A matrix of trits in the file (``TernaryMaker``)."""

    source: _Source

    def __call__(self) -> NDArray[Any]:
        return self.source.load()

    def trits(self) -> Trits:
        return self.source.codes()


@dataclass(frozen=True)
class _TwoBitSource(_TernarySource):
    """A matrix of codes -1, 0, 1 and 2 in the file (``TwoBitMaker``), which may be trits."""

    def codes(self) -> Trits:
        return self.source.codes()

    def trits(self) -> Trits:
        codes = self.source.codes()
        if twos := int(np.count_nonzero(codes.trits == 2)):
            tensor = self.source.tensor
            raise UnsupportedError(
                f"{tensor.path}: tensor {tensor.name!r} ({tensor.kind.name}) is not ternary: {twos} of its "
                f"{codes.trits.size} codes are 3, which means +2 times the scale; --method ternary --planes 2 takes them "
                "without loss"
            )
        return codes


def _decoded(tensor: GgufTensor) -> NDArray[Any]:
    read = i2s.decode if tensor.kind in i2s.LAYOUTS else decode
    return read(tensor.path, f"tensor {tensor.name!r}", tensor.kind, tensor.offset, tensor.shape)


def read_gguf(path: Path, tokenizer: Path | None = None) -> Checkpoint:
    """Open a GGUF file, or any part of a split one; ``tokenizer`` (a file or a folder) replaces the one inside.

    Raises:
        BundleError: the file is damaged, or its metadata and tensors contradict each other.
        UnsupportedError: the architecture, the type of a tensor or the tokenizer is not supported.
    """
    header = read_parts(path)
    known, rotations = architecture(header), read_rotations(header)
    header = _with_layouts(header)
    config = configuration(header, known, _rope_factors(header))
    sources = _sources(header, known, config, rotations)
    tensors = {name: source.info for name, source in sources.items()}
    makers = {name: source.maker() for name, source in sources.items()}
    for name, rows in _absent_biases(config, tensors).items():
        tensors[name], makers[name] = TensorInfo(shape=(rows,), dtype="float32"), partial(np.zeros, rows, np.float32)
    if rotations is not None:
        config |= rotations.configuration({name: source.tensor.name for name, source in sources.items()})
        used = {source.tensor.shape[-1] for source in sources.values() if rotations.turns(source.tensor.name)}
        for name, (info, maker) in rotations.tensors(used).items():
            tensors[name], makers[name] = info, maker
    vocab_size = config["vocab_size"]
    words = _words(header, tokenizer, vocab_size)
    return Checkpoint(
        source=path,
        config=config,
        tensors=tensors,
        read_tensor=Makers(makers),
        tokenizer_json=words.checked.json,
        chat_template=words.template,
        bos_token=None if words.bos is None else words.checked.vocabulary.id_to_token(words.bos),
        bos_token_id=words.bos,
        eos_token=words.checked.vocabulary.id_to_token(words.eos[0]) if words.eos else None,
        eos_token_ids=words.eos,
    )


class _Words(NamedTuple):
    """The tokenizer of a checkpoint, its BOS, the ids that end a text, and its chat template."""

    checked: CheckedTokenizer
    bos: int | None
    eos: tuple[int, ...]
    template: str | None


def _words(header: GgufHeader, tokenizer: Path | None, vocab_size: int) -> _Words:
    """Return the vocabulary of the file, or another one, which names BOS, ends and template as far as its files say."""
    bos, eos = special_ids(header, vocab_size)
    templates = chat_templates(header)
    if tokenizer is None:
        checked = check_tokenizer(header.path, gguf_tokenizer(header), vocab_size)
    else:
        read = read_folder_tokenizer(tokenizer, vocab_size)
        checked, own = read.checked, read.token_id("bos_token")
        _note_other_tokens(header, checked)
        bos, eos = bos if own is None else own, end_ids(read.home, None, vocab_size, read) or eos
        if read.templates:
            return _Words(checked, bos, eos, read.chat_template(bos, eos[0] if eos else None))
    named = {"bos_token": bos, "eos_token": eos[0] if eos else None}
    names = {name: checked.vocabulary.id_to_token(index) or "" for name, index in named.items() if index is not None}
    return _Words(checked, bos, eos, compose(header.path, templates, names, names))


def _note_other_tokens(header: GgufHeader, checked: CheckedTokenizer) -> None:
    """Write a note if a tokenizer that replaces that of the file has other tokens."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        return
    texts = [(text, checked.vocabulary.id_to_token(at)) for at, text in enumerate(tokens)]
    known = [(text, own) for text, own in texts if own is not None]
    others = sum(text.replace("\u2581", " ") != own.replace("\u2581", " ") for text, own in known)
    if others:
        log.warning(
            "%s: %d of the %d tokens of %s are others than those of the file, whose weights were trained with its own",
            header.path, others, len(known), checked.path,
        )  # fmt: skip


def _with_layouts(header: GgufHeader) -> GgufHeader:
    """Return the header with the layout of I2_S tensors determined."""
    if not any(tensor.kind == i2s.I2_S for tensor in header.tensors.values()):
        return header
    layout = i2s.layout_of(header)
    return replace(
        header,
        tensors={
            name: replace(tensor, kind=layout) if tensor.kind == i2s.I2_S else tensor
            for name, tensor in header.tensors.items()
        },
    )


def _rope_factors(header: GgufHeader) -> RopeFactors:
    tensors = {name: header.tensors[name] for name in ROPE_FACTORS if name in header.tensors}
    return {name: _decoded(tensor).astype(np.float32) for name, tensor in tensors.items()}


def _sources(
    header: GgufHeader, known: Architecture, config: Mapping[str, Any], rotations: Rotations | None
) -> dict[str, _Source]:
    scales, head_dim = _scales(header), config["head_dim"]
    nets = DeltaNet(config=config, rotations=rotations) if known.delta_nets else None
    guessing = _guessing(header, known, config)
    sources: dict[str, _Source] = {}
    for tensor in header.tensors.values():
        if tensor.name in ROPE_FACTORS or tensor.name in scales or tensor.name in guessing:
            continue
        if tensor.name == HEAD and known.head == "left out":
            log.warning("%s: tensor %r is left out, because the head is the embedding", header.path, HEAD)
            continue
        names = huggingface_names(
            tensor.name, post_norms=known.post_norms, gated_up=known.gated_up, delta_nets=known.delta_nets
        )
        if not names:
            raise UnsupportedError(
                f"{header.path}: tensor {tensor.name!r} has no place in a {known.model_type}; "
                "leaving it out would change the model"
            )
        scale = header.tensors.get(f"{tensor.name.removesuffix('weight')}scale")
        for name, part in zip(names, _parts(tensor, names, config), strict=True):
            if name in sources:
                raise BundleError(
                    f"{header.path}: tensors {sources[name].tensor.name!r} and {tensor.name!r} are both {name}"
                )
            rotated = known.neighbours and name.endswith(_ROTATED)
            if rotated and part.shape[0] % head_dim:
                raise BundleError(
                    f"{header.path}: tensor {tensor.name!r} has {part.shape[0]} rows, no multiple of {head_dim}"
                )
            order = None if nets is None else nets.order(part)
            sources[name] = _Source(
                tensor=part,
                info=_info(part, scale, order),
                head_dim=head_dim if rotated else 0,
                order=order,
                scale=scale,
            )
    return sources


def _absent_biases(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    """Return name and length of the biases that the family has and the file leaves out, which are 0.

    In llama.cpp each bias is optional by itself; a family has all of attention or none, and all of the MLP or none.
    """
    parts: list[str] = []
    if config.get("attention_bias") or config["model_type"] == _ALWAYS:
        parts += [f"self_attn.{one}_proj" for one in ("qkv" if config["model_type"] == _ALWAYS else "qkvo")]
    if config.get("mlp_bias"):
        parts += [f"mlp.{one}_proj" for one in ("gate", "up", "down")]
    ends = tuple(f".{part}.weight" for part in parts)
    biases = {
        f"{name.removesuffix('weight')}bias": info.shape[0] for name, info in tensors.items() if name.endswith(ends)
    }
    return {name: rows for name, rows in biases.items() if ends and name not in tensors}


def _guessing(header: GgufHeader, known: Architecture, config: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the tensors of layers that guess further tokens, which the model's own text does not need."""
    if not known.delta_nets:
        return frozenset()
    blocks = ArchitectureKeys(header, str(header.metadata["general.architecture"])).integer("block_count")
    places = {name: layer_part(name) for name in header.tensors}
    names = frozenset(
        name for name, place in places.items() if place is not None and config["num_hidden_layers"] <= place[0] < blocks
    )
    if names:
        log.warning("%s: %d tensors of its layers that guess are left out", header.path, len(names))
    return names


def _parts(tensor: GgufTensor, names: tuple[str, ...], config: Mapping[str, Any]) -> list[GgufTensor]:
    """Split a tensor into the rows of each of ``names``, which follow each other."""
    if len(names) == 1:
        return [tensor]
    if tensor.kind.tail_bytes:
        raise UnsupportedError(
            f"{tensor.path}: tensor {tensor.name!r} is {tensor.kind.name} and holds several matrices; save them "
            "separately, or as TQ2_0"
        )
    kv_rows, inner = config["num_key_value_heads"] * config["head_dim"], config["intermediate_size"]
    rows = {"q_proj": config["num_attention_heads"] * config["head_dim"], "k_proj": kv_rows, "v_proj": kv_rows}
    counts = [(rows | {"gate_proj": inner, "up_proj": inner})[name.split(".")[-2]] for name in names]
    if sum(counts) != tensor.shape[0]:
        raise BundleError(
            f"{tensor.path}: tensor {tensor.name!r} has {tensor.shape[0]} rows, not {' + '.join(map(str, counts))}"
        )
    parts, start = [], 0
    for count in counts:
        offset = tensor.offset + tensor.kind.nbytes((start, *tensor.shape[1:]))
        parts.append(replace(tensor, shape=(count, *tensor.shape[1:]), offset=offset))
        start += count
    return parts


def _scales(header: GgufHeader) -> Mapping[str, GgufTensor]:
    """Return the tensors X.scale, which are factors of X.weight."""
    scales = {}
    for name, tensor in header.tensors.items():
        if name.endswith(".scale"):
            if f"{name.removesuffix('scale')}weight" not in header.tensors:
                raise BundleError(f"{header.path}: tensor {name!r} is the scale of a weight that is missing")
            if tensor.shape != (1,):
                raise UnsupportedError(f"{header.path}: tensor {name!r} is {tensor.shape}; one factor is read")
            scales[name] = tensor
    return scales


def _info(tensor: GgufTensor, scale: GgufTensor | None, order: HeadOrder | None) -> TensorInfo:
    dtype = "float32" if scale is not None else _FLOATS.get(tensor.kind.name, "float32")
    if tensor.name.endswith(f".{DECAY}"):
        return TensorInfo(shape=tensor.shape, dtype="float32")
    if tensor.name.endswith(f".{KERNELS}"):  # the converter has removed a dimension of 1
        return TensorInfo(shape=(tensor.shape[0], 1, *tensor.shape[1:]), dtype=dtype)
    matrix = len(tensor.shape) == 2
    int4 = INT4.get(tensor.kind.name) if matrix and scale is None else None
    if order is not None and order.columns and order.width % tensor.kind.block:
        int4 = None  # a block spans heads that are not neighbours in the checkpoint, so it is decoded like other types
    return TensorInfo(shape=tensor.shape, dtype=dtype, int4=int4, two_bit=matrix and tensor.kind.name in TWO_BIT)
