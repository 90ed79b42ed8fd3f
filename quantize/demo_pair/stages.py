"""Store the stages of the embedded pair's training in packages that are small enough to be kept and copied.

A package holds the weights of one stage, matrices as int8 with a float32 scale per row and all other tensors as float32.
Its metadata hold the step and the settings of the run. It has a twelfth of the size of a training checkpoint, which also
holds the moments. A run that continues from a package starts with new moments, so its result is not bit-identical to that
of an uninterrupted run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from edgedec.bundle.atomic import new_file
from edgedec.errors import BundleError, UsageError

__all__ = ["Earlier", "Package", "package_path", "read_earlier", "read_package", "write_package"]

_SCALE = ".scale"


@dataclass(frozen=True, kw_only=True)
class Package:
    """Weights of a stage by parameter name, float32, after ``step`` steps of the run that ``settings`` describe."""

    weights: dict[str, Tensor]
    step: int
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """Weights that a training goes on from.

    Members:
        steps: number of steps of the text that the weights were trained on.
        layers: number of layers of twin and target.
        weights: weights of ``twin``, ``target`` and ``draft`` by parameter name, float32.
    """

    steps: int
    layers: int
    weights: dict[str, dict[str, Tensor]]


def package_path(folder: Path, stage: str) -> Path:
    """Return the file that holds the package of a stage."""
    return folder / f"{stage}.safetensors"


def write_package(file: Path, weights: Mapping[str, Tensor], *, step: int, settings: Mapping[str, Any]) -> None:
    """Write the package, completely or not at all.

    Args:
        weights: float tensors by name. Matrices [rows, columns] are rounded to int8 with the scale absmax / 127 per row.
        step: number of finished steps.
        settings: settings that the run depends on, as values that JSON can represent.
    """
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        value = weight.detach().cpu().float()
        if value.ndim == 2:
            scale = value.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
            tensors[name] = (value / scale).round().to(torch.int8)
            tensors[name + _SCALE] = scale[:, 0].contiguous()
        else:
            tensors[name] = value.contiguous()
    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"step": str(step), "settings": json.dumps(settings, sort_keys=True)}
    with new_file(file) as new:
        new.write_bytes(save(tensors, metadata=metadata))


def read_package(file: Path) -> Package | None:
    """Return the package, or None if there is no such file.

    Raises:
        BundleError: the file is damaged.
    """
    if not file.exists():
        return None
    try:
        tensors = load_file(file)
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            metadata = json.loads(stream.read(size))["__metadata__"]
        weights = {
            name: value.float() * tensors[name + _SCALE][:, None] if value.dtype == torch.int8 else value
            for name, value in tensors.items()
            if not name.endswith(_SCALE)
        }
        return Package(weights=weights, step=int(metadata["step"]), settings=json.loads(metadata["settings"]))
    except Exception as error:  # safetensors passes on any exception of its parser
        raise BundleError(f"{file} is damaged: {error}; remove it to train its stage again") from error


def read_earlier(folder: Path) -> Earlier:
    """Return the weights of a finished run's twin, target and draft, from the packages in ``folder``.

    Raises:
        UsageError: a package is missing, or its stage is not finished.
    """
    packages = {}
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(
            f"cannot go on from {folder}: it has no tokenizer.json; give --earlier the stages of a finished run, or "
            "edgedec/demo"
        )
    for name in ("twin", "target", "draft"):
        package = read_package(package_path(folder, name))
        if package is None or package.step < package.settings["schedule"]["steps"]:
            state = "is missing" if package is None else f"ends at step {package.step} of its schedule"
            raise UsageError(
                f"cannot go on from {folder}: {package_path(folder, name).name} {state}; finish that run first, or give "
                "--earlier the stages of another one"
            )
        packages[name] = package
    recipe = packages["target"].settings["recipe"]
    return Earlier(
        steps=int(recipe["steps"]) + int(recipe.get("earlier_steps", 0)),
        layers=int(recipe["layers"]),
        weights={name: package.weights for name, package in packages.items()},
    )
