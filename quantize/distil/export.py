"""Write a trained torch model as a Hugging Face folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from edgedec.bundle.atomic import check_folder, is_free, new_folder
from edgedec.errors import EdgedecError, UsageError
from edgedec.memory.byte_sizes import format_bytes
from edgedec.quantize.distil.run_folder import RunFolder
from edgedec.quantize.distil.ternary import ternary_weight
from edgedec.quantize.distil.torch_graph import TorchGraph
from edgedec.quantize.exporters.bitnet import TernaryMatrix, write_bitnet_checkpoint

__all__ = ["check_output", "round_dense", "write_checkpoint"]


def check_output(output: Path, folder: RunFolder, teacher: Path, student: TorchGraph) -> None:
    """Check before training that the output can be written after it.

    Raises:
        UsageError: ``output`` is the teacher, or exists and was not written by this run.
        EdgedecError: the disk is too small, or the folder cannot be written.
    """
    if output == Path(os.path.abspath(teacher)):
        raise UsageError(f"cannot write {output}: it is the teacher; choose another -o")
    if not is_free(output) and not (folder.settings.is_file() and _is_replaceable(output, student)):
        raise UsageError(
            f"cannot write {output}: it exists, and was not made by a run in {folder.path}; choose another -o or remove it"
        )
    check_folder(output, "config.json")
    # A checkpoint holds weights and two moments in float32; two checkpoints exist while one replaces the other, and the
    # result is written as well.
    needed = sum(p.numel() for p in student.parameters()) * 4 * (3 * (1 if folder.checkpoint.exists() else 2) + 1)
    existing = next(parent for parent in (output, *output.parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise EdgedecError(
            f"cannot train in {output.parent}: checkpoints need {format_bytes(needed)}, the disk has {format_bytes(free)} "
            "free; free some space, or choose another -o"
        )


def _is_replaceable(folder: Path, student: TorchGraph) -> bool:
    """Return whether ``write_checkpoint`` can replace the folder, which depends on its layout."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and ("quantization_config" in config) == (student.ternary is not None)


def _is_ternary(model: TorchGraph, name: str) -> bool:
    return model.ternary is not None and name in model.ternary_names


@torch.no_grad()
def round_dense(model: TorchGraph) -> None:
    """Round the tensors that ``write_checkpoint`` rounds, so that the model computes what the checkpoint will."""
    for name, parameter in model.tensors.items():
        if not _is_ternary(model, name):
            parameter.copy_(parameter.bfloat16())


@torch.no_grad()
def write_checkpoint(
    model: TorchGraph,
    folder: Path,
    *,
    config: Mapping[str, Any],
    tokenizer_json: str,
    tokenizer_config: Mapping[str, Any],
) -> None:
    """Write ``folder`` completely or not at all, in the BitNet layout for a ternary model and a plain one for floats.

    The ternary linears are exactly those of the last forward pass; all other tensors are rounded to bfloat16.

    Raises:
        UsageError, EdgedecError: the folder holds other files or cannot be written; no partial output remains.
    """
    ternary: dict[str, TernaryMatrix] = {}
    dense: dict[str, NDArray[Any]] = {}
    for name, parameter in model.tensors.items():
        if model.ternary and _is_ternary(model, name):
            # Rounded on the device that trained it, because another device would compute another mean.
            trits, scale = (value.cpu().numpy() for value in ternary_weight(parameter, model.ternary.group_size))
            ternary[name] = TernaryMatrix(trits=trits.astype(np.int8), scales=scale)
        else:
            dense[name] = parameter.cpu().numpy().astype(ml_dtypes.bfloat16)
    if model.ternary:
        write_bitnet_checkpoint(
            folder,
            config=config,
            ternary=ternary,
            dense=dense,
            tokenizer_json=tokenizer_json.encode(),
            tokenizer_config=tokenizer_config,
        )
        return
    with new_folder(folder, "config.json") as new:
        (new / "model.safetensors").write_bytes(save(dense, metadata={"format": "pt"}))
        for file, content in (
            ("config.json", {**config, "dtype": "bfloat16"}),
            ("tokenizer_config.json", tokenizer_config),
        ):
            (new / file).write_text(json.dumps(dict(content), indent=2) + "\n", encoding="utf-8")
        (new / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
