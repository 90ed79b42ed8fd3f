from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.sim.verify.benches.designs import design
from edgedec.sim.verify.cocotb_runner import missing_tools, run_bench
from edgedec.sim.verify.coverage import ENVIRONMENT, Coverage

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]


def test_attention_is_correct_under_gaps_and_stalls(tmp_path: Path) -> None:
    parameters = {ENVIRONMENT.lower(): tmp_path, "quick": 0}
    run_bench(design("attention"), "edgedec.sim.verify.benches.attention", parameters=parameters)
    missed = [cell for cell in Coverage.load(tmp_path).missed if cell[0] == "attention"]
    assert not missed
