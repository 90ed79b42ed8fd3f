"""Lowers a graph to ONNX: stock operators of ONNX Runtime, weights left in the bundle as external data."""
