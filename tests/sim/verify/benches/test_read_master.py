from __future__ import annotations

import pytest

from edgedec.hw.memory.read_master import ReadMaster
from edgedec.sim.verify.cocotb_runner import missing_tools, run_bench

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]


@pytest.mark.parametrize(("max_burst", "outstanding"), [(256, 4), (8, 1)])
def test_the_read_master_is_correct_with_a_bus_model(max_burst: int, outstanding: int) -> None:
    master = ReadMaster(address_bits=32, data_bytes=16, length_bits=20, max_burst=max_burst, outstanding=outstanding)
    run_bench(master, "edgedec.sim.verify.benches.read_master", parameters={"max_burst": max_burst})
