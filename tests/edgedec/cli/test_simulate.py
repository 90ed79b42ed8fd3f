from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from edgedec.cli.app import app
from edgedec.errors import EdgedecError
from edgedec.sim.verify import suite
from edgedec.sim.verify.coverage import Coverage
from edgedec.sim.verify.suite import SuiteReport, find, known

pytest.importorskip("amaranth")


@pytest.mark.parametrize("arguments", [[], ["--bench", "all", "-m", "demo"]])
def test_either_a_bench_or_a_model_is_required(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert "use either --bench NAME or -m BUNDLE" in result.stderr


def test_an_unknown_bench_lists_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["simulate", "--bench", "nothing"])
    assert result.exit_code == 2
    assert f"known: {', '.join(known())}" in result.stderr


def test_every_suite_has_a_run_method() -> None:
    assert known() == ["memory", "ports", "tokens", "top", "units"]
    assert all(callable(find(name).run) for name in known())


def test_memory_is_compared_with_published_figures() -> None:
    result = CliRunner().invoke(app, ["simulate", "--bench", "memory", "--quick"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("memory: equal")
    assert "four ports, one long read, simulated" in result.stdout


class _Bench:
    """Hit one cell."""

    def run(self, *, model: object, quick: bool, progress: object) -> SuiteReport:
        coverage = Coverage(benches=("attention",))
        coverage.hit("attention", "ATTEND", "16-", "held")
        left_out = "most" if quick else ""
        return SuiteReport(what="this with that", compared={"rows": 2000}, coverage=coverage, left_out=left_out)


class _Different:
    """Find a difference."""

    def run(self, **options: Any) -> SuiteReport:
        raise EdgedecError("bench top: the cache differs")


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> None:
    suites = {"a": _Bench(), "b": _Different()}
    monkeypatch.setattr(suite, "known", lambda: list(suites))
    monkeypatch.setattr(suite, "find", suites.__getitem__)


@pytest.mark.usefixtures("suites")
def test_coverage_is_shown() -> None:
    result = CliRunner().invoke(app, ["simulate", "--bench", "a", "--quick"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("a: equal (")
    assert lines[0].endswith(" s). this with that")
    assert "  rows  2,000" in lines
    assert "  left out by --quick: most" in lines
    assert "  1 of 13 cells were hit. Never:" in lines
    assert "    attention: ATTEND, 16-: none, late, output, rows" in lines
    assert "left out" not in CliRunner().invoke(app, ["simulate", "--bench", "a"]).stdout


@pytest.mark.usefixtures("suites")
def test_coverage_in_json() -> None:
    result = CliRunner().invoke(app, ["simulate", "--bench", "a", "--json"])
    suite = json.loads(result.stdout)["suites"]["a"]
    assert set(suite) == {"what", "compared", "figures", "coverage", "left_out", "seconds"}
    assert suite["coverage"]["hits"] == [["attention", "ATTEND", "16-", "held", 1]]


@pytest.mark.usefixtures("suites")
def test_a_difference_exits_with_1_after_the_equal_results() -> None:
    result = CliRunner().invoke(app, ["simulate", "--bench", "all"])
    assert result.exit_code == 1
    assert result.stdout.startswith("a: equal")
    assert "suite b" in result.stderr
    assert "bench top: the cache differs" in result.stderr
