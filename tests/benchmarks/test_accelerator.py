"""Run benchmarks/accelerator.py on every board: its output, and its refusals."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec.boards import board_names, find_board
from edgedec.errors import UnsupportedError
from edgedec.hw.config import AcceleratorConfig

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "accelerator.py"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("accelerator_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(benchmark: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the benchmark and return the exit code."""
    monkeypatch.setattr(sys, "argv", ["accelerator.py", *arguments])
    try:
        benchmark.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.thorough
def test_traffic_with_a_memory_that_is_always_ready_equals_the_cycle_model(benchmark: Any) -> None:
    """Check also that the memory's model adds only a little, which its ports allow."""
    figures, shape, config = sys.modules["benchmarks._accelerator_figures"], benchmark.BITNET_073B, AcceleratorConfig()
    traffic = benchmark.Traffic(shape, config, layers=2)
    program = figures.shape_program(figures.shape_graph(shape, layers=2), config)
    for slots, committed, logits in ((1, 127, True), (8, 0, False), (8, 120, False)):
        arguments = {"slots": slots, "committed": committed, "logits": logits}
        minimum = figures.cycles(program, **arguments)
        assert traffic.beats(figures.PassCase(**arguments)) == minimum.beats
        assert 0 <= traffic.cycles(figures.PassCase(**arguments, bandwidth=1e12)) - minimum.cycles < 300
        assert minimum.cycles < traffic.cycles(figures.PassCase(**arguments)) < 1.06 * minimum.cycles


def cases(benchmark: Any) -> list[Any]:
    """Return all passes of the published figures."""
    config = AcceleratorConfig()
    return [*benchmark.needed(config, benchmark.FLAT), *benchmark.range_cases(config)]


def test_the_pages_have_the_kept_figures(benchmark: Any) -> None:
    tables = sys.modules["benchmarks._docs_tables"]
    texts = benchmark.docs.tables()
    assert tables.outdated_blocks(texts) == [], "run benchmarks/accelerator.py --write-docs"
    assert {name for name in tables.block_names() if name.startswith("accelerator ")} == texts.keys()


def test_the_kept_figures_are_of_the_present_code(benchmark: Any) -> None:
    """Compare what they were computed from: programs, waits, traffic and the memory model."""
    fingerprint = benchmark.Traffic(benchmark.BITNET_073B, AcceleratorConfig()).fingerprint(cases(benchmark))
    kept = benchmark.docs.read_figures()["modelled"]["fingerprint"]
    assert fingerprint == kept, (
        "the accelerator's cycles, its traffic or the memory model changed since the pages were written; "
        "run benchmarks/accelerator.py --write-docs (a minute) and commit what it writes"
    )


def test_a_fingerprint_sees_a_latency_and_a_parameter(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cycles = importlib.import_module("edgedec.hw.compiler.cycles")
    module = sys.modules["benchmarks._accelerator_traffic"]
    some = cases(benchmark)[:1]

    def fingerprint() -> str:
        return str(benchmark.Traffic(benchmark.BITNET_073B, AcceleratorConfig(), layers=2).fingerprint(some))

    before = fingerprint()
    assert fingerprint() == before
    with monkeypatch.context() as patch:
        patch.setattr(cycles, "DRAIN", cycles.DRAIN + 1)
        assert fingerprint() != before
    with monkeypatch.context() as patch:
        patch.setattr(module, "KV260", replace(module.KV260, t_rp=module.KV260.t_rp + 1))
        assert fingerprint() != before


@pytest.mark.rtl
@pytest.mark.thorough
def test_the_published_modelled_figures_come_out_again(benchmark: Any) -> None:
    """Count every pass again: the range under all conditions, prompts, trees."""
    config, kept = AcceleratorConfig(), benchmark.docs.read_figures()["modelled"]
    traffic = benchmark.Traffic(benchmark.BITNET_073B, config)
    traffic.prepare(cases(benchmark), 2)
    result = benchmark.measure(find_board("kv260"), traffic, config)
    del kept["fingerprint"]
    for row in result["decode_range"]:
        assert row.pop("tok_s_with_host")["128"] < row["tok_s"]["128"]
    assert {name: result[name] for name in kept} == kept


@pytest.mark.thorough
def test_an_extension_from_a_few_layers_equals_the_whole(benchmark: Any) -> None:
    figures, shape, config = sys.modules["benchmarks._accelerator_figures"], benchmark.BITNET_073B, AcceleratorConfig()

    def measured(case: Any, layers: int, vocab: int) -> Any:
        program = figures.shape_program(figures.shape_graph(shape, layers=layers, vocab=vocab), config)
        result = figures.cycles(program, slots=case.slots, committed=case.committed, logits=case.logits)
        return figures.Counted(cycles=result.cycles, beats=result.beats)

    whole = {"layers": shape["num_hidden_layers"], "vocab": shape["vocab_size"]}
    extended = figures.Extended(measured, **whole, head_parts=64)
    for case in (figures.PassCase(slots=1, committed=127), figures.PassCase(slots=8, committed=8, logits=False)):
        assert extended.cycles(case) == pytest.approx(measured(case, *whole.values()).cycles, rel=2e-3)
        assert extended.beats(case) == pytest.approx(measured(case, *whole.values()).beats, rel=2e-3)


@pytest.mark.parametrize("name", [name for name in board_names() if not find_board(name).memory_bram36])
def test_the_demo_runs_on_every_board(
    name: str, benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(benchmark, monkeypatch, "--board", name, "--shape", "demo", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    config, device = AcceleratorConfig(**result["config"]), find_board(name)
    assert (result["fits"], result["beyond"], result["board"], result["goals"]) == (True, [], name, False)
    assert "decode_tok_s_13g" not in result
    assert result["clock_hz"] == config.clock_hz == device.clock_hz
    # A token reads each of its 4.7 million trits, and its head of 0.8 MB.
    assert 0 < result["decode_tok_s"]["128"] < device.bandwidth_bytes_s / (4.7e6 / 5 + 0.78e6)
    assert result["t8_over_t1"] is None or config.slots == 8


@pytest.mark.thorough
def test_goals_are_those_of_the_default_configuration(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark.chosen(find_board("kv260"), "bitnet-0.73b", None) == AcceleratorConfig()
    assert benchmark.chosen(find_board("kv260"), "bitnet-0.73b", 2) == AcceleratorConfig(slots=2)
    assert ran(benchmark, monkeypatch, "--estimate") == 0
    output = capsys.readouterr()
    assert ">= 77" in output.out
    assert "simulated" not in output.out
    assert "beat_bytes=64, ports=4, slots=8" in output.err
    assert ran(benchmark, monkeypatch, "--board", "pynq-z2", "--slots", "2") == 0
    output = capsys.readouterr()
    assert "77" not in output.out.split("lut, of")[0]
    assert "slots=2" in output.err
    assert "not measured" in output.err


def test_a_shape_that_does_not_fit_is_refused(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(benchmark, monkeypatch, "--board", "ulx3s-85f", "--slots", "1") == UnsupportedError.exit_code
    output = capsys.readouterr()
    assert not output.out
    assert "does not fit ulx3s-85f" in output.err
    assert "the memory has 33554432; it fits arty-z7-20" in output.err


def test_an_unknown_board_is_refused(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(benchmark, monkeypatch, "--board", "kv261") == 2
    assert f"no board 'kv261'; there are {', '.join(board_names())}" in capsys.readouterr().err
