"""Execution providers of ONNX Runtime by device name, and memory on them."""

from __future__ import annotations

import importlib

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgedec.errors import DeviceError

__all__ = ["add_provider", "device_array"]


def add_provider(options: ort.SessionOptions, device: str) -> list[str]:
    """Prepare ``options`` for a device and return the provider list of the session.

    Raises:
        DeviceError: the provider is not installed, or finds no device; says what to install.
    """
    if device == "cpu":
        return ["CPUExecutionProvider"]
    if device == "cuda":
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            raise DeviceError("device cuda: this ONNX Runtime has no CUDA; run: pip install onnxruntime-gpu")
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]
    try:
        plugin = importlib.import_module("onnxruntime_ep_webgpu")
    except ImportError:
        raise DeviceError("device webgpu: the plug-in is missing; run: pip install onnxruntime-ep-webgpu") from None
    if not any(found.ep_name == plugin.get_ep_name() for found in ort.get_ep_devices()):
        ort.register_execution_provider_library(plugin.get_ep_name(), plugin.get_library_path())
    devices = [found for found in ort.get_ep_devices() if found.ep_name == plugin.get_ep_name()]
    if not devices:
        raise DeviceError("device webgpu: no GPU found; it needs a Vulkan driver (Debian: mesa-vulkan-drivers libvulkan1)")
    options.add_provider_for_devices(devices[:1], {})
    return []


def device_array(device: str, shape: tuple[int, ...]) -> tuple[ort.OrtValue, NDArray[np.float32]]:
    """float32 zeros for a key/value buffer, as ONNX Runtime and NumPy see them.

    The buffer is host memory on every device: a CPU session works in it, other providers copy it for each pass.
    """
    array = np.zeros(shape, np.float32)
    return ort.OrtValue.ortvalue_from_numpy(array), array
