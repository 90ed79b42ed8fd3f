"""Test whole passes on the RTL: their layers, what is kept between them, and the tables; the RTL runs by night."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accelerator.whole_pass import WholePass, layer_ends
from edgedec.cli.options import resolve_model
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.compiler.choose import small_config
from edgedec.hw.compiler.shapes import shape_graph, shape_model, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.runtime.driver.report import PassReport
from edgedec.sim.verify.cocotb_runner import missing_tools
from tests.sim.support.make_small_top import CONFIG

SHAPE = {
    "model_type": "llama",
    "hidden_size": CONFIG.hidden,
    "intermediate_size": CONFIG.width,
    "num_hidden_layers": 3,
    "num_attention_heads": CONFIG.heads,
    "num_key_value_heads": CONFIG.kv_heads,
    "head_dim": CONFIG.head_dim,
    "vocab_size": 40,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": CONFIG.context,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.accelerator.whole_token")


def test_each_layer_ends_with_instructions_of_its_own() -> None:
    """A layer adds the same number of instructions to those that have ended, and the head follows the last layer."""
    ends = layer_ends(shape_program(shape_graph(SHAPE), CONFIG))
    assert len(ends) == 3
    assert ends[1] - ends[0] == ends[2] - ends[1] > 5
    shorter = layer_ends(shape_program(shape_graph(SHAPE, layers=2), CONFIG))
    assert shorter == ends[:2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--board", "ulx3s-85f"], "--board ulx3s-85f: its memory has no model; use kv260"),
        (["--slots", "9"], "--slots must be 1 to 8, not 9"),
        (["--slots", "1", "--write-docs"], "--write-docs writes the figures of both passes: leave --slots out"),
    ],
)
def test_what_it_cannot_run_is_refused(
    benchmark: Any,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["whole_token.py", *arguments, "--state", str(tmp_path / "new")])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_errors_are_relative_to_the_rtl(benchmark: Any) -> None:
    """Write 1,010 and 990 cycles beside 1,000 of the RTL."""
    methods = {"estimated": 1010.0, "modelled": 990.0, "extended": 1000.0}
    one = {"slots": 1, "cycles": 1000, **{name: benchmark.compared(count, 1000) for name, count in methods.items()}}
    header, row = benchmark.docs.whole_rows({"past": 127, "passes": [one]})
    assert header[2:] == ("estimated", "modelled", "extended")
    assert row == ("1 token after 127 positions", "1,000", "1,010 (+1.00%)", "990 (-1.00%)", "1,000 (+0.00%)")


class _Counted:
    """A stand-in of WholePass: it counts how often it runs."""

    def __init__(self, program: Any, library: str) -> None:
        self.program, self.runs = program, 0

    def run(self, slots: int, state: Path, **options: Any) -> tuple[PassReport, dict[str, int]]:
        self.runs += 1
        report = PassReport(cycles=3_100_000, beats=3_000_000, starved=1, blocked=2, dependency=3, descriptors=4)
        return report, {"logits": 5}


def test_a_finished_pass_is_not_run_again_but_for_another_library(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = type("Passes", (), {"cycles": lambda self, case: 3_000_000.0})
    for name in ("Estimated", "Traffic", "Extended", "Simulated"):
        monkeypatch.setattr(benchmark, name, lambda *args, **options: passes())
    program = shape_program(shape_graph(SHAPE), CONFIG)
    token = benchmark.WholeToken(benchmark.find_board("kv260"), SHAPE, CONFIG, tmp_path)
    whole = _Counted(program, "one")
    first = token._pass(whole, Path("one.so"), 2)
    assert token._pass(whole, Path("one.so"), 2) == first == json.loads(json.dumps(first))
    assert (whole.runs, first["cycles"], first["compared"]) == (1, 3_100_000, {"logits": 5})
    assert first["modelled"]["error"] == pytest.approx(-1 / 31)
    token._pass(whole, Path("two.so"), 2)
    assert whole.runs == 2


@pytest.fixture(scope="module")
def whole() -> WholePass:
    """Return whole passes of the embedded model, after 20 positions, on the accelerator of ``edgedec simulate -m demo``."""
    from edgedec.bundle.bundle import Bundle
    from edgedec.reference.integer_profile.calibrate import calibrate
    from edgedec.reference.integer_profile.model import integer_graph, prepare
    from edgedec.sim.cxxrtl.accelerator import accelerator_library

    bundle = Bundle.open(resolve_model("demo"))
    config: AcceleratorConfig = small_config(shape_model(integer_graph(bundle)), beat_bytes=16, slots=4, context=64)
    model = prepare(bundle, calibrate(bundle))
    return WholePass(model, config, accelerator_library(config, trace=True), past=20)


@pytest.mark.nightly
@pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")
@pytest.mark.parametrize("slots", [1, 4])
def test_a_pass_that_is_interrupted_after_each_layer_is_the_same_pass(
    whole: WholePass, slots: int, tmp_path: Path
) -> None:
    """All integers are equal, and the counters are those of a pass without interruption."""
    ended = whole.run(slots)
    assert ended is not None
    counters, compared = ended
    assert compared["logits"] == slots * whole.model.vocab
    state, stops = tmp_path / "pass.state", 0
    while (again := whole.run(slots, state, most_layers=1)) is None:
        stops += 1
        assert state.exists()
    assert stops == len(layer_ends(whole.program))
    assert again == (counters, compared)
    assert not state.exists()


@pytest.mark.nightly
@pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")
def test_a_state_of_another_pass_is_refused_and_a_changed_one_is_seen(whole: WholePass, tmp_path: Path) -> None:
    import numpy as np

    state = tmp_path / "pass.state"
    assert whole.run(1, state, most_layers=2) is None
    with pytest.raises(UsageError, match=r"pass\.state is the state of another pass, program or simulation; remove it"):
        whole.run(2, state)
    with np.load(state) as kept:
        arrays = dict(kept)
    arrays["region cache"][0] ^= 1
    with state.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    with pytest.raises(DeviceError):
        whole.run(1, state)
