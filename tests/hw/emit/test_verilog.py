"""Test what is said when yosys fails; test_rtlil.py and the netlists' tests look at what it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.errors import ToolError
from edgedec.hw.emit.verilog import run_yosys


@pytest.mark.rtl
def test_a_failed_script_is_an_error_with_its_last_lines(tmp_path: Path) -> None:
    script = "".join(f"log line {number}\n" for number in range(40)) + "read_rtlil nowhere.il\n"
    with pytest.raises(ToolError, match=r"(?s)^yosys failed:\n.*nowhere\.il") as error:
        run_yosys(script, tmp_path)
    assert len(str(error.value).splitlines()) == 1 + 10
