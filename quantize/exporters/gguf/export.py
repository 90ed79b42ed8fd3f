"""Write a bundle as llama.cpp's GGUF, with the same codes and trits if GGML has a type for them, otherwise as float16.

Trits with one scale for each 256 columns become TQ2_0, and trits with one for each 64 columns Q2_0; int8 codes become Q8_0.
Of these, only scales lose bits, because GGML stores them in float16; a matrix whose scales are outside the range in which
float16 keeps all of its bits becomes float32. int4 becomes Q4_0, and with minima Q4_K, without any loss. Other trits
(several planes, smaller groups, rows that are not a multiple of 64) and int8 or int4 rows that are not a multiple of the
block become float16; the trits of a single plane are still the same when they are read back.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Embed, RmsNorm
from edgedec.host.spelling import must_be_one_of
from edgedec.kv.policy import check_no_policy
from edgedec.progress import Progress, silent
from edgedec.quantize.exporters.gguf.architectures import (
    LlamaCppTarget,
    check_same,
    find_target,
    metadata,
    rope_factors,
)
from edgedec.quantize.exporters.gguf.file import (
    BF16,
    F16,
    F32,
    Q2_0,
    Q4_0,
    Q4_K,
    Q8_0,
    TQ2_0,
    PlannedGgufTensor,
    q2_0,
    q4_0,
    q4_k,
    q8_0,
    tq2_0,
    write_gguf,
)
from edgedec.quantize.exporters.gguf.read_back import check_read_back
from edgedec.quantize.exporters.gguf.rotations import rotation_metadata, sign_weights
from edgedec.quantize.exporters.gguf.tokenizer import vocabulary
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.quantize.readers.gguf.blocks import Kind
from edgedec.quantize.readers.gguf.names import gguf_name
from edgedec.schemes import FloatWeight, Int4Scheme, Int4Weight, Int8Weight, TernaryWeight, Weight

__all__ = ["MATRIX_TYPES", "TRIT_TYPES", "export_gguf", "readers"]

log = logging.getLogger(__name__)

Array = NDArray[Any]

_FLOATS = {"float32": F32, "float16": F16, "bfloat16": BF16}
TRIT_TYPES = ("auto", "TQ2_0", "Q2_0", "F16")  # types of ternary matrices; auto: the first of the others that is exact
MATRIX_TYPES = ("auto", "f16")  # types of all matrices; auto: each has the type that holds it
# Type -> programs that read it. Every reader knows the other types that are written here.
_READERS = {
    "Q2_0": "llama.cpp since July 2026; not the Python package gguf 0.19",
    "TQ2_0": "llama.cpp since September 2024, and the Python package gguf",
}
_ROTATED = re.compile(r"model\.layers\.\d+\.self_attn\.([qk])_proj\.(weight|bias)")
_ROWS_AT_ONCE = 2048


def export_gguf(
    bundle: Bundle,
    path: Path,
    *,
    matrix_type: str = "auto",
    trit_type: str = "auto",
    their_spaces: bool = False,
    progress: Progress = silent,
) -> dict[str, int]:
    """Write ``bundle`` as one GGUF file, completely or not at all, and return the number of tensors of each GGML type.

    Args:
        matrix_type: type of all matrices, one of ``MATRIX_TYPES``. As ``f16`` their values are rounded to float16.
        trit_type: type of ternary matrices, one of ``TRIT_TYPES``.
        their_spaces: accept that llama.cpp adds spaces to texts where the tokenizer adds none.

    Raises:
        UnsupportedError: llama.cpp or GGML cannot express a part of the model or its tokenizer, or ``trit_type`` cannot
            express a ternary matrix; the message names it. Or the bundle was calibrated.
        EdgedecError: the disk is full, or permission is denied.
        UsageError: there is no such type, or the two exclude each other.
    """
    if matrix_type not in MATRIX_TYPES:
        raise UsageError(must_be_one_of("--type", matrix_type, MATRIX_TYPES))
    if trit_type not in TRIT_TYPES:
        raise UsageError(must_be_one_of("--trits", trit_type, TRIT_TYPES))
    if matrix_type == "f16":
        if trit_type not in ("auto", "F16"):
            raise UsageError(f"--type f16 and --trits {trit_type} exclude each other; give one of them")
        trit_type = "F16"
    config = bundle.config
    check_no_policy(bundle.path, config, "a GGUF file")
    graph = build_graph(config)
    bundle.check(graph)
    target = find_target(bundle)
    left_out = _head_of_bitnet(bundle, graph) if target.name == "bitnet" else None
    factors = rope_factors(config, graph)
    rows = _Rows(graph, target.neighbours and not config.get("rope_interleaved"))
    tensors = [
        _planned(bundle, graph, target, names, rows, partial(_kind, trit_type=trit_type, half=matrix_type == "f16"))
        for names in _stored_together(graph, target)
        if names != (left_out,)
    ]
    for name, values in factors.items():
        tensors.append(PlannedGgufTensor(name=name, shape=values.shape, kind=F32, make=partial(np.atleast_2d, values)))
    described = metadata(bundle, graph, target.name) | rotation_metadata(bundle, graph, target.name)
    same = build_graph({**config, "tie_word_embeddings": True}) if left_out else graph
    check_same(bundle, same, described, {tensor.name: tensor.shape for tensor in tensors}, factors)
    write_gguf(
        path,
        described | vocabulary(bundle),
        tensors,
        progress,
        check=partial(check_read_back, bundle, their_spaces=their_spaces),
    )
    return dict(Counter(tensor.kind.name for tensor in tensors if tensor.name not in factors))


def readers(counts: Mapping[str, int]) -> str:
    """Return which programs read a file with these types of tensors; empty if all readers of GGUF do."""
    return next((f"{name}: {text}" for name, text in _READERS.items() if name in counts), "")


def _stored_together(graph: Graph, target: LlamaCppTarget) -> list[tuple[str, ...]]:
    """Return the names of tensors, grouped by the tensor of llama.cpp that holds their rows one after the other."""
    groups: list[tuple[str, ...]] = []
    signs = sign_weights(graph)
    for name in (name for name in graph.weights if name not in signs):
        if target.gated_up and ".gate_proj." in name:
            groups.append((name, name.replace(".gate_proj.", ".up_proj.")))
        elif not (target.gated_up and ".up_proj." in name):
            groups.append((name,))
    return groups


def _planned(
    bundle: Bundle,
    graph: Graph,
    target: LlamaCppTarget,
    names: tuple[str, ...],
    rows: _Rows,
    kind_of: Callable[[Bundle, str], Kind],
) -> PlannedGgufTensor:
    kinds = {kind_of(bundle, name) for name in names}
    kind = kinds.pop() if len(kinds) == 1 else F32 if F32 in kinds else F16
    shapes = [graph.weights[name].shape for name in names]

    def make() -> Array:
        parts = [_bytes(bundle, name, kind, rows) for name in names]
        return parts[0] if len(parts) == 1 else np.concatenate([part.reshape(len(part), -1) for part in parts])

    return PlannedGgufTensor(
        name=gguf_name(names[-1], post_norms=target.post_norms),
        shape=(sum(shape[0] for shape in shapes), *shapes[0][1:]),
        kind=kind,
        make=make,
    )


class _Rows:
    """Arranges rows of q and k for llama.cpp, which rotates neighbours where Hugging Face's layout rotates halves."""

    def __init__(self, graph: Graph, moved: bool) -> None:
        self._dim, self._moved = next(iter(graph.states.values())).head_dim, moved
        self._offsets = {op.weight: op.offset for op in graph.operations if isinstance(op, RmsNorm)}

    def shifted(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a norm's weight for llama.cpp, which includes the offset."""
        return values + np.float32(self._offsets[name]) if self._offsets.get(name) else values

    def arranged(self, name: str, stored: Array) -> Array:
        """Return ``stored`` [rows, ...] in llama.cpp's order of rows."""
        if not self._moved or not _ROTATED.fullmatch(name):
            return stored
        halves = stored.reshape(-1, 2, self._dim // 2, *stored.shape[1:])
        return halves.swapaxes(1, 2).reshape(stored.shape)


def _kind(bundle: Bundle, name: str, *, trit_type: str, half: bool) -> Kind:
    tensor = bundle.tensors[name]
    weight = bundle.weight(name)
    if len(tensor.shape) == 1:
        return F32  # vectors are added and multiplied in float32
    if isinstance(weight, FloatWeight):
        return F16 if half else _FLOATS[weight.values.dtype.name]
    if half and not isinstance(weight, TernaryWeight):
        kind = F16
    elif isinstance(weight, Int4Weight):
        kind = Q4_0 if weight.minimum is None else Q4_K
        if tensor.shape[1] % kind.block == 0:
            return kind  # has the bundle's own float16
        kind = F16
    elif isinstance(weight, Int8Weight):
        kind = Q8_0 if tensor.shape[1] % Q8_0.block == 0 else F16
    else:
        kind = _trit_kind(bundle, name, weight, trit_type)
    if not (outside := _outside_half(weight, kind)):
        return kind
    if trit_type != "auto" and isinstance(weight, TernaryWeight):
        raise UnsupportedError(
            f"{bundle.path}: tensor {name} has {outside}, so {kind.name} cannot hold it; leave out --trits"
        )
    log.warning("%s: tensor %s is written as F32, because it has %s", bundle.path, name, outside)
    return F32


def _outside_half(weight: Weight, kind: Kind) -> str:
    """Return in words which numbers of a matrix float16 would not hold with all of its bits; empty if there are none."""
    assert not isinstance(weight, FloatWeight)
    limits, scales = np.finfo(np.float16), np.abs(weight.scale)
    most = scales.max(initial=0)
    if kind is F16:  # values, not scales
        most = np.abs(weight.dense()).max(initial=0)
    least = scales[scales > 0].min(initial=np.inf)
    if most > limits.max or least < limits.smallest_normal:
        return f"numbers from {least:.3g} to {most:.3g}, and float16 holds {limits.smallest_normal:.3g} to {limits.max:.5g}"
    return ""


def _trit_kind(bundle: Bundle, name: str, weight: TernaryWeight, trit_type: str) -> Kind:
    """Return the type of a ternary matrix.

    Raises:
        UnsupportedError: the type that was asked for does not hold the matrix exactly.
    """
    if trit_type == "F16":
        return F16
    wanted = [kind for kind in (TQ2_0, Q2_0) if trit_type in ("auto", kind.name)]
    exact = [kind for kind in wanted if _trit_scales(weight, kind.block) is not None]
    if exact or trit_type == "auto":
        return exact[0] if exact else F16
    planes, _, inputs = weight.trits.shape
    block = wanted[0].block
    reason = f"has scales that differ inside a block of {block} columns"
    if planes > 1:
        reason = f"has {planes} planes"
    elif inputs % block:
        reason = f"has rows of {inputs}, no multiple of {block}"
    raise UnsupportedError(
        f"{bundle.path}: tensor {name} {reason}, so {trit_type} cannot hold it; leave out --trits, which takes the type "
        "that can"
    )


def _trit_scales(weight: TernaryWeight, block: int) -> NDArray[np.float32] | None:
    """Return the scales [out or 1, blocks or 1] of blocks of columns, or None if a block has several scales or planes.

    Another scale may stand for a scale of 0, because ``_trits`` are 0 there.
    """
    planes, _, inputs = weight.trits.shape
    if planes > 1 or inputs % block:
        return None
    if not weight.group_size:
        return weight.scale.reshape(1, 1)
    scale = weight.scale[0]
    if weight.group_size >= block:
        return np.repeat(scale, weight.group_size // block, axis=1)[:, : inputs // block]
    groups = scale.reshape(len(scale), -1, block // weight.group_size)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[..., None], axis=2)
    return largest[..., 0] if ((groups == largest) | (groups == 0)).all() else None


def _trits(weight: TernaryWeight) -> NDArray[np.int8]:
    """Return the trits int8 [out, in] of a single plane, 0 in groups whose scale is 0, where a bundle may have any."""
    trits: NDArray[np.int8] = weight.trits[0]
    if weight.group_size and not weight.scale.all():
        trits = trits * np.repeat(weight.scale[0] != 0, weight.group_size, axis=1)[:, : trits.shape[1]]
    return trits


def _bytes(bundle: Bundle, name: str, kind: Kind, rows: _Rows) -> Array:
    """Return the bytes of a tensor in the file."""
    weight: Weight = bundle.weight(name)
    if kind in (TQ2_0, Q2_0):
        assert isinstance(weight, TernaryWeight)
        scales = _trit_scales(weight, kind.block)
        assert scales is not None
        packed = tq2_0 if kind is TQ2_0 else q2_0
        return rows.arranged(name, packed(name, _trits(weight), scales))
    if kind in (Q4_0, Q4_K):
        scheme = bundle.tensors[name].scheme
        assert isinstance(scheme, Int4Scheme)
        codes = scheme.unpack(bundle.array(name, "codes"))
        if kind is Q4_0:
            return rows.arranged(name, q4_0(codes, bundle.array(name, "scale")))
        return rows.arranged(name, q4_k(codes, bundle.array(name, "factors"), bundle.array(name, "steps")))
    if kind is Q8_0:
        assert isinstance(weight, Int8Weight)
        return rows.arranged(name, q8_0(name, weight.codes, weight.scale))
    if isinstance(weight, FloatWeight) and kind is _FLOATS[weight.values.dtype.name]:
        values: Array = weight.values
    elif kind is F32:
        values = weight.dense()
    else:
        values = _halved(name, weight.dense())
    return np.ascontiguousarray(rows.arranged(name, rows.shifted(name, values))).view(np.uint8)


def _halved(name: str, values: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise UnsupportedError(f"tensor {name}: {np.abs(values).max():g} does not fit into float16")
    return half


def _head_of_bitnet(bundle: Bundle, graph: Graph) -> str | None:
    """Return the name of the head, which llama.cpp's bitnet replaces by the embedding, or None if they are one tensor.

    Raises:
        UnsupportedError: head and embedding are different matrices.
    """
    head = graph.operations[-1].weight_names[0]
    embedding = next(op.weight for op in graph.operations if isinstance(op, Embed))
    if head == embedding:
        return None
    one, other = bundle.weight(embedding), bundle.weight(head)
    for start in range(0, graph.weights[head].shape[0], _ROWS_AT_ONCE):
        some = np.arange(start, min(start + _ROWS_AT_ONCE, graph.weights[head].shape[0]), dtype=np.int32)
        assert not isinstance(one, Int4Weight)
        rows = one.rows(some)
        if isinstance(other, Int8Weight):
            codes, scale = quantize_int8(rows)
            same = np.array_equal(codes, other.codes[some]) and np.array_equal(scale, other.scale[some])
        else:
            same = np.array_equal(rows, other.dense()[some])
        if not same:
            raise UnsupportedError(
                f"{bundle.path}: llama.cpp's bitnet uses its embedding as the head, and this model has a head of its own; "
                "export it as safetensors"
            )
    return head
