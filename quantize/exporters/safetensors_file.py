"""Write a safetensors file with one tensor in memory at a time.

Source: the format section of the safetensors README.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgedec.progress import Progress, silent

__all__ = ["DTYPES", "LazyMapping", "PlannedTensor", "write_safetensors"]

T = TypeVar("T")

DTYPES = {
    np.dtype(np.uint8): "U8",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.float32): "F32",
}


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """A tensor to write. ``make`` returns its values, of this type and shape, when it is written."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    make: Callable[[], NDArray[Any]]


class LazyMapping(Mapping[str, T]):
    """Mapping that makes a value on each access, so that no value is kept in memory."""

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def write_safetensors(path: Path, tensors: Iterable[PlannedTensor], progress: Progress = silent) -> None:
    """Write the tensors to ``path``, wide types first so that each is aligned, and then by name.

    ``progress`` is called after each tensor with its name, and the bytes done and in all.
    """
    ordered = sorted(tensors, key=lambda tensor: (-tensor.dtype.itemsize, tensor.name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
    at = 0
    for tensor in ordered:
        end = at + tensor.dtype.itemsize * math.prod(tensor.shape)
        header[tensor.name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in ordered:
            array = np.ascontiguousarray(tensor.make())
            assert (array.dtype, array.shape) == (tensor.dtype, tensor.shape), tensor.name
            file.write(array.view(np.uint8).reshape(-1).data)
            progress(tensor.name, header[tensor.name]["data_offsets"][1], at)
