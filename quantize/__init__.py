"""Read checkpoints, quantize and calibrate them, export bundles, and (with torch) train models."""
