from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.sim.verify.benches.designs import design
from edgedec.sim.verify.cocotb_runner import missing_tools, run_bench
from edgedec.sim.verify.coverage import ENVIRONMENT, Coverage

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]


def test_matrices_are_correct_under_gaps_stalls_and_lent_multipliers(tmp_path: Path) -> None:
    parameters = {ENVIRONMENT.lower(): tmp_path, "quick": 0}
    run_bench(design("engine"), "edgedec.sim.verify.benches.engine", parameters=parameters)
    missed = [cell for cell in Coverage.load(tmp_path).missed if cell[0] == "engine"]
    assert not missed
