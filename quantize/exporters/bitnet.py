"""Write natively ternary checkpoints in the Hugging Face BitNet layout with NumPy alone.

``X.weight`` is uint8 [ceil(out / 4), in]: bits 2i+1:2i of packed row r are row r + i * ceil(out / 4) of the trits, plus 1.
``X.weight_scale`` is float32 [1], or [out, groups] with edgedec's ``group_size``. The configuration has the linear_class
``autobitlinear`` and the quantization_mode ``offline``: a weight is trit * weight_scale, which float32 represents exactly.

Source: ``integrations/bitnet.py`` of transformers 5.23; docs/quantization.md describes the layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.atomic import is_free, new_folder
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Linear
from edgedec.progress import Progress, silent
from edgedec.quantize.exporters.safetensors_file import DTYPES, PlannedTensor, write_safetensors
from edgedec.quantize.methods.float_bits import all_finite

__all__ = ["TernaryMatrix", "pack_trits", "write_bitnet_checkpoint"]

Array = NDArray[Any]

_GROUP_SIZES = (32, 64, 128)
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_ARCHITECTURES = {"bitnet": "BitNetForCausalLM", "llama": "LlamaForCausalLM"}


@dataclass(frozen=True, kw_only=True)
class TernaryMatrix:
    """One matrix, ``scales * trits``: trits int8 [out, in] in {-1, 0, 1}, scales float32 () or [out, ceil(in / G)].

    Scales are finite and not negative. Where a scale is 0 the weights are 0, regardless of the trits.
    """

    trits: NDArray[np.int8]
    scales: NDArray[np.float32] | np.float32


def pack_trits(trits: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack int8 [out, in] into uint8 [ceil(out / 4), in]; missing rows have code 0 if out is not a multiple of 4."""
    rows = -(-len(trits) // 4)
    packed = np.zeros((rows, trits.shape[1]), np.uint8)
    for quarter in range(4):
        some = (trits[quarter * rows : (quarter + 1) * rows] + np.int8(1)).view(np.uint8)
        packed[: len(some)] |= some << np.uint8(2 * quarter)
    return packed


def write_bitnet_checkpoint(
    folder: Path,
    *,
    config: Mapping[str, Any],
    ternary: Mapping[str, TernaryMatrix],
    dense: Mapping[str, Array],
    tokenizer_json: bytes,
    tokenizer_config: Mapping[str, Any] | None,
    check: Callable[[Path], None] | None = None,
    progress: Progress = silent,
) -> None:
    """Write ``folder``, completely or not at all. An existing checkpoint of this format is replaced.

    Args:
        config: content of a Hugging Face ``config.json``; ``quantization_config`` and ``dtype`` are replaced.
        ternary: matrices by name, ending in ``.weight``; only linears of layers are allowed. Like ``dense`` it is read
            several times, one tensor at a time, and may create each tensor on access.
        dense: all other tensors of the model, float32, float16 or bfloat16. If all have the same type, the type is kept and
            becomes the ``dtype`` to which transformers rounds the scales. Otherwise all become float32, because
            transformers casts neither them nor the rows that they are multiplied by.
        check: called with the finished folder before it gets its name; nothing remains if it raises an error.
        progress: called after each tensor that is written, with its name, and the bytes done and in all.

    Raises:
        UsageError: the tensors do not match the model, a value or type is not allowed, or ``folder`` holds other files.
        UnsupportedError, BundleError: edgedec or the format does not support the configuration.
        EdgedecError: the disk is full, or permission is denied; no partial output remains.
    """
    folder = Path(folder)
    if config.get("rope_interleaved"):
        raise UnsupportedError(
            "configuration: rope_interleaved is edgedec's own key, which transformers would ignore; "
            "reorder the rows of q and k into halves first"
        )
    graph = build_graph(config)
    _check_replaceable(folder)
    _check_names(graph, ternary, dense)
    for name, weight in ternary.items():
        _check_ternary(name, weight)
        if f"{name.removesuffix('weight')}bias" in dense:
            raise UnsupportedError(
                f"tensor {name} has a bias, which transformers would multiply by the scale; give the matrix as dense"
            )
    for name, array in dense.items():
        if array.dtype not in DTYPES or array.dtype == np.uint8:
            raise UsageError(f"tensor {name} must be float32, float16 or bfloat16, not {array.dtype}")
        if not all_finite(np.ascontiguousarray(array)):
            raise UsageError(f"tensor {name} holds NaN or infinity; a checkpoint with it would be refused")
    dtypes = {array.dtype for array in dense.values()}
    dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
    text = _config_text(config, dtype, _quantization_config(graph, ternary))
    with new_folder(folder, _CONFIG) as new:
        _write_weights(new / _WEIGHTS, ternary, dense, dtype, progress)
        (new / _CONFIG).write_text(text, encoding="utf-8")
        (new / "tokenizer.json").write_bytes(tokenizer_json)
        if tokenizer_config is not None:
            (new / "tokenizer_config.json").write_text(_json(tokenizer_config), encoding="utf-8")
        if check is not None:
            check(new)


def _check_names(graph: Graph, ternary: Mapping[str, TernaryMatrix], dense: Mapping[str, Array]) -> None:
    """Check that every tensor of the model exists once, with its shape, and that only linears of layers are ternary."""
    shapes = {name: weight.trits.shape for name, weight in ternary.items()}
    if twice := shapes.keys() & dense.keys():
        raise UsageError(f"tensor {min(twice)} is given both as ternary and as dense; leave one out")
    wrong = [name for name in ternary if name not in _layer_linears(graph)]
    if wrong:
        raise UsageError(f"tensor {wrong[0]} cannot be ternary: only the linears of layers can; give it as dense")
    shapes |= {name: array.shape for name, array in dense.items()}
    for name in [*graph.weights, *shapes]:
        spec, shape = graph.weights.get(name), shapes.get(name)
        if spec is None:
            raise UsageError(f"tensor {name} is {shape}, but the configuration has no such tensor; leave it out")
        if shape != spec.shape:
            raise UsageError(f"tensor {name} is {shape or 'missing'}, the configuration says {spec.shape}")


def _layer_linears(graph: Graph) -> list[str]:
    linears = [op for op in graph.operations if isinstance(op, Linear)]
    return [name for op in linears if op.outputs[0] not in graph.outputs for name in op.weights]


def _check_ternary(name: str, weight: TernaryMatrix) -> None:
    trits, scales = weight.trits, np.asarray(weight.scales)
    if trits.dtype != np.int8 or trits.ndim != 2 or trits.min() < -1 or trits.max() > 1:
        raise UsageError(f"tensor {name}: trits must be int8 [out, in] in -1..1, not {trits.dtype} {trits.shape}")
    if scales.dtype != np.float32 or not np.isfinite(scales).all() or (scales < 0).any():
        raise UsageError(f"tensor {name}: scales must be float32, finite and not negative")
    if scales.shape and not _possible_group_sizes(trits, scales):
        raise UsageError(
            f"tensor {name}: scales must be () or [out, ceil(in / G)] with G of {_GROUP_SIZES}, "
            f"not {scales.shape} for {trits.shape}"
        )


def _possible_group_sizes(trits: NDArray[np.int8], scales: Array) -> set[int]:
    return {size for size in _GROUP_SIZES if scales.shape == (len(trits), -(-trits.shape[1] // size))}


def _quantization_config(graph: Graph, ternary: Mapping[str, TernaryMatrix]) -> dict[str, Any]:
    kept = ["lm_head", *(name.removesuffix(".weight") for name in _layer_linears(graph) if name not in ternary)]
    settings: dict[str, Any] = {
        "quant_method": "bitnet",
        "linear_class": "autobitlinear",
        "quantization_mode": "offline",
        "modules_to_not_convert": kept,
    }
    sizes = [
        _possible_group_sizes(weight.trits, np.asarray(weight.scales))
        for weight in ternary.values()
        if np.ndim(weight.scales)
    ]
    if sizes:
        if not (common := set.intersection(*sizes)):
            raise UsageError("the scales of the ternary tensors have different group sizes; a checkpoint has one")
        settings["group_size"] = min(common)  # several sizes are possible only if each row is a single group
    return settings


def _config_text(config: Mapping[str, Any], dtype: np.dtype[Any], quantization: Mapping[str, Any]) -> str:
    # torch_dtype is the older name of dtype.
    settings = {key: value for key, value in config.items() if key != "torch_dtype"}
    if settings["model_type"] in _ARCHITECTURES:
        settings.setdefault("architectures", [_ARCHITECTURES[settings["model_type"]]])
    return _json(settings | {"dtype": dtype.name, "quantization_config": quantization})


def _json(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise UsageError(f"a configuration cannot be written as JSON: {error}") from None


def _check_replaceable(folder: Path) -> None:
    """Check that ``folder`` is free or holds a checkpoint of this format, because other models must not be overwritten."""
    try:
        method = json.loads((folder / _CONFIG).read_bytes())["quantization_config"]["quant_method"]
    except (OSError, ValueError, LookupError, TypeError):
        method = None
    if method != "bitnet" and not is_free(folder):
        raise UsageError(f"cannot write {folder}: it holds other files; choose another name or remove it")


def _zero_scales(weight: TernaryMatrix) -> NDArray[np.bool_]:
    """Return where the scale is 0, as bool [out, in] or [1, 1]."""
    scales = np.asarray(weight.scales)
    if not scales.ndim:
        return np.reshape(scales == 0, (1, 1))
    size = max(_possible_group_sizes(weight.trits, scales))
    return np.repeat(scales == 0, size, axis=1)[:, : weight.trits.shape[1]]


def _stored_trits(weight: TernaryMatrix) -> NDArray[np.uint8]:
    return pack_trits(np.where(_zero_scales(weight), np.int8(0), weight.trits))


def _stored_scales(weight: TernaryMatrix) -> NDArray[np.float32]:
    """Return the scales with 1 instead of 0, which readers refuse; the trits there become 0."""
    scales = np.atleast_1d(np.asarray(weight.scales, np.float32))
    return np.where(scales == 0, np.float32(1), scales)


def _write_weights(
    path: Path,
    ternary: Mapping[str, TernaryMatrix],
    dense: Mapping[str, Array],
    dtype: np.dtype[Any],
    progress: Progress,
) -> None:
    """Write the tensors; each is taken from its mapping when it is written."""
    planned = [
        PlannedTensor(name=name, dtype=dtype, shape=array.shape, make=partial(_stored_dense, dense, name, dtype))
        for name, array in dense.items()
    ]
    for name, weight in ternary.items():
        outputs, inputs = weight.trits.shape
        scales, trits = partial(_stored_scales_of, ternary, name), partial(_stored_trits_of, ternary, name)
        single, codes = np.dtype(np.float32), np.dtype(np.uint8)
        planned.append(
            PlannedTensor(name=f"{name}_scale", dtype=single, shape=np.shape(weight.scales) or (1,), make=scales)
        )
        planned.append(PlannedTensor(name=name, dtype=codes, shape=(-(-outputs // 4), inputs), make=trits))
    write_safetensors(path, planned, progress)


def _stored_dense(dense: Mapping[str, Array], name: str, dtype: np.dtype[Any]) -> Array:
    return dense[name].astype(dtype, copy=False)


def _stored_scales_of(ternary: Mapping[str, TernaryMatrix], name: str) -> Array:
    return _stored_scales(ternary[name])


def _stored_trits_of(ternary: Mapping[str, TernaryMatrix], name: str) -> Array:
    return _stored_trits(ternary[name])
