from __future__ import annotations

import pytest

from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.sim.verify.cocotb_runner import missing_tools, run_bench

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]


def test_the_register_block_is_correct_with_a_bus_master() -> None:
    run_bench(RegisterBlock(register_map=REGISTER_MAP), "edgedec.sim.verify.benches.registers")
