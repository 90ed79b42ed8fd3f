"""The GPU of this machine, for tests: whatever adapter there is, usually a software one."""

from __future__ import annotations

import importlib.util

import pytest

__all__ = ["need_gpu"]


def need_gpu() -> None:
    """Skip the test where ``--device gpu`` has no adapter."""
    if importlib.util.find_spec("wgpu") is None:
        pytest.skip("the package wgpu is not installed; .ci/environment dev installs it")
    from edgedec.errors import DeviceError
    from edgedec.runtime.gpu.device import open_device

    try:
        open_device()
    except DeviceError as error:
        pytest.skip(str(error))
