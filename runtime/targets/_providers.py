"""Execution providers of ONNX Runtime by device name, and memory for keys and values where their kernels need it."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.host.install_hint import install_extra, pip_install, pip_uninstall
from edgedec.host.ort import onnxruntime as ort
from edgedec.onnx.model_bytes import DataType, Node, ValueInfo, encode_model
from edgedec.runtime.protocols import I32

__all__ = ["KeyValueMemory", "key_value_memory", "open_session"]

_PROVIDERS = {"cuda": "CUDAExecutionProvider", "webgpu": "WebGpuExecutionProvider"}
_CPU = "CPUExecutionProvider"
# Environment variable with which the plug-in accepts a software Vulkan driver. Source: onnxruntime pull request 32287,
# whose test machines use it.
_SOFTWARE = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1"
_VULKANINFO = "see what `vulkaninfo --summary` lists (Debian: apt install vulkan-tools mesa-vulkan-drivers)"
_CUDA = "onnxruntime-gpu[cuda,cudnn]"
_NO_ADAPTER = "Failed to get a WebGPU adapter"
_CUDA_OPTIONS = {
    "arena_extend_strategy": "kSameAsRequested",  # the default doubles the arena and keeps the memory of one wide pass
    "use_tf32": "0",  # float32 products keep 24 bits of precision
}


def open_session(model: bytes, options: ort.SessionOptions, device: str) -> ort.InferenceSession:
    """Return a session on ``device``, without ONNX Runtime's fallback to the CPU.

    Raises:
        DeviceError: the provider is not installed, has no device or does not start; the message says what to do.
        Exception: ONNX Runtime cannot load the model; its exception classes share no base.
    """
    if device == "cpu":
        return ort.InferenceSession(model, options, providers=[_CPU], enable_fallback=0)
    if device == "cuda":
        session = _open_cuda(model, options)
    else:
        options.add_provider_for_devices([_webgpu_device()], {})
        try:
            session = ort.InferenceSession(model, options, enable_fallback=0)
        except Exception as error:
            _, no_adapter, reason = str(error).partition(_NO_ADAPTER)
            if no_adapter:
                raise DeviceError(
                    f"device webgpu: the plug-in accepts none of the installed Vulkan drivers "
                    f"({no_adapter}{reason.rstrip()}); {_VULKANINFO}; it refuses Mesa's llvmpipe of Debian 12, for example"
                ) from error
            raise
    if _PROVIDERS[device] not in session.get_providers():
        raise DeviceError(f"device {device}: ONNX Runtime opened without {_PROVIDERS[device]}; run: edgedec doctor")
    return session


def _open_cuda(model: bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    name = _PROVIDERS["cuda"]
    if name not in ort.get_available_providers():
        raise DeviceError(
            f"device cuda: this ONNX Runtime has no CUDA; run: {pip_uninstall('onnxruntime')} && {pip_install(_CUDA)}"
        )
    session = ort.InferenceSession(model, options, providers=[(name, _CUDA_OPTIONS), _CPU], enable_fallback=0)
    if name not in session.get_providers():  # a missing library or driver is only logged
        raise DeviceError(
            "device cuda: ONNX Runtime cannot load CUDA; check that `nvidia-smi` lists a GPU and that CUDA and cuDNN "
            f"are installed: {pip_install(_CUDA)}, with their folders in LD_LIBRARY_PATH"
        )
    return session


def _webgpu_device() -> Any:
    """Return the plug-in's device. Its library is registered once per process."""
    try:
        plugin = importlib.import_module("onnxruntime_ep_webgpu")
    except ImportError:
        raise DeviceError(f"device webgpu: the plug-in is missing; run: {install_extra('webgpu')}") from None
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libvulkan.so.1")
        except OSError:
            raise DeviceError(
                "device webgpu: the Vulkan loader libvulkan.so.1 is missing; run: apt install libvulkan1 "
                "mesa-vulkan-drivers (Debian, Ubuntu), or your system's package of the Vulkan loader"
            ) from None
    name = plugin.get_ep_name()
    if not any(device.ep_name == name for device in ort.get_ep_devices()):
        try:
            ort.register_execution_provider_library(name, plugin.get_library_path())
        except Exception as error:  # the library is registered without a device, or ONNX Runtime is too old
            if "already registered" not in str(error):
                raise DeviceError(
                    f"device webgpu: ONNX Runtime {ort.__version__} cannot load the plug-in ({error}); "
                    f"run: {pip_install('--upgrade', 'onnxruntime', 'onnxruntime-ep-webgpu')}"
                ) from error
    devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    if not devices:
        raise DeviceError(
            f"device webgpu: no GPU found; {_VULKANINFO}, "
            f"or use a software Vulkan driver, which is slow, with {_SOFTWARE} in the environment"
        )
    return devices[0]  # the plug-in accepts one device and selects the GPU itself


