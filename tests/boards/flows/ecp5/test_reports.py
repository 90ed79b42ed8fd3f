"""Test nextpnr's report, and the picture of a placement."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from edgedec.boards.flows.ecp5.build_script import placement
from edgedec.boards.flows.ecp5.floor_plan import floor_plan, part_of_cell, picture
from edgedec.boards.flows.ecp5.reports import read_report
from edgedec.errors import BundleError
from tests.boards.flows.ecp5.support import fake_tools

CLOCKS = {"sync": 80e6, "memory": 100e6}


def written(folder: Path, text: str) -> Path:
    path = folder / "nextpnr.json"
    path.write_text(text)
    return path


def test_the_longest_path_is_read(tmp_path: Path) -> None:
    _, timing = read_report(written(tmp_path, fake_tools.report()), CLOCKS)
    (path,) = timing["critical_paths"]
    assert {name: path[name] for name in ("from", "to", "begins", "ends", "levels")} == {
        "from": "sync",
        "to": "memory",
        "begins": "accelerator.datapath.matrix.engine.sum",
        "ends": "accelerator.datapath.matrix.engine.sum",
        "levels": 2,
    }
    assert (path["ns"], path["logic_ns"], path["routing_ns"]) == (1.775, 0.775, 1.0)
    assert [(step["kind"], step["at"]) for step in path["steps"]] == [
        ("clk-to-q", "accelerator.datapath.matrix.engine.sum"),
        ("routing", "accelerator.go[3]"),
        ("logic", "accelerator.datapath.matrix.engine.sum"),
    ]


@pytest.mark.parametrize(
    ("sync", "memory", "met"), [(80.01, 101.0, True), (79.99, 101.0, False), (80.01, 100.005, False)]
)
def test_timing_is_met_if_every_clock_meets_it(tmp_path: Path, sync: float, memory: float, met: bool) -> None:
    assert read_report(written(tmp_path, fake_tools.report(sync, memory)), CLOCKS)[1]["met"] is met


def test_a_clock_is_told_from_its_source_before_a_gate(tmp_path: Path) -> None:
    content = json.loads(fake_tools.report())
    slow = content["fmax"].pop("$glbnet$clk")
    content["fmax"] |= {"clock0": {"achieved": 995.0, "constraint": 80.0}, "clk": slow}
    edges = {"from": "posedge clk", "to": "posedge memory_clk"}
    content["fmax"]["memory_clk"] = content["fmax"].pop("$glbnet$clock1")
    content["critical_paths"][0] |= edges
    _, timing = read_report(written(tmp_path, json.dumps(content)), CLOCKS)
    assert timing["achieved_hz"] == pytest.approx(83.21e6)
    assert [(path["from"], path["to"]) for path in timing["critical_paths"]] == [("sync", "memory")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: "",
        lambda content: "[]",
        lambda content: "[" * 100_000,
        lambda content: json.dumps(content)[:-50],
        lambda content: json.dumps({**content, "fmax": {}}),
        lambda content: json.dumps({**content, "fmax": {"clk": {"achieved": 0, "constraint": 60}}}),
        lambda content: json.dumps({**content, "utilization": {}}),
        lambda content: json.dumps({**content, "critical_paths": [{"from": "a", "to": "b", "path": []}]}),
        lambda content: json.dumps({**content, "critical_paths": 3}),
    ],
)
def test_a_damaged_report_is_refused(tmp_path: Path, damage: Any) -> None:
    path = written(tmp_path, damage(json.loads(fake_tools.report())))
    with pytest.raises(BundleError, match=r"nextpnr.json is no report of nextpnr's: .*; remove results/ and run"):
        read_report(path, CLOCKS)


def test_parts_of_the_design_are_summed() -> None:
    sums = {name: part_of_cell(name) for name in [*fake_tools.CELLS, "system.link.a.b", "system.x", "$nextpnr_CCU2C_3"]}
    assert list(sums.values()) == [
        *("matrix", "matrix", "prefetcher", "read_crossing", "pins and clocks", "nextpnr's own", "link", "system"),
        "nextpnr's own",
    ]


def test_a_placement_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "placed.json"
    path.write_text(fake_tools.placed(fake_tools.CELLS))
    lines = placement(path)
    assert len(lines) == len(fake_tools.CELLS)
    assert "3\t4\tSLICEA.K0\tsystem.accelerator.datapath.matrix.engine.sum_LUT4_Z\n" in lines
    (tmp_path / "placement.tsv").write_text("".join(lines))
    text = floor_plan(tmp_path / "placement.tsv")
    assert text.count(" cells</text>") == 5
    assert "matrix: 2 cells" in text
    for damaged in ("x", "3\t4\tSLICEA", "3\t99999\tSLICEA\tname"):
        (tmp_path / "placement.tsv").write_text(f"{''.join(lines)}{damaged}\n")
        with pytest.raises(BundleError, match=r"placement.tsv:7 is no cell of a placement"):
            floor_plan(tmp_path / "placement.tsv")


def test_the_picture_shows_the_placement() -> None:
    """Check that the majority has a tile, that a dot marks no logic, and that a whole device takes at most 300 KB."""
    cells = [
        (3, 4, "SLICEA", "system.link.a"),
        (3, 4, "SLICEB", "system.controller.a"),
        (3, 4, "SLICEC", "system.link.b"),
    ]
    text = picture(cells)
    link, dots = ElementTree.fromstring(text).findall(".//{*}path"), "M0"
    assert len(link) == 1
    assert "#fff" not in text
    assert "#fff" in picture([*cells, (3, 4, "EBR0", f"system.{dots}.c")])
    full = [(x, y, "EBR0", f"system.part{(x + y) % 40}x.c") for x in range(126) for y in range(95)]
    assert len(picture(full)) < 300_000
    assert "other parts: " in picture(full)
    assert picture([]).startswith("<svg")
