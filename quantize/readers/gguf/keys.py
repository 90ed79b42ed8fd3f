"""Read and check the metadata of a file's architecture."""

from __future__ import annotations

import math

import numpy as np

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf.header import GgufHeader, Value
from edgedec.quantize.readers.untrusted import shown

__all__ = ["ArchitectureKeys"]


class ArchitectureKeys:
    """Reads and checks the metadata ``ARCHITECTURE.*`` of a file."""

    def __init__(self, header: GgufHeader, name: str) -> None:
        self.header, self.name = header, name

    def _get(self, key: str) -> tuple[str, Value | None]:
        full = f"{self.name}.{key}"
        return full, self.header.metadata.get(full)

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = (1 << 31) - 1) -> int:
        full, value = self._get(key)
        if isinstance(value, np.ndarray):  # one value for each layer
            if value.size and (value == value[0]).all():
                value = value[0].item()
            else:
                raise UnsupportedError(f"{self.header.path}: {full} differs between layers, which no family has")
        value = default if value is None else value
        if type(value) is not int or not least <= value <= most:
            kind = "a positive integer" if least else "an integer from 0"
            kind += f" up to {most}"
            raise BundleError(f"{self.header.path}: {full} must be {kind}, not {shown(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        full, value = self._get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise BundleError(f"{self.header.path}: {full} must be a positive number, not {shown(value)}")
        return float(value)

    def flags(self, key: str, least: int) -> tuple[bool, ...] | None:
        """Return a truth value for each layer, or None if the key is absent; there are at least ``least``."""
        full, value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biu" or value.size < least:
            raise BundleError(f"{self.header.path}: {full} must be {least} truth values, not {shown(value)}")
        return tuple(bool(one) for one in value.tolist())

    def has(self, key: str) -> bool:
        return self._get(key)[1] is not None

    def tensor(self, name: str) -> bool:
        return name in self.header.tensors
