"""Test what is read of Vivado's reports, and that nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.boards.flows.vivado.reports import read_power, read_timing, read_utilization
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
        "failing_endpoints": 0,
        "met": True,
        "clock_hz": 250e6,
        "achieved_hz": pytest.approx(1e9 / 3.877),
    }


@pytest.mark.parametrize(("wns", "whs"), [("-0.001", "0.011"), ("0.100", "-0.020")])
def test_missed_timing_is_read(tmp_path: Path, wns: str, whs: str) -> None:
    timing_report = read_timing(written(tmp_path, make_reports.timing(wns, whs, "-3.200", "17")), 250e6)
    assert (timing_report["met"], timing_report["failing_endpoints"], timing_report["tns_ns"]) == (False, 17, -3.2)


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
