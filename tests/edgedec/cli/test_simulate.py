from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edgedec.bundle.bundle import Bundle
from edgedec.cli.app import app
from edgedec.errors import EdgedecError
from edgedec.hw.compiler.choose import small_config
from edgedec.hw.compiler.shapes import shape_model
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.model import integer_graph, prepare
from edgedec.sim.verify import suite
from edgedec.sim.verify.coverage import Coverage
from edgedec.sim.verify.suite import SuiteReport, find, known
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.support.make_known_model import IDS
from tests.support.make_tiny import write_bundle

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


@pytest.mark.rtl
@pytest.mark.rtl  # compiles the model of the memory
def test_memory_is_compared_with_published_figures() -> None:
    result = CliRunner().invoke(app, ["simulate", "--bench", "memory", "--quick"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("memory: equal")
    assert "four ports, one long read, modelled" in result.stdout


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
    assert set(suite) == {"what", "kind", "compared", "figures", "coverage", "left_out", "seconds"}
    assert suite["coverage"]["hits"] == [["attention", "ATTEND", "16-", "held", 1]]


@pytest.mark.usefixtures("suites")
def test_a_difference_exits_with_1_after_the_equal_results() -> None:
    result = CliRunner().invoke(app, ["simulate", "--bench", "all"])
    assert result.exit_code == 1
    assert result.stdout.startswith("a: equal")
    assert "suite b" in result.stderr
    assert "bench top: the cache differs" in result.stderr


@pytest.fixture(scope="module")
def int8_bundle(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    folder = tmp_path_factory.mktemp("int8") / "a bundle"
    quantize(open_checkpoint(checkpoint), folder, QuantizeOptions(method="int8"), vocab_limit=IDS)
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-m", "BUNDLE", "-p", ""), "the prompt is empty; give some text with -p"),
        (("-m", "BUNDLE", "--memory", "dddr"), "--memory must be one of ddr, flat, ideal, not 'dddr'; did you mean 'ddr'?"),
        (("-m", "BUNDLE", "--memory", "auto"), "--memory must be one of ddr, flat, ideal, not 'auto'"),
        (("-m", "BUNDLE", "--beat-bytes", "7"), "--beat-bytes must be 4, 8, 16, 32 or 64, not 7"),
        (("-m", "BUNDLE", "--slots", "9"), "--slots must be 1 to 8, not 9"),
        (
            ("-m", "BUNDLE", "--tokens", "5000"),
            "the prompt has 17 tokens, and --tokens 5000 follow; the model's context holds 4096 in all",
        ),
        (("-m", "BUNDLE", "--save-program", "file"), "holds no program.json; choose another name or remove it"),
        (("-m", "BUNDLE", "--save-program", "file/x"), "is not a folder; choose another name, or remove it"),
        (("-m", "BUNDLE", "--quick"), "--quick is for --bench; leave it out"),
        (("-m", "BUNDLE", "--wave", "a.png", "--to", "9"), "--wave a.png: the suffix must be .vcd or .fst, not .png"),
        (("-m", "BUNDLE", "--wave", "a.vcd"), "--wave needs the end of the waveform; add --to CYCLE"),
        (("-m", "BUNDLE", "--wave", "a.vcd", "--from", "-1", "--to", "9"), "--from must be 0 or more, not -1"),
        (("-m", "BUNDLE", "--wave", "a.vcd", "--from", "9", "--to", "9"), "--to 9 must be greater than --from 9"),
        (("-m", "BUNDLE", "--to", "9"), "--to needs --wave FILE; add it"),
        (
            ("--bench", "units", "--wave", "a.vcd", "--from", "3"),
            "--bench has no use for --wave, --from; leave them out, or give -m BUNDLE alone",
        ),
        (("--bench", "units", "--tokens", "3"), "--bench has no use for --tokens; leave it out, or give -m BUNDLE alone"),
        (
            ("-m", "BUNDLE", "--terminal", "-p", "x", "--slots", "2"),
            "--terminal has no use for --prompt, --slots; leave them out, or give -m BUNDLE alone",
        ),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused_before_the_calibration(
    edgedec: Edgedec, int8_bundle: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    def calibrate(*arguments: object) -> None:
        pytest.fail("it went on")

    monkeypatch.setattr("edgedec.reference.integer_profile.calibrate.calibrate", calibrate)
    Path("file").touch()
    outcome = edgedec("simulate", *(int8_bundle if word == "BUNDLE" else word for word in arguments))
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.endswith(f"{message}\n")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["int8", "native", "planes3"])
def test_the_configuration_by_shape_is_that_by_weights(tmp_path: Path, kind: str) -> None:
    """It is chosen before the weights are read, and must be the one that the weights lead to."""
    write_bundle(tmp_path / "bundle", kind)
    opened = Bundle.open(tmp_path / "bundle")
    by_weights = prepare(opened, calibrate(opened))
    assert small_config(shape_model(integer_graph(opened))) == small_config(by_weights)
