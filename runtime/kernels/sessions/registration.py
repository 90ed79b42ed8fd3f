"""The registration of the project's operators with ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.errors import DeviceError
from edgedec.runtime.kernels import Kernels

if TYPE_CHECKING:
    from edgedec.host.ort import onnxruntime as ort

__all__ = ["DOMAIN", "register"]

DOMAIN = "edgedec"


def register(options: ort.SessionOptions, kernels: Kernels) -> None:
    """Register the operators of the domain ``edgedec`` for sessions with ``options``.

    Raises:
        DeviceError: ONNX Runtime cannot load the library.
    """
    try:
        options.register_custom_ops_library(str(kernels.path))
    except Exception as error:  # ONNX Runtime's exception classes share no base
        raise DeviceError(f"ONNX Runtime cannot load {kernels.path}: {error}") from error
