"""Test that a library is reused without elaboration of the design, and built again after a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import DeviceError
from edgedec.hw.config import AcceleratorConfig
from edgedec.sim.cxxrtl import accelerator, library
from edgedec.sim.machine.arena import Arena
from tests.sim.support.make_small_top import CONFIG


@pytest.mark.rtl
def test_a_library_is_built_once_per_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[Path] = []

    def build(component: Any, *, cache: Path, progress: Any) -> Path:
        paths.append(cache / f"top-{len(paths)}.so")
        paths[-1].touch()
        return paths[-1]

    def found(config: AcceleratorConfig = CONFIG, *, trace: bool = False) -> Path:
        return accelerator.accelerator_library(config, trace=trace, cache=tmp_path)

    monkeypatch.setattr(library, "build", build)
    assert found() == found() == paths[0]
    assert found(trace=True) == found(trace=True) == paths[1]
    monkeypatch.setattr(accelerator, "_sources", lambda: "changed")
    assert found() == paths[2]
    paths[2].unlink()
    assert found() == paths[3]
    assert len(paths) == 4


def test_an_arena_uses_its_gaps() -> None:
    arena = Arena(np.zeros(1 << 14, np.uint8), 4096)
    first, second = arena.allocate(5000, 4096), arena.allocate(4096, 8192)
    assert (first.address, second.address) == (4096, 16384)
    with pytest.raises(DeviceError, match=r"8192 bytes does not fit .* 7288 of 16384 bytes are free"):
        arena.allocate(8192, 4096)
    first.close()
    assert arena.allocate(8192, 4096).address == 4096
