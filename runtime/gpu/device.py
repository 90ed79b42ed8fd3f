"""Open a GPU through wgpu-native: choose the adapter, name its errors, and measure what its driver takes.

wgpu runs on Vulkan, Metal and D3D12. Among several adapters a real GPU comes before a software one; the variable
``EDGEDEC_GPU`` chooses by a part of the name. One device serves all targets of the process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol
from weakref import WeakSet, WeakValueDictionary

from edgedec.environment import GPU
from edgedec.errors import DeviceError
from edgedec.host.install_hint import install_extra

__all__ = ["Adapter", "GpuDevice", "Pipeline", "RowHolder", "adapters", "chosen_adapter", "close_device", "open_device"]

_KINDS = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")  # kinds of adapters, the preferred one first
_BACKENDS = ("Vulkan", "Metal", "DX12")
_BINDINGS = 8  # storage buffers of a kernel at most, which every WebGPU device has
_DRIVERS = "install the driver of your GPU, or a software one, which is slow (Debian: apt install mesa-vulkan-drivers)"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter, as its driver describes it.

    Members:
        name: name of the device.
        driver: description of the driver.
        backend: Vulkan, Metal or D3D12.
        software: True if a CPU emulates the GPU.
        binding_bytes: largest buffer that a kernel can read.
        raw: wgpu's object.
    """

    name: str
    driver: str
    backend: str
    software: bool
    binding_bytes: int
    raw: Any

    @property
    def label(self) -> str:
        """The name, marked if it is a software adapter."""
        return f"{self.name} (software)" if self.software else self.name

    @property
    def key(self) -> str:
        """The adapter and its driver, for figures that are kept."""
        return f"{self.name} | {self.driver} | {self.backend} | wgpu {_wgpu().__version__}"


@cache
def _wgpu() -> Any:
    try:
        wgpu = importlib.import_module("wgpu")
        extras = importlib.import_module("wgpu.backends.wgpu_native.extras")
    except ImportError:
        raise DeviceError(f"device gpu: the package wgpu is missing; run: {install_extra('gpu')}") from None
    except Exception as error:  # its library is loaded by the import
        raise DeviceError(f"device gpu: wgpu's library cannot be loaded: {error}; {_DRIVERS}") from error
    # A program that uses wgpu itself has made the process's instance already, and chosen its backends.
    with contextlib.suppress(RuntimeError):
        extras.set_instance_extras(backends=_BACKENDS)  # OpenGL has too few storage buffers on many drivers
    return wgpu


@contextlib.contextmanager
def _runtime_folder() -> Iterator[None]:
    """Set the variable without which Mesa prints an error for each display that it does not find."""
    name = "XDG_RUNTIME_DIR"
    if name in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]


@cache
def adapters() -> tuple[Adapter, ...]:
    """Return the adapters of this machine, the preferred one first.

    Raises:
        DeviceError: the package wgpu is not installed, or its library cannot be loaded.
    """
    wgpu = _wgpu()
    with _runtime_folder():
        found = wgpu.gpu.enumerate_adapters_sync()
    made = []
    for raw in found:
        info, kind = raw.info, str(raw.info["adapter_type"])
        made.append(
            (
                _KINDS.index(kind) if kind in _KINDS else _KINDS.index("Unknown"),
                Adapter(
                    name=str(info["device"]),
                    driver=str(info["description"]),
                    backend=str(info["backend_type"]),
                    software=kind == "CPU",
                    binding_bytes=min(
                        int(raw.limits["max-storage-buffer-binding-size"]), int(raw.limits["max-buffer-size"])
                    ),
                    raw=raw,
                ),
            )
        )
    return tuple(adapter for _, adapter in sorted(made, key=lambda pair: pair[0]))


