"""Our bundles as onnxruntime-genai wants a model: what ``edgedec export --format onnx`` writes, piece by piece."""

from __future__ import annotations

from edgedec.quantize.exporters.onnx import decoder_config, weight_bytes, write_config, write_model

__all__ = ["decoder_config", "weight_bytes", "write_config", "write_model"]
