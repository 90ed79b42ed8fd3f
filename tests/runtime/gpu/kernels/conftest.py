"""The adapters on which the kernels are tested: every software driver of this machine."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.runtime.gpu.kernels.support.bench import Bench, adapters

NAMES = ("llvmpipe", "swiftshader")

_adapters = functools.cache(adapters)


@pytest.fixture(scope="session", params=NAMES)
def gpu_device(request: pytest.FixtureRequest) -> Bench:
    """Return a bench on each software adapter."""
    pytest.importorskip("wgpu", reason="the package wgpu is not installed; .ci/environment dev installs it")
    found: dict[str, Any] = _adapters()
    if request.param not in found:
        pytest.skip(
            f"no Vulkan adapter {request.param} (found: {', '.join(found) or 'none'}); install mesa-vulkan-drivers for "
            "llvmpipe, or chromium for SwiftShader"
        )
    return Bench(request.param, found[request.param])
