from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.errors import UsageError
from edgedec.progress import Progress
from edgedec.sim.verify import cocotb_runner, coverage
from edgedec.sim.verify.coverage import BENCHES, CELLS, ENVIRONMENT, Coverage, beats_class, main, measure


def total() -> int:
    return sum(len(sizes) * len(stalls) for kinds in CELLS.values() for sizes, stalls in kinds.values())


def test_unhit_cells_are_listed() -> None:
    coverage = Coverage()
    assert len(coverage.missed) == total()
    coverage.hit("top", "CACHE", "page", "held")
    coverage.hit("top", "CACHE", "page", "held")
    assert len(coverage.missed) == total() - 1
    report = coverage.as_json()
    assert report["hits"] == [["top", "CACHE", "page", "held", 2]]
    assert (report["cells"], report["hit"]) == (total(), 1)
    assert ["top", "CACHE", "page", "late"] in report["missed"]
    assert ["top", "CACHE", "page", "held"] not in report["missed"]
    lines = coverage.table().splitlines()
    assert f"1 of {total()} cells were hit. Never:" in lines
    assert "  top: CACHE, page: none, address, late, error, reset" in lines
    assert "  top: CACHE, 1-15: anything" in lines
    (row,) = (line.split() for line in lines if line.startswith("CACHE") and "page" in line)
    columns = lines[0].split()[1:]
    assert row[2 + columns.index("held")] == "2"
    assert row[2 + columns.index("late")] == "0"
    assert row[2 + columns.index("write")] == "."  # a cache's beats are only read


def test_coverage_may_be_limited_to_benches() -> None:
    coverage = Coverage(benches=("attention",))
    assert {cell[0] for cell in coverage.missed} == {"attention"}
    for cell in coverage.missed:
        coverage.hit(*cell)
    report = coverage.as_json()
    assert (report["cells"], report["hit"], report["missed"]) == (13, 13, [])
    assert coverage.table().splitlines()[-2:] == ["13 of 13 cells were hit. Never:", "  none"]
    assert "engine" not in coverage.table()


@pytest.mark.parametrize(
    "cell",
    [
        ("tip", "CACHE", "page", "held"),
        ("top", "CACHES", "page", "held"),
        ("top", "CACHE", "pages", "held"),
        ("top", "CACHE", "page", "write"),
    ],
)
def test_an_unknown_cell_is_refused(cell: tuple[str, str, str, str]) -> None:
    with pytest.raises(UsageError, match=r"coverage has no cell .*; add it to CELLS"):
        Coverage().hit(*cell)


def test_saved_coverage_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    Coverage().save()
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    for _ in range(3):
        first = Coverage()
        first.hit("engine", "MATRIX int8", "tile", "lent")
        first.save()
    assert Coverage.load(tmp_path).hits == {("engine", "MATRIX int8", "tile", "lent"): 3}


@pytest.mark.parametrize("text", ["{", "[[1]]", '[["top", "CACHE", "page", "x", 1]]', "7"])
def test_an_invalid_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text, "utf-8")
    with pytest.raises(UsageError, match=r"a\.json is not a coverage file: .*; delete it"):
        Coverage.load(tmp_path)


@pytest.mark.parametrize(
    ("start", "beats", "size"),
    [(0, 1, "1-15"), (8, 15, "1-15"), (8, 16, "16-"), (4088, 1, "1-15"), (4088, 2, "page"), (0, 512, "16-")],
)
def test_sizes_of_ranges_are_binned(start: int, beats: int, size: str) -> None:
    assert beats_class(start, beats, 8) == size


@pytest.mark.thorough
def test_the_command_reports_coverage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Use a runner that writes what a bench would write."""
    calls: list[str] = []

    def run_bench(component: object, bench: str, *, parameters: dict[str, object], progress: Progress) -> None:
        calls.append(bench)
        progress("tests", 3, 4)
        progress("tests", 4, 4)
        hits = [["engine", "MATRIX int8", "tile", "lent", len(calls)]]
        (Path(str(parameters[ENVIRONMENT.lower()])) / f"{len(calls)}.json").write_text(json.dumps(hits), "utf-8")

    monkeypatch.setattr(cocotb_runner, "run_bench", run_bench)
    report = tmp_path / "report.json"
    assert main(["--quick", "--json", str(report)]) == 0
    assert calls == [f"edgedec.sim.verify.benches.{bench}" for bench in BENCHES]
    captured = capsys.readouterr()
    assert f"1 of {total()} cells were hit" in captured.out
    assert captured.err.splitlines() == ["bench top ...", "tests ...", "bench engine ...", "bench attention ..."]
    assert json.loads(report.read_text("utf-8"))["hits"] == [["engine", "MATRIX int8", "tile", "lent", 6]]


def test_an_unknown_bench_is_refused() -> None:
    with pytest.raises(UsageError, match="bench must be one of top, engine, attention, not 'tip'"):
        measure(benches=["tip"])
    assert coverage.BENCHES == ("top", "engine", "attention")
