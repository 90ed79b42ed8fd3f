"""Write a bundle as a Hugging Face folder, in the BitNet layout if matrices are one plane of trits, otherwise as float32.

One tensor is in memory at a time. The effect of edgedec's own keys is undone: rows of q and k whose rotary pairs are
neighbours are reordered into halves, and 1 is subtracted from norms that hold 1 + weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.atomic import new_folder
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.ops import Hadamard, Linear
from edgedec.kv.policy import check_no_policy
from edgedec.progress import Progress, silent
from edgedec.quantize.exporters.bitnet import TernaryMatrix, write_bitnet_checkpoint
from edgedec.quantize.exporters.folder_tokenizer import (
    check_model_folder,
    tokenizer_config,
    with_special_ids,
    write_tokenizer,
)
from edgedec.quantize.exporters.safetensors_file import LazyMapping, PlannedTensor, write_safetensors
from edgedec.schemes import FloatWeight, Scheme, TernaryScheme, TernaryWeight

__all__ = ["export_safetensors"]

Array = NDArray[Any]

_SINGLE = np.dtype(np.float32)
_ROTATED = re.compile(r"model\.layers\.\d+\.self_attn\.[qk]_proj\.(weight|bias)")
_NORM = re.compile(r"(?!.*\.linear_attn\.).*norm\.weight")  # the norm inside a delta net never has an offset
_OWN_KEYS = ("rope_interleaved", "rms_norm_offset")


def export_safetensors(bundle: Bundle, folder: Path, *, progress: Progress = silent) -> dict[str, int]:
    """Write ``folder``, completely or not at all, and return the numbers of ternary and of float tensors.

    ``progress`` is called after each tensor that is written, with its name, and the bytes done and in all.

    Raises:
        UsageError: ``folder`` holds other files.
        UnsupportedError: the BitNet layout cannot express a part of the model, which the message names, or its weights are
            stored rotated, or the bundle was calibrated, or the folder would be read with another tokenizer.
    """
    config = bundle.config
    check_no_policy(bundle.path, config, "a Hugging Face folder")
    graph = build_graph(config)
    rotation = next((op.name for op in graph.operations if isinstance(op, Hadamard)), None)
    if rotation is not None:
        raise UnsupportedError(
            f"{bundle.path}: its weights are stored rotated ({rotation}), which a Hugging Face folder cannot express; "
            "export it as gguf"
        )
    bundle.check(graph)
    layers = {name for op in graph.operations if isinstance(op, Linear) for name in op.weights}
    layers -= {graph.operations[-1].weight_names[0]}
    trits = [name for name in graph.weights if name in layers and _is_one_plane(bundle.tensors[name].scheme)]
    rest = [name for name in graph.weights if name not in set(trits)]
    ternary = LazyMapping(trits, partial(_ternary, bundle))
    dense = LazyMapping(rest, partial(_dense, bundle))
    shown = {key: value for key, value in with_special_ids(bundle, config).items() if key not in _OWN_KEYS}
    if ternary:
        write_bitnet_checkpoint(
            folder,
            config=shown,
            ternary=ternary,
            dense=dense,
            tokenizer_json=bundle.tokenizer_file.read_bytes(),
            tokenizer_config=tokenizer_config(bundle),
            check=partial(check_model_folder, bundle),
            progress=progress,
        )
    else:
        _write_float(bundle, folder, shown, dense, progress)
    return ({"ternary": len(ternary)} if ternary else {}) | {"float": len(dense)}


def _is_one_plane(scheme: Scheme) -> bool:
    return isinstance(scheme, TernaryScheme) and scheme.planes == 1


def _ternary(bundle: Bundle, name: str) -> TernaryMatrix:
    weight = bundle.weight(name)
    assert isinstance(weight, TernaryWeight)
    order = _order(bundle.config, name, weight.trits.shape[1])
    scales = _ordered(weight.scale[0], order) if weight.group_size else np.float32(weight.scale[0])
    return TernaryMatrix(trits=_ordered(weight.trits[0], order), scales=scales)


def _dense(bundle: Bundle, name: str) -> Array:
    weight = bundle.weight(name)
    return _plain(bundle.config, name, weight.values if isinstance(weight, FloatWeight) else weight.dense())


def _order(config: Mapping[str, Any], name: str, rows: int) -> NDArray[np.intp] | None:
    """Return the order that turns rows with neighbouring rotary pairs into halves of a head, or None for other rows."""
    if not config.get("rope_interleaved") or not _ROTATED.fullmatch(name):
        return None
    head_dim = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    return np.arange(rows).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _ordered(values: Array, order: NDArray[np.intp] | None) -> Array:
    return values if order is None else values[order]


def _plain(config: Mapping[str, Any], name: str, values: Array) -> Array:
    if config.get("rms_norm_offset") == 0 and _NORM.fullmatch(name):
        return values.astype(np.float32) - np.float32(1)
    return _ordered(values, _order(config, name, len(values)))


def _single(dense: Mapping[str, Array], name: str) -> Array:
    return dense[name].astype(np.float32, copy=False)


def _write_float(
    bundle: Bundle, folder: Path, config: Mapping[str, Any], dense: Mapping[str, Array], progress: Progress
) -> None:
    with new_folder(folder, "config.json") as new:
        write_safetensors(
            new / "model.safetensors",
            [
                PlannedTensor(
                    name=name, dtype=_SINGLE, shape=bundle.tensors[name].shape, make=partial(_single, dense, name)
                )
                for name in dense
            ],
            progress,
        )
        (new / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2), encoding="utf-8")
        write_tokenizer(bundle, new)
        check_model_folder(bundle, new)
