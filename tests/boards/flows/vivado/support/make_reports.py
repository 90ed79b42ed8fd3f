"""Write reports in Vivado's form: its titles, tables and columns, with figures of our own."""

from __future__ import annotations

from pathlib import Path

RULE = "-" * 96


def timing(wns: str = "0.123", whs: str = "0.011", tns: str = "0.000", failing: str = "0") -> str:
    cells = [wns, tns, failing, "61234", whs, "0.000", "0", "61234", "1.427", "0.000", "0", "30211"]
    names = ["WNS(ns)", "TNS(ns)", "TNS Failing Endpoints", "TNS Total Endpoints", "WHS(ns)", "THS(ns)"]
    names += ["THS Failing Endpoints", "THS Total Endpoints", "WPWS(ns)", "TPWS(ns)", "TPWS Failing Endpoints"]
    names += ["TPWS Total Endpoints"]
    rows = ["  ".join(cell.rjust(len(name)) for cell, name in zip(row, names, strict=True)) for row in (names, cells)]
    rules = "  ".join("-" * len(name) for name in names)
    return f"""\
Timing Summary Report

1. checking no_clock (0)
------------------------
 There are 0 register/latch pins with no clock.

{RULE}
| Design Timing Summary
| ---------------------
{RULE}

    {rows[0]}
    {rules}
    {rows[1]}


{RULE}
| Clock Summary
| -------------
{RULE}

Clock     Waveform(ns)       Period(ns)      Frequency(MHz)
-----     ------------       ----------      --------------
clk_pl_0  {{0.000 2.000}}      4.000           250.000
"""


def table(*rows: tuple[str, ...]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule, ""])


def utilization(*, ultra: bool = True, star: str = "") -> str:
    kind = "CLB" if ultra else "Slice"
    header = ("Site Type", "Used", "Fixed", "Prohibited", "Available", "Util%")
    parts = [
        "| Tool Version : Vivado v.2022.1 (lin64) Build 3526262",
        "| Design State : Fully Placed",
        "1. CLB Logic",
        table(
            header,
            (f"{kind} LUTs{star}", "61001", "0", "0", "117120", "52.08"),
            ("  LUT as Logic", "48000", "0", "0", "117120", "40.98"),
            (f"{kind} Registers", "70002", "0", "0", "234240", "29.88"),
        ),
        "2. CLB Logic Distribution",
        table(header, (f"{kind}", "11000", "0", "0", "14640", "75.14"), (f"{kind} LUTs", "1", "0", "0", "2", "50.0")),
        "3. BLOCKRAM",
        table(
            header,
            ("Block RAM Tile", "80.5", "0", "0", "144", "55.90"),
            ("  RAMB36/FIFO*", "60", "0", "0", "144", "41.67"),
            *([("URAM", "43", "0", "0", "64", "67.19")] if ultra else []),
        ),
        "4. ARITHMETIC",
        table(header, ("DSPs", "701", "0", "0", "1248", "56.17"), ("  DSP48E2 only", "701", "", "", "", "")),
    ]
    return "\n".join(parts)


def power(total: str = "5.432") -> str:
    return "\n".join(
        [
            "Power Report",
            "1. Summary",
            "+--------------------------+--------------+",
            f"| Total On-Chip Power (W)  | {total}        |",
            "| Design Power Budget (W)  | Unspecified* |",
            "| Dynamic (W)              | 4.900        |",
            "| Device Static (W)        | 0.532        |",
            "| Effective TJA (C/W)      | 2.0          |",
            "| Junction Temperature (C) | 36.0         |",
            "| Confidence Level         | Low          |",
            "+--------------------------+--------------+",
            "| Dynamic (W)              | elsewhere    |",
        ]
    )


def write_reports(folder: Path, *, wns: str = "0.123", ultra: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "timing_summary.rpt").write_text(timing(wns))
    (folder / "utilization.rpt").write_text(utilization(ultra=ultra))
    (folder / "power.rpt").write_text(power())
    return folder
