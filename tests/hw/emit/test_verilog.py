"""Test what is said when yosys fails; test_rtlil.py and the netlists' tests look at what it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.errors import ToolError
from edgedec.hw.emit.verilog import run_yosys


@pytest.mark.rtl
def test_a_failed_script_is_an_error_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"(?s)^yosys failed:\n.*nowhere\.il"):
        run_yosys("read_rtlil nowhere.il\n", tmp_path)
