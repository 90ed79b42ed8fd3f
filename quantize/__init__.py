"""Checkpoint readers, the quantization methods, calibration and (with torch) training."""
