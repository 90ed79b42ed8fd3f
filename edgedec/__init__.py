"""edgedec: quantize a language model, generate its accelerator, decode within a memory budget."""

from __future__ import annotations

__version__ = "0.1.0"
