"""A bench that runs single kernels on an adapter of this machine."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.runtime.gpu.kernels.kernel import Kernel

__all__ = ["Bench", "adapters"]

# Software drivers of Debian's packages mesa-vulkan-drivers and chromium.
DRIVERS = (
    Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"),
    Path("/usr/share/vulkan/icd.d/lvp_icd.json"),
    Path("/usr/lib/chromium/vk_swiftshader_icd.json"),
)


def adapters() -> dict[str, Any]:
    """Return the adapters of the installed software drivers, or of this machine if there are none, by a short name.

    wgpu has one instance for a process, which reads the variable with the drivers when it is made. These adapters have one
    of their own, so that other tests keep theirs.
    """
    wgpu = importlib.import_module("wgpu")
    helpers = importlib.import_module("wgpu.backends.wgpu_native._helpers")
    extras = importlib.import_module("wgpu.backends.wgpu_native.extras")
    found = [str(path) for path in DRIVERS if path.exists()]
    with pytest.MonkeyPatch.context() as patch:
        if found:
            patch.setenv("VK_DRIVER_FILES", os.pathsep.join(found))
        patch.setattr(helpers, "_the_instance", None)
        extras.set_instance_extras(backends=["Vulkan"])  # without a probe of OpenGL, which needs a display
        names: dict[str, Any] = {}
        for adapter in wgpu.gpu.enumerate_adapters_sync():
            names.setdefault(adapter.info["device"].split()[0].lower(), adapter)
    return names


class Bench:
    """A device, and the kernels that ran on it."""

    def __init__(self, name: str, adapter: Any) -> None:
        self.name = name
        limits = {"max-storage-buffer-binding-size": adapter.limits["max-storage-buffer-binding-size"]}
        self.device = adapter.request_device_sync(required_limits=limits)
        self._pipelines: dict[str, Any] = {}

    def run(
        self, kernel: Kernel, buffers: Mapping[str, NDArray[Any]], *, rows: int = 1, results: int = 1
    ) -> dict[str, NDArray[np.uint32]]:
        """Run a kernel once and return the buffers that it writes, as uint32.

        ``buffers`` has an array for every binding; those that are written begin with its content.
        """
        if kernel.source not in self._pipelines:
            module = self.device.create_shader_module(code=kernel.source)
            stage = {"module": module, "entry_point": "main"}
            self._pipelines[kernel.source] = self.device.create_compute_pipeline(layout="auto", compute=stage)
        pipeline = self._pipelines[kernel.source]
        assert set(buffers) == {binding.name for binding in kernel.bindings}
        held = {
            name: self.device.create_buffer_with_data(data=_words(array), usage="STORAGE|COPY_SRC")
            for name, array in buffers.items()
        }
        entries = [
            {"binding": number, "resource": {"buffer": held[binding.name]}}
            for number, binding in enumerate(kernel.bindings)
        ]
        group = self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        encoder = self.device.create_command_encoder()
        work = encoder.begin_compute_pass()
        work.set_pipeline(pipeline)
        work.set_bind_group(0, group)
        work.dispatch_workgroups(*kernel.groups.of(rows, results))
        work.end()
        self.device.queue.submit([encoder.finish()])
        return {
            binding.name: np.frombuffer(self.device.queue.read_buffer(held[binding.name]), np.uint32)
            for binding in kernel.bindings
            if binding.access == "read_write"
        }


def _words(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an array's bytes, whole words of 16 bytes."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return np.concatenate([data, np.zeros(-len(data) % 16 or (0 if len(data) else 16), np.uint8)])
