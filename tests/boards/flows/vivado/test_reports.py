"""Test what is read of Vivado's reports, and that nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.boards.flows.vivado.reports import (
    read_attempts,
    read_failing_path,
    read_power,
    read_timing,
    read_utilization,
)
from edgedec.errors import BundleError
from tests.boards.flows.vivado.support import make_reports


def written(folder: Path, text: str) -> Path:
    path = folder / "a report.rpt"
    path.write_text(text)
    return path


def test_timing_is_read(tmp_path: Path) -> None:
    timing_report = read_timing(written(tmp_path, make_reports.timing()), 250e6)
    assert timing_report == {
        "wns_ns": 0.123,
        "tns_ns": 0.0,
        "whs_ns": 0.011,
        "wpws_ns": 1.427,
        "failing_endpoints": 0,
        "met": True,
        "clock_hz": 250e6,
        "achieved_hz": pytest.approx(1e9 / 3.877),
    }


@pytest.mark.parametrize(
    ("wns", "whs", "wpws"), [("-0.001", "0.011", "1.427"), ("0.100", "-0.020", "1.427"), ("0.100", "0.011", "-0.100")]
)
def test_missed_timing_is_read(tmp_path: Path, wns: str, whs: str, wpws: str) -> None:
    report = make_reports.timing(wns, whs, "-3.200", "17").replace("1.427", wpws.rjust(5))
    timing_report = read_timing(written(tmp_path, report), 250e6)
    assert (timing_report["met"], timing_report["failing_endpoints"], timing_report["tns_ns"]) == (False, 17, -3.2)


@pytest.mark.parametrize("line", ["", "250\ta\tb", "250\ta\tb\t249.9\t0.1\tNA\t0", "x\ta\tb\t249.9\t0.1\t0\t0"])
def test_a_damaged_attempt_is_refused(tmp_path: Path, line: str) -> None:
    good = "250\ta\tb\t249.9\t-0.1\t0.01\t1"
    (row,) = read_attempts(written(tmp_path, good + "\n"))
    assert (row["wanted_hz"], row["clock_hz"], row["synthesis"], row["met"]) == (250e6, 249.9e6, "a", False)
    with pytest.raises(BundleError, match=r"a report.rpt is no report of a finished build: the line .* is no attempt"):
        read_attempts(written(tmp_path, f"{good}\n{line}\n{good}\n"))


def test_a_failing_path_is_read(tmp_path: Path) -> None:
    facts = {"path_kind": "setup", "path_from": "a/C", "path_to": "b/D"}
    facts |= {"path_slack_ns": "-0.25", "path_delay_ns": "4.25", "path_levels": "12"}
    wanted = {"kind": "setup", "from": "a/C", "to": "b/D", "slack_ns": -0.25, "delay_ns": 4.25, "levels": 12}
    assert read_failing_path(tmp_path, facts) == wanted
    assert read_failing_path(tmp_path, {}) is None
    with pytest.raises(BundleError, match="path_levels is 'missing', no number"):
        read_failing_path(tmp_path, {**facts, "path_levels": ""})


def test_utilization_is_read(tmp_path: Path) -> None:
    ultra = read_utilization(written(tmp_path, make_reports.utilization()))
    assert ultra == {"lut": 61001, "ff": 70002, "bram36": 80.5, "uram": 43, "dsp": 701}
    seven = read_utilization(written(tmp_path, make_reports.utilization(ultra=False, star="*")))
    assert seven == {**ultra, "uram": 0}


def test_power_is_read(tmp_path: Path) -> None:
    power_report = read_power(written(tmp_path, make_reports.power()))
    assert power_report == {"total_w": 5.432, "dynamic_w": 4.9, "static_w": 0.532, "junction_c": 36.0}
    hot = read_power(written(tmp_path, make_reports.power("12.5 (Junction temp exceeded!)")))
    assert hot["total_w"] == 12.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no table with WNS"),
        (make_reports.timing("NA", "NA"), "WNS.ns. is 'NA', no number"),
        (make_reports.timing().split("\n    -------")[0], "WNS.ns. is 'missing'"),
        (make_reports.timing()[:60], "no table with WNS"),
        (make_reports.power(), "no table with WNS"),
    ],
)
def test_a_timing_report_without_figures_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BundleError, match=f"a report.rpt is no report of a finished build: .*{message}"):
        read_timing(written(tmp_path, text), 250e6)


def test_missing_reports_are_refused(tmp_path: Path) -> None:
    for read in (read_utilization, read_power, lambda path: read_timing(path, 1e8)):
        with pytest.raises(BundleError, match="No such file"):
            read(tmp_path / "none.rpt")
    without = "\n".join(line for line in make_reports.utilization().splitlines() if "DSPs" not in line)
    with pytest.raises(BundleError, match="no row DSPs"):
        read_utilization(written(tmp_path, without))
    with pytest.raises(BundleError, match="Device Static"):
        read_power(written(tmp_path, make_reports.power().replace("Device Static", "Static")))
    (tmp_path / "binary.rpt").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(BundleError, match="no row CLB LUTs or Slice LUTs"):
        read_utilization(tmp_path / "binary.rpt")