class KeyValueMemory(Protocol):
    """Key/value buffers of one sequence, float32 [1, kv_heads, positions, head_dim] each, initially zero."""

    values: dict[str, ort.OrtValue]

    def move(self, start: int, nodes: I32) -> None:
        """Copy row ``start + nodes[i]`` to row ``start + i`` in every buffer. ``nodes`` must ascend."""

    def copy_from(self, other: Any, length: int) -> None:
        """Copy at least the first ``length`` rows of another memory of the same kind and shapes."""

    def clear(self) -> None:
        """Free the buffers."""


def key_value_memory(
    session: ort.InferenceSession, device: str, shapes: Mapping[str, tuple[int, ...]]
) -> KeyValueMemory:
    """Return memory for the inputs ``past.NAME`` of ``session``, on the side where its attention kernel runs.

    A provider without a kernel for a node leaves the node to the CPU (CUDA's GroupQueryAttention has no float32). A buffer
    on the other side would then be copied back and forth as a whole in each pass.
    """
    if device == "cpu":
        return _HostMemory(shapes)
    inputs = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
    infos = {item.name: info for item, info in inputs}
    places = {infos[f"past.{name}"].name for name in shapes}
    return _HostMemory(shapes) if places == {"Cpu"} else _DeviceMemory(device, shapes)


class _HostMemory:
    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        # ONNX Runtime uses the memory of the arrays.
        self.values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.arrays.items()}

    def move(self, start: int, nodes: I32) -> None:
        for rows in self.arrays.values():
            rows[:, :, start : start + len(nodes)] = rows[:, :, start + nodes]

    def copy_from(self, other: _HostMemory, length: int) -> None:
        for name, rows in other.arrays.items():
            self.arrays[name][:, :, :length] = rows[:, :, :length]

    def clear(self) -> None:
        self.values.clear()
        self.arrays.clear()


class _DeviceMemory:
    def __init__(self, device: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._device, self._shapes = device, dict(shapes)
        self._mover: ort.InferenceSession | None = None
        self.values: dict[str, ort.OrtValue] = {}
        for name, shape in shapes.items():
            # Initialize with zeros, because recycled memory may contain NaN, and NaN times a weight of zero is NaN.
            self.values[name] = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32), device)

    def move(self, start: int, nodes: I32) -> None:
        if self._mover is None:  # opened on first use, because plain decoding does not need it
            options = ort.SessionOptions()
            options.log_severity_level = 3
            self._mover = open_session(_mover_model(self._shapes), options, self._device)
        binding = self._mover.io_binding()
        binding.bind_cpu_input("from", start + nodes.astype(np.int64))
        for heads in {shape[1] for shape in self._shapes.values()}:
            binding.bind_cpu_input(f"to.{heads}", _scatter_indices(heads, start, len(nodes)))
        for name, value in self.values.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"moved.{name}", value)
        self._mover.run_with_iobinding(binding)

    def copy_from(self, other: _DeviceMemory, length: int) -> None:
        for name, value in other.values.items():
            self.values[name].update_inplace(value)

    def clear(self) -> None:
        self.values.clear()


def _scatter_indices(heads: int, start: int, count: int) -> NDArray[np.int64]:
    """Return int64 [1, heads, count, 3], the indices at which ScatterND writes row i of each head."""
    out = np.zeros((1, heads, count, 3), np.int64)
    out[..., 1] = np.arange(heads)[:, None]
    out[..., 2] = np.arange(start, start + count)
    return out


def _mover_model(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return a model that reads rows ``from`` of each buffer and writes them at ``to``.

    With one buffer bound as input and output, ScatterND works in place; the rows are first gathered into separate memory.
    """
    nodes, outputs = list[Node](), list[ValueInfo]()
    inputs = [ValueInfo(name="from", dtype=DataType.INT64, shape=["k"])]
    for heads in sorted({shape[1] for shape in shapes.values()}):
        inputs.append(ValueInfo(name=f"to.{heads}", dtype=DataType.INT64, shape=[1, heads, "k", 3]))
    for name, shape in shapes.items():
        inputs.append(ValueInfo(name=name, dtype=DataType.FLOAT, shape=shape))
        outputs.append(ValueInfo(name=f"moved.{name}", dtype=DataType.FLOAT, shape=shape))
        rows, places = f"rows.{name}", f"to.{shape[1]}"
        nodes.append(Node(kind="Gather", inputs=[name, "from"], outputs=[rows], attributes={"axis": 2}))
        nodes.append(Node(kind="ScatterND", inputs=[name, places, rows], outputs=[f"moved.{name}"]))
    return encode_model("edgedec.commit", nodes=nodes, inputs=inputs, outputs=outputs, opsets={"": 21})
