"""Compute the quantization methods as pure functions of NumPy arrays, with one file per method."""
