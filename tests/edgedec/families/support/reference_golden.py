"""Read the models of ``golden/``, which ``make_golden.py`` made with transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parents[1] / "golden"
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))
# absolute; the largest logit of every file is above 5, so it is at most 2e-5 of the range
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Golden:
    config: dict[str, Any]
    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    logits: NDArray[np.float32]
    weights: dict[str, NDArray[np.float32]]


def names(family: str) -> list[str]:
    """Return the names of the files of a family other than Llama, whose files are in the folder itself."""
    return sorted(f"{family}/{path.stem}" for path in (FOLDER / family).glob("*.npz"))


def read(name: str) -> Golden:
    with np.load(FOLDER / f"{name}.npz") as file:
        return Golden(
            config=json.loads(str(file["config"])),
            ids=file["ids"],
            positions=file["positions"],
            logits=file["logits"],
            weights=_weights(file),
        )


def _weights(file: Any) -> dict[str, NDArray[np.float32]]:
    """Split the one array that holds all tensors by their names and shapes."""
    tensors, at, values = {}, 0, file["values"].astype(np.float32)
    for name, shape in json.loads(str(file["shapes"])):
        size = int(np.prod(shape))
        tensors[name] = values[at : at + size].reshape(shape)
        at += size
    assert at == len(values)
    return tensors
