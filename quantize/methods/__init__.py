"""The numerical core of each quantization method: pure functions of NumPy arrays, one file a method."""
