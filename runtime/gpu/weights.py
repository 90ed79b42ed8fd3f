"""Read parts of weights from the bundle's file without mapping it: mapped pages would be charged beside the upload."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle

__all__ = ["read_part"]


def read_part(bundle: Bundle, name: str, part: str) -> NDArray[Any]:
    """Return one stored part of a tensor."""
    tensor = bundle.tensors[name]
    spec = tensor.scheme.parts(tensor.shape)[part]
    count = spec.nbytes // spec.dtype.itemsize
    with bundle.holder(name)[0].weights_file.open("rb") as file:
        file.seek(tensor.offsets[part])
        return np.fromfile(file, spec.dtype, count).reshape(spec.shape)
