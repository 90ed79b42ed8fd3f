"""Test the choice among several adapters."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from edgedec.errors import DeviceError
from edgedec.runtime.gpu import device
from edgedec.runtime.gpu.device import Adapter, chosen_adapter
from tests.runtime.gpu.kernels.support.bench import DRIVERS

SWIFTSHADER = next(path for path in DRIVERS if "swiftshader" in path.name)
LLVMPIPE = next((path for path in DRIVERS if path.name.startswith("lvp") and path.exists()), DRIVERS[0])


def adapter(name: str, **changes: Any) -> Adapter:
    values: dict[str, Any] = {"driver": "a driver", "backend": "Vulkan", "software": True, "binding_bytes": 1 << 27}
    return Adapter(name=name, raw=None, **(values | changes))


def test_the_variable_chooses_by_a_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    both = adapter("NVIDIA H100", software=False), adapter("llvmpipe (LLVM 15)")
    monkeypatch.setattr(device, "adapters", lambda: both)
    monkeypatch.delenv("EDGEDEC_GPU", raising=False)
    assert chosen_adapter() is both[0]
    monkeypatch.setenv("EDGEDEC_GPU", "LLVM")
    assert chosen_adapter() is both[1]
    monkeypatch.setenv("EDGEDEC_GPU", "radeon")
    with pytest.raises(DeviceError, match=r"EDGEDEC_GPU=radeon is part of .* there are: NVIDIA H100, llvmpipe"):
        chosen_adapter()


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["swift", "llvmpipe"])
def test_either_of_two_software_drivers_can_be_used(part: str) -> None:
    pytest.importorskip("wgpu", reason="the package wgpu is not installed; .ci/environment dev installs it")
    if not (SWIFTSHADER.exists() and LLVMPIPE.exists()):
        pytest.skip("needs both software drivers: apt install mesa-vulkan-drivers chromium")
    files = os.pathsep.join(map(str, (LLVMPIPE, SWIFTSHADER)))
    ended = subprocess.run(
        [sys.executable, "-c", "from edgedec.cli.app import main; main()", "doctor"],
        capture_output=True,
        text=True,
        env={**os.environ, "VK_DRIVER_FILES": files, "VK_ICD_FILENAMES": files, "EDGEDEC_GPU": part},
        timeout=120,
        check=False,
    )
    (line,) = [line for line in ended.stdout.splitlines() if "GPU adapter:" in line]
    chosen, _, others = line.partition("; also ")
    assert part in chosen.lower()
    assert {"swift": "llvmpipe", "llvmpipe": "SwiftShader"}[part] in others
