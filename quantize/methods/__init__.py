"""Compute the quantization methods as pure functions of NumPy arrays, with one file per method."""

from __future__ import annotations

__all__ = ["METHODS"]

METHODS = ("int8", "int4", "ternary", "float")  # values of ``quantize --method``
