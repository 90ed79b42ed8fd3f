from __future__ import annotations

import pytest

from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.sim.verify.cocotb_runner import missing_tools, run_bench

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]


@pytest.mark.parametrize(("beat_bytes", "ports", "depth"), [(64, 4, 64), (8, 2, 20), (16, 1, 32)])
def test_the_prefetcher_is_correct_with_bus_models(beat_bytes: int, ports: int, depth: int) -> None:
    prefetcher = Prefetcher(
        beat_bytes=beat_bytes,
        ports=ports,
        address_bits=32,
        count_bits=16,
        depth=depth,
        style="auto",
        max_burst=64,
        outstanding=4,
    )
    parameters = {"beat_bytes": beat_bytes, "ports": ports, "depth": depth}
    run_bench(prefetcher, "edgedec.sim.verify.benches.prefetcher", parameters=parameters)
