"""Test the benchmark of windows with a short context."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.kernels.sessions.operator import usable

windows = importlib.import_module("benchmarks.memory.windows")


@pytest.mark.thorough
@pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")
@pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
def test_windows_take_less_and_stay_within_the_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["windows.py", "--ctx-size", "256", "--window", "32", "--json"])
    windows.main()
    runs = json.loads(capsys.readouterr().out)["runs"]
    row = 2 * 2 * 384  # bytes of the keys and values of a layer
    ring = 16 * -(-(31 + 64 + 15) // 16)
    assert [run["kv_bytes"] for run in runs] == [row * rows for rows in (6 * ring, 6 * 256, 5 * ring + 256, 6 * 256)]
    assert all(0 < run["peak_bytes"] <= run["planned_bytes"] for run in runs)
