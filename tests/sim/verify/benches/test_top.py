from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.sim.verify.benches.designs import design
from edgedec.sim.verify.cocotb_runner import missing_tools, run_bench
from edgedec.sim.verify.coverage import ENVIRONMENT, Coverage

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]


def test_the_whole_accelerator_is_correct_with_bus_models(tmp_path: Path) -> None:
    parameters = {ENVIRONMENT.lower(): tmp_path, "quick": 0}
    run_bench(design("top"), "edgedec.sim.verify.benches.top", parameters=parameters)
    missed = [cell for cell in Coverage.load(tmp_path).missed if cell[0] == "top"]
    assert not missed
