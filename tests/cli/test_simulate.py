from __future__ import annotations

import pytest
from typer.testing import CliRunner

from edgedec.cli.app import app
from edgedec.sim.suite import find, known

pytest.importorskip("amaranth")


@pytest.mark.parametrize("arguments", [[], ["--bench", "all", "-m", "demo"]])
def test_either_a_bench_or_a_model(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert "give either --bench NAME or -m BUNDLE" in result.stderr


def test_an_unknown_bench_lists_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["simulate", "--bench", "nothing"])
    assert result.exit_code == 2
    assert f"known: {', '.join(known())}" in result.stderr


def test_suites_have_a_run() -> None:
    assert known() == ["memory", "ports", "tokens", "top", "units"]
    assert all(callable(find(name).run) for name in known())


def test_memory_against_published_figures() -> None:
    result = CliRunner().invoke(app, ["simulate", "--bench", "memory", "--quick"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("memory: equal")
    assert "four ports, one long read, simulated" in result.stdout
