"""Test that the plan of ``--device gpu`` counts every buffer, and that a run stays within its budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import bundle_folder
from edgedec.runtime.gpu.footprint import gpu_footprint
from edgedec.runtime.gpu.layout import sizes_of
from edgedec.runtime.gpu.lowering import bundle_layout
from edgedec.runtime.gpu.sized_program import lower
from edgedec.runtime.protocols import Limits
from tests.support.gpu_here import need_gpu

MANY = Limits(nodes=16, depth=7, positions=128, cache_rows=640, batch_rows=48)
LIMITS = (Limits(nodes=1, depth=0, positions=16), Limits(nodes=32, depth=15, positions=512), MANY)
HOST = ("programs", "load_transient", "readback", "head")  # items that are not buffers of the program alone


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.open(bundle_folder("demo"))


@pytest.mark.thorough
@pytest.mark.parametrize("limits", LIMITS, ids=["least", "wide", "several sequences"])
@pytest.mark.parametrize("bits", [16, 8])
def test_the_items_are_the_buffers_of_the_program(bundle: Bundle, limits: Limits, bits: int) -> None:
    need_gpu()
    items = gpu_footprint(bundle, limits, kv_bits=bits)
    program = lower(bundle_layout(bundle, bits), sizes_of(limits), fused=False)
    made = program.item_bytes()
    assert {name: size for name, size in items.items() if name not in HOST} == {
        name: size for name, size in made.items() if name != "head"
    }
    assert items["head"] == 2 * made["head"]
    assert items["readback"] >= 2 * program.readback_bytes
    assert items["programs"] % len(program.kernels) == 0
    assert sum(items.values()) > sum(buffer.nbytes for buffer in program.buffers)


def generate(*options: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("edgedec")), "generate", "-m", "demo", "--device", "gpu", "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EDGEDEC_GENERATE")}
    return subprocess.run(
        [*command, "-p", "Once upon a time", "-n", "4", "--temp", "0", *options],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )


def check_budget(mebibytes: int) -> bool:
    """Check one budget; return True if the run fits it."""
    ended = generate("--memory-budget", f"{mebibytes}MiB")
    if ended.returncode == 4:
        assert "programs" in ended.stderr
        assert "weights" in ended.stderr
        assert f"the memory budget is {mebibytes}.0 MiB" in ended.stderr
        return False
    assert ended.returncode == 0, ended.stderr
    timings: dict[str, Any] = json.loads(ended.stdout)["timings"]
    assert 0 < timings["peak_bytes"] <= timings["planned_bytes"] <= mebibytes << 20
    return True


@pytest.mark.thorough
def test_a_budget_that_is_too_small_is_refused_by_item() -> None:
    need_gpu()
    assert not check_budget(8)


@pytest.mark.nightly
def test_forty_budgets_are_kept_or_refused() -> None:
    need_gpu()
    fits = [check_budget(size) for size in range(20, 420, 10)]
    assert fits == sorted(fits), "a larger budget is never refused where a smaller one fits"
    assert any(fits)
    assert not all(fits)
