"""Lowering of a graph to ONNX, with operators of ONNX Runtime, and with weights as external data in the bundle."""
