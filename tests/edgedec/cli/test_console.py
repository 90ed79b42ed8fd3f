"""Test what commands write to stderr during long work."""

from __future__ import annotations

import re
import time

import pytest

from edgedec.cli.console import progress

LABEL = "quantizing"


def test_without_a_terminal_lines_go_to_stderr_and_stdout_stays_empty(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.cli.console.LINE_INTERVAL_S", 0.01)
    written, end = "", time.monotonic() + 120
    with progress(LABEL) as report:
        report("layers.3", 1, 4)
        while "25 %" not in written and time.monotonic() < end:  # on a busy machine a line may come before the report
            time.sleep(0.001)
            written += capsys.readouterr().err
    assert re.search(r"^quantizing: 25 %, layers\.3 \(\d+ s\)$", written, re.MULTILINE)
    assert capsys.readouterr().out == ""


def test_quick_work_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(LABEL) as report:
        report("layers.3", 1, 4)
    assert capsys.readouterr() == ("", "")
