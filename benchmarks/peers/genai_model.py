"""Give the benchmarks the functions with which ``edgedec export --format onnx`` writes models for onnxruntime-genai."""

from __future__ import annotations

from edgedec.quantize.exporters.onnx import decoder_config, weight_bytes, write_config, write_model

__all__ = ["decoder_config", "weight_bytes", "write_config", "write_model"]