def chosen_adapter() -> Adapter:
    """Return the adapter that ``--device gpu`` uses.

    Raises:
        DeviceError: there is none, or none whose name contains the value of ``EDGEDEC_GPU``.
    """
    known, wanted = adapters(), GPU.value()
    if not known:
        raise DeviceError(f"device gpu: no adapter found; {_DRIVERS}")
    matching = [adapter for adapter in known if wanted is None or wanted.lower() in adapter.name.lower()]
    if not matching:
        names = ", ".join(adapter.name for adapter in known)
        raise DeviceError(f"device gpu: {GPU.name}={wanted} is part of no adapter's name; there are: {names}")
    return matching[0]


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A compiled kernel.

    Members:
        raw: wgpu's pipeline.
        layout: the layout of its bind group.
    """

    raw: Any
    layout: Any


class RowHolder(Protocol):
    """An object whose rows are on a device."""

    def forget(self) -> None:
        """Note that the device was lost with all rows."""


class GpuDevice:
    """An open device.

    Members:
        adapter: its adapter.
        raw: wgpu's object.
        lost: reason why it was lost; None while it works.
        holders: objects with rows on the device, which learn at once when it is lost.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.lost: str | None = None
        self.holders = WeakSet[RowHolder]()
        limits = {
            name: adapter.raw.limits[name]
            for name in (
                "max-buffer-size",
                "max-storage-buffer-binding-size",
                "max-compute-workgroup-storage-size",
                "max-compute-invocations-per-workgroup",
                "max-compute-workgroup-size-x",
            )
        }
        try:
            with _runtime_folder():
                self.raw = adapter.raw.request_device_sync(required_limits=limits)
        except Exception as error:  # wgpu's exceptions share no base
            raise DeviceError(f"device gpu: {adapter.label} cannot be opened: {error}; run: edgedec doctor") from error
        self.usages = _wgpu().BufferUsage
        self._pipelines: WeakValueDictionary[tuple[str, ...], Pipeline] = WeakValueDictionary()

    def buffer(self, name: str, nbytes: int, usage: int) -> Any:
        """Return a new buffer of zeros.

        Raises:
            DeviceError: the driver has no memory for it.
        """
        with self.naming(f"the buffer {name} of {nbytes} bytes"):
            return self.raw.create_buffer(label=name, size=nbytes, usage=usage)

    def pipeline(self, name: str, source: str, access: Sequence[str]) -> Pipeline:
        """Compile a kernel, unless some program has it already.

        Args:
            name: name of the kernel, for messages.
            source: WGSL with the entry point ``main``.
            access: "read" or "read_write" of each storage buffer.

        Raises:
            DeviceError: the shader does not compile; the message names the kernel and has the compiler's first lines.
        """
        compiled = self._pipelines.get((source, *access))
        if compiled is not None:
            return compiled
        kinds = {"read": "read-only-storage", "read_write": "storage"}
        with self.naming(f"the shader {name}"):
            module = self.raw.create_shader_module(label=name, code=source)
            layout = self.raw.create_bind_group_layout(
                entries=[
                    {"binding": index, "visibility": 4, "buffer": {"type": kinds[kind]}}  # 4: compute
                    for index, kind in enumerate(access)
                ]
            )
            raw = self.raw.create_compute_pipeline(
                label=name,
                layout=self.raw.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"},
            )
        compiled = self._pipelines[(source, *access)] = Pipeline(raw, layout)
        return compiled

    @contextlib.contextmanager
    def naming(self, part: str) -> Iterator[None]:
        """Turn an exception of wgpu into a DeviceError that names ``part``, and note if the device is lost."""
        try:
            yield
        except DeviceError:
            raise
        except Exception as error:  # wgpu's exceptions share no base
            text = " ".join(str(error).split())
            if self.lost is not None or "lost" in text:
                self._end(self.lost or text)
                raise DeviceError(
                    f"device gpu: {self.adapter.label} was lost at {part} ({text[:200]}); send the text again, which opens "
                    "the device anew, or use --device cpu"
                ) from error
            lines = "\n".join(str(error).splitlines()[:12])
            raise DeviceError(f"device gpu: {self.adapter.label} refuses {part}:\n{lines}") from error

    def _end(self, reason: str) -> None:
        """Note that the device is lost, so that the next ``open_device`` opens a new one."""
        self.lost = reason
        close_device(self)
        for holder in list(self.holders):
            holder.forget()

    def wait(self) -> None:
        """Wait until everything that was submitted is finished, so that the driver frees its copies of written data."""
        self.raw._poll_wait()  # ``on_submitted_work_done_sync`` of wgpu 0.32 fails, for a callback has another type


_open: dict[str, GpuDevice] = {}


def open_device() -> GpuDevice:
    """Return the open device of the chosen adapter, which all targets of the process share.

    Raises:
        DeviceError: there is no adapter, or it cannot be opened.
    """
    adapter = chosen_adapter()
    if adapter.key not in _open:
        _open[adapter.key] = GpuDevice(adapter)
    return _open[adapter.key]


def close_device(device: GpuDevice) -> None:
    """Forget a device, so that the next ``open_device`` opens a new one."""
    for key, other in list(_open.items()):
        if other is device:
            del _open[key]
