"""edgedec: quantize a language model, generate its accelerator, decode within a memory budget."""

__version__ = "0.1.0"
