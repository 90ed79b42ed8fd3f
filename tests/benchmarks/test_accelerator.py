"""Run benchmarks/accelerator/speed.py on every board: its output, and its refusals."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from edgedec.boards import board_names, find_board
from edgedec.errors import UnsupportedError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.estimate import estimate
from edgedec.sim.cxxrtl.accelerator import accelerator_library
from edgedec.sim.ddr.parameters import KV260
from tests.sim.support.make_small_top import CONFIG


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.accelerator.speed")


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
    figures, shape, config = (
        sys.modules["benchmarks.accelerator.speed_figures"],
        benchmark.BITNET_073B,
        AcceleratorConfig(),
    )
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
    tables = sys.modules["benchmarks.support.docs_tables"]
    texts = benchmark.docs.tables()
    assert tables.outdated_blocks(texts) == [], "run make figures"
    assert {name for name in tables.block_names() if name.startswith("accelerator ")} == texts.keys()


@pytest.mark.thorough
def test_the_kept_figures_are_of_the_present_code(benchmark: Any) -> None:
    """Compare what they were computed from: programs, waits, traffic and the memory model."""
    fingerprint = benchmark.Traffic(benchmark.BITNET_073B, AcceleratorConfig()).fingerprint(cases(benchmark))
    kept = benchmark.docs.read_figures()["modelled"]["fingerprint"]
    assert fingerprint == kept, (
        "the accelerator's cycles, its traffic or the memory model changed since the pages were written; "
        "run make figures (a minute) and commit what it writes"
    )


def test_a_fingerprint_sees_a_latency_and_a_parameter(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cycles = importlib.import_module("edgedec.hw.compiler.cycles")
    some = cases(benchmark)[:1]

    def fingerprint(**options: Any) -> str:
        traffic = benchmark.Traffic(benchmark.BITNET_073B, AcceleratorConfig(), layers=2, **options)
        return str(traffic.fingerprint(some))

    before = fingerprint()
    assert fingerprint() == before
    with monkeypatch.context() as patch:
        patch.setattr(cycles, "DRAIN", cycles.DRAIN + 1)
        assert fingerprint() != before
    assert fingerprint(parameters=replace(KV260, t_rp=KV260.t_rp + 1)) != before
    assert fingerprint(lead=None) != before


def simulated_passes(benchmark: Any) -> list[tuple[Any, int, int, dict[str, Any]]]:
    """Return (case, layers, rows of logits, published) of each pass of the RTL in the pages."""
    kept = benchmark.docs.read_figures()["simulated"]
    keys = ("slots", "committed", "bandwidth")
    return [
        (benchmark.PassCase(**{key: one[key] for key in keys}), one["layers"], kept["rows"], one)
        for one in kept["passes"]
    ]


def test_the_simulated_passes_read_what_the_present_program_reads(benchmark: Any) -> None:
    for case, layers, rows, published in simulated_passes(benchmark):
        shape = {**benchmark.BITNET_073B, "vocab_size": rows}
        assert benchmark.Traffic(shape, AcceleratorConfig(), layers=layers).beats(case) == published["beats"]


@pytest.mark.nightly
@pytest.mark.rtl
def test_a_simulated_pass_comes_out_again(benchmark: Any) -> None:
    """Simulate one layer on the RTL of the default configuration, which takes a long time to compile.

    The published pass is of the commit that is named beside it; since then it may have changed by 1 % at most.
    """
    case, layers, rows, published = simulated_passes(benchmark)[0]
    config = AcceleratorConfig()
    counted = benchmark.Simulated(benchmark.BITNET_073B, config, accelerator_library(config))(case, layers, rows)
    assert counted.beats == published["beats"]
    assert counted.cycles == pytest.approx(published["cycles"], rel=0.01)


@pytest.mark.nightly
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
        best, worst = row.pop("tok_s_with_host")
        assert worst["128"] < best["128"] < row["tok_s"]["128"]
    assert {name: result[name] for name in kept} == kept


ROWS = 640  # rows of the small model's head; an eighth of them is a part


@pytest.fixture(scope="module")
def small_rtl(benchmark: Any) -> Any:
    """Return a function of (case, layers, rows) that simulates passes of a small accelerator, compiled for minutes."""
    shape = importlib.import_module("benchmarks.accelerator.cycles").small_shape(CONFIG)
    return lru_cache(benchmark.Simulated(shape, CONFIG, accelerator_library(CONFIG)))


@pytest.mark.nightly
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("slots", "committed", "logits"), [(1, 12, True), (1, 40, True), (4, 8, True), (4, 0, False), (4, 40, False)]
)
def test_an_extension_predicts_the_rtl_of_more_layers(
    benchmark: Any, small_rtl: Any, slots: int, committed: int, logits: bool
) -> None:
    """Predict four to six layers, and eight times the rows, from one and three layers, and simulate them.

    With several slots every second layer takes longer, so that an odd number of layers more is predicted less well.
    """
    case = benchmark.PassCase(slots=slots, committed=committed, logits=logits)
    extended = benchmark.Extended(small_rtl, layers=6, vocab=ROWS, head_parts=8)
    for layers, limit in ((4, 0.02), (5, 0.003), (6, 0.02)):
        assert abs(extended.check(case, layers=layers)) < limit, layers
    assert abs(extended.check(case, layers=5, rows=ROWS if logits else None)) < 0.01


@pytest.mark.nightly
@pytest.mark.rtl
def test_an_extension_by_a_single_layer_misses(benchmark: Any, small_rtl: Any) -> None:
    """Check the reason for two layers more, and that the comparison with the RTL can fail."""
    case = benchmark.PassCase(slots=4, committed=0, logits=False)
    extended = benchmark.Extended(small_rtl, layers=6, vocab=ROWS, head_parts=8, step=1)
    assert extended.check(case, layers=5) < -0.03


@pytest.mark.nightly
@pytest.mark.rtl
def test_passes_of_a_prompt_between_those_counted_are_predicted(benchmark: Any, small_rtl: Any) -> None:
    """Compare a prompt from the first, the second and the last pass with the sum of all its passes."""
    figures = sys.modules["benchmarks.accelerator.speed_figures"]

    class Whole:
        kind, others = "simulated", False

        def cycles(self, case: Any) -> float:
            return float(small_rtl(case, 2, 80).cycles)

        def beats(self, case: Any) -> float:
            return float(small_rtl(case, 2, 80).beats)

    for tokens in (24, 40):
        passes = [
            Whole().cycles(benchmark.PassCase(slots=4, committed=at, logits=False)) for at in range(0, tokens - 4, 4)
        ]
        passes.append(Whole().cycles(benchmark.PassCase(slots=4, committed=tokens - 4)))
        predicted = figures.prompt_cycles(Whole(), CONFIG, tokens, longest=40)
        assert predicted == pytest.approx(sum(passes), rel=0.01)


@pytest.mark.rtl
@pytest.mark.parametrize(("lead", "most"), [(16, 8e-3), (None, 0.1)], ids=["held together", "free"])
def test_the_memory_makes_an_extension_wrong_if_its_ports_drift_apart(
    benchmark: Any, lead: int | None, most: float
) -> None:
    """Predict 24 layers of BitNet's traffic on the memory model from one and three layers, and count them.

    If the ports are not held together, a layer costs the more the later it comes, and the prediction fails.
    """

    @lru_cache
    def traffic(layers: int, rows: int) -> Any:
        shape = {**benchmark.BITNET_073B, "vocab_size": rows}
        return benchmark.Traffic(shape, AcceleratorConfig(), layers=layers, lead=lead)

    def counted(case: Any, layers: int, rows: int) -> Any:
        passes = traffic(layers, rows)
        return benchmark.Counted(cycles=passes.cycles(case), beats=passes.beats(case))

    layers, rows = benchmark.BITNET_073B["num_hidden_layers"], benchmark.BITNET_073B["vocab_size"]
    extended = benchmark.Extended(counted, layers=layers, vocab=rows, head_parts=64)
    errors = []
    for case in (benchmark.PassCase(slots=1, committed=127), benchmark.PassCase(slots=8, committed=120, logits=False)):
        errors.append(abs(extended.check(case, layers=layers, rows=rows if case.logits else None)))
        assert extended.beats(case) == pytest.approx(traffic(layers, rows).beats(case), rel=2e-3)
    assert max(errors) < most
    assert lead is not None or max(errors) > 0.01


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
def test_the_units_of_a_bonsai_hide_behind_its_reads(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a token reads its 1.72 thousand million trits, their scales, and keys and values once per key head.

    Neither the norms of the heads nor the likeliest of 151,936 ids take longer than the reads beside them.
    """
    assert ran(benchmark, monkeypatch, "--shape", "bonsai-1.7b", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    config, rate = AcceleratorConfig(**result["config"]), find_board("kv260").bandwidth_bytes_s
    assert (result["fits"], result["goals"], config.scaling, config.per_row) == (True, False, True, False)
    assert config.head_norms
    assert (config.slots, config.shared) == (7, True)  # the program in UltraRAM leaves room for the seventh
    assert estimate(replace(config, slots=8)).beyond(find_board("kv260"))
    layer = 2048 * 128 * (16 + 2 * 8 + 16) + 3 * 2048 * 6144
    weights = (28 * layer + 151_936 * 2048) * (1 / 5 + 1 / 128)
    for positions, speed in result["decode_tok_s"].items():
        cached = 28 * 8 * 2 * 128 * (int(positions) - 1)
        assert 0.97 < speed * (weights + cached) / rate < 1
    for kept, speeds in result["speculative_tok_s"].items():
        # A pass of four rows leaves no room for the second head of a group.
        assert speeds["128"] == pytest.approx(int(kept) * result["decode_tok_s"]["128"], rel=0.03)
        assert speeds["1024"] < int(kept) * result["decode_tok_s"]["1024"]
    assert ran(benchmark, monkeypatch, "--shape", "bonsai-1.7b", "--simulate", "x.so") == UsageError.exit_code
    assert "--simulate runs models with an int8 head" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_norms_of_a_gemma_2_cost_a_percent(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compare with the reads of a token's weights: 2.0 thousand million trits, and an int8 head of 0.59."""
    assert ran(benchmark, monkeypatch, "--shape", "gemma2-2b", "--estimate", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    config, rate = AcceleratorConfig(**result["config"]), find_board("kv260").bandwidth_bytes_s
    assert (result["fits"], config.post_norms, config.score_cap, config.gelu) == (True, True, True, True)
    layer = 2304 * 256 * (8 + 2 * 4 + 8) + 3 * 2304 * 9216
    weights = 26 * layer / 5 + 256_000 * 2304
    assert config.shared
    cached = 26 * 4 * 2 * 256 * 127  # two query heads read the keys and values that they share together
    assert 0.96 < result["decode_tok_s"]["128"] * (weights + cached) / rate < 0.99


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
