"""Test the measurement of the driver's memory, which no earlier work of this process may change."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wgpu", reason="the package wgpu is not installed; .ci/environment dev installs it")

from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.gpu import driver
from edgedec.runtime.gpu.device import chosen_adapter
from edgedec.runtime.gpu.driver import known_cost, opened_device
from edgedec.runtime.gpu.probe import sample_pipelines
from tests.support.gpu_here import need_gpu

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need_gpu()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.skipif(not MemoryMeter().available, reason="this system does not tell the memory of a process")
def test_a_driver_that_is_warm_already_has_its_full_cost() -> None:
    device, cost = opened_device()
    sample_pipelines(device)  # a measurement in this process would find no growth now
    driver._path().unlink()
    again = known_cost(chosen_adapter())
    assert again.device_bytes == pytest.approx(cost.device_bytes, rel=0.2)
    assert again.pipeline_bytes == pytest.approx(cost.pipeline_bytes, rel=0.5)
    assert min(cost.device_bytes, cost.pipeline_bytes) > 64 << 10, "the least that is ever kept"


def test_a_figure_that_could_not_be_measured_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", fail)
    cost = known_cost(chosen_adapter())
    assert cost.pipeline_bytes >= 512 << 10
    assert not driver._path().exists()
