"""Bundles: the folder that holds a quantized model, read and written."""
