"""The device on which the target ``gpu`` is tested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.gpu_here import need_gpu

if TYPE_CHECKING:
    from edgedec.runtime.gpu.device import GpuDevice


@pytest.fixture(scope="session")
def gpu() -> GpuDevice:
    """Return the open device; a test is skipped where there is none."""
    need_gpu()
    from edgedec.runtime.gpu.device import open_device

    return open_device()
