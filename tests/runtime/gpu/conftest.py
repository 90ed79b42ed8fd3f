"""The device on which the target ``gpu`` is tested: whatever adapter this machine has, usually a software one."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def gpu() -> Any:
    """Return the open device; a test is skipped where there is none."""
    pytest.importorskip("wgpu", reason="the package wgpu is not installed; .ci/environment dev installs it")
    from edgedec.errors import DeviceError
    from edgedec.runtime.gpu.device import open_device

    try:
        return open_device()
    except DeviceError as error:
        pytest.skip(str(error))
