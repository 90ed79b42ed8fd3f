"""Test the benchmark of recurrent states with few layers and a short context."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.kernels.sessions.operator import usable

recurrent = importlib.import_module("benchmarks.cpu.recurrent")


@pytest.mark.thorough
@pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")
@pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
def test_recurrent_states_do_not_grow_and_stay_within_the_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--layers", "4", "--short", "64", "--ctx-size", "512", "--steps", "4", "--json"]
    monkeypatch.setattr(sys, "argv", ["recurrent.py", *arguments])
    recurrent.main()
    report = json.loads(capsys.readouterr().out)
    mamba2, hybrid, attention = (
        [run for run in report["runs"] if run["model"] == name] for name in ("mamba2", "hybrid", "attention")
    )
    assert mamba2[0]["held_bytes"] == mamba2[1]["held_bytes"] == mamba2[0]["recurrent_bytes"]
    assert mamba2[0]["recurrent_bytes"] == mamba2[1]["recurrent_bytes"]
    assert hybrid[0]["recurrent_bytes"] == hybrid[1]["recurrent_bytes"]
    assert [mamba2[1]["kv_bytes"], attention[1]["recurrent_bytes"]] == [0, 0]
    assert 4 * hybrid[1]["kv_bytes"] == attention[1]["kv_bytes"] == 4 * 512 * 2 * 2 * 64 * 2
    assert all(0 < run["peak_bytes"] <= run["planned_bytes"] for run in report["runs"])
    assert [step["model"] for step in report["steps"]] == ["mamba2", "hybrid", "attention"]
    assert all(step["short_step_ms"] > 0 and step["long_step_ms"] > 0 for step in report["steps"])
